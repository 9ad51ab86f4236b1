// Package machine tells Go's test cache about inputs of tests that it cannot see: the kernel and the machine's programs.
package machine

import "os"

// Variable names the environment variable in which `make test` puts the versions of the kernel and of its tools.
const Variable = "LENO_TEST_MACHINE"

// Declare says that the result of the calling test depends on the machine. Go's test cache records which environment
// variables a test reads, and uses a result only while their values are the same. The programs of tools/get need no more:
// their paths, which tests find in variables too, contain their versions.
func Declare() { _ = os.Getenv(Variable) }
