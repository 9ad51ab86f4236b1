// Package confined runs the agent with the restrictions of the systemd unit in examples/systemd, and without single
// rights. It needs systemd-analyze, gcc for the C library's headers, and both variants of iptables.
package confined

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
