package nstest

import (
	"flag"
	"runtime"
	"strconv"
)

// RunMoreAtOnce lets more tests of this process run at once than there are processors, because tests with namespaces
// mostly wait for programs, packets and the kernel. -test.parallel on the command line overrides it. TestMain calls it
// before it runs the tests.
func RunMoreAtOnce() {
	flag.Parse()
	if lanes := flag.Lookup("test.parallel"); lanes.Value.String() == lanes.DefValue {
		_ = lanes.Value.Set(strconv.Itoa(3 * runtime.GOMAXPROCS(0))) // a number is valid
	}
}
