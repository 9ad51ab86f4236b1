// Package waiting is for the tests of packages that mostly wait for other programs.
package waiting

import (
	"flag"
	"runtime"
	"strconv"
)

// atOnce is how many tests run beside each other. Each of them uses a processor for a small part of its time.
const atOnce = 8

// Parallel makes more tests run beside each other than there are processors, unless the flag -parallel says how many.
// TestMain calls it first.
func Parallel() {
	flag.Parse() // testing.M.Run does not parse them again
	parallel := flag.Lookup("test.parallel")
	if parallel.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) && runtime.GOMAXPROCS(0) < atOnce {
		_ = parallel.Value.Set(strconv.Itoa(atOnce)) // a number is always accepted
	}
}
