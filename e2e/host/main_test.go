// Package host tests the agent as a program on its host: rights, systemd, the health check,
// metrics, the status page.
package host

import (
	"fmt"
	"os"
	"testing"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(filterVariable); text != "" {
		fmt.Fprintln(os.Stderr, becomeFiltered(text, os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(world.Main(m))
}

// testWorld is the lab of a test with the operations that the tests of this package share.
type testWorld struct{ *world.World }

func newWorld(t *testing.T, o lab.Options) *testWorld { return &testWorld{world.New(t, o)} }
