// Package store tests what happens to hosts and their packets when Consul or its records fail,
// change or are lost, and when agents restart.
package store

import (
	"context"
	"fmt"
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

// in returns the same lab for a subtest, which reports its failures to t.
func (w *testWorld) in(t *testing.T) *testWorld {
	subtest := *w.World
	subtest.T = t
	return &testWorld{&subtest}
}

// waitNoRoutes blocks until a host has none of leno's routes.
func (w *testWorld) waitNoRoutes(h *lab.Host) {
	w.T.Helper()
	w.Eventually("the routes of the deleted network to go from "+h.Name, func(context.Context) error {
		if routes := w.Routes(h); len(routes) != 0 {
			return fmt.Errorf("%q", routes)
		}
		return nil
	})
}
