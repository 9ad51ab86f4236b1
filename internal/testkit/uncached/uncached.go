// Package uncached keeps Go's test cache from using earlier results of tests whose inputs it cannot see, such as the
// programs that they start.
package uncached

import "os"

// Variable names an environment variable that has another value in each run of `make test`.
const Variable = "LENO_TEST_RUN"

// Declare says that the result of the calling test is valid for one run of `make test` only. Go's test cache records
// which environment variables a test reads, and uses a result only while their values are the same. Without the
// variable, as in a plain `go test`, results are cached.
func Declare() { _ = os.Getenv(Variable) }
