// Package store holds the tests of what becomes of hosts and their packets when Consul
// and the records in it fail, change or are lost, and of restarts.
package store

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
