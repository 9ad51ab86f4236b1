// Package datapath holds the tests of the backends, of routes and rules on the hosts,
// of what others do to them, and of changes under traffic.
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

// testWorld is a lab of a test, with what the tests of this package do to it.
type testWorld struct{ *world.World }

func newWorld(t *testing.T, o lab.Options) *testWorld { return &testWorld{world.New(t, o)} }
