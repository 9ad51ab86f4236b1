// Package datapath tests the backends, leno's routes and rules on the hosts, how leno handles other
// programs' changes to them, and configuration changes under traffic.
package datapath

import (
	"os"
	"testing"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

func TestMain(m *testing.M) {
	os.Exit(world.Main(m))
}

// testWorld is the lab of a test with the operations that the tests of this package share.
type testWorld struct{ *world.World }

func newWorld(t *testing.T, o lab.Options) *testWorld { return &testWorld{world.New(t, o)} }
