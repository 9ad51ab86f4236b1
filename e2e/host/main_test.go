// Package host tests the agent as a program on its host: its files, its faults, the messages to systemd, the health check,
// the service in Consul, and its diagnoses. Beside Consul it needs only what hosts of a lab need.
package host

import (
	"os"
	"testing"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

func TestMain(m *testing.M) { os.Exit(world.Main(m)) }

// testWorld is the lab of a test with the operations that the tests of this package share.
type testWorld struct{ *world.World }

func newWorld(t *testing.T, o lab.Options) *testWorld { return &testWorld{world.New(t, o)} }
