// Package access tests agents and commands that need rights in Consul: tokens, where they come from, and what happens
// without them.
package access

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
