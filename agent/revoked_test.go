package agent

import (
	"context"
	"errors"
	"testing"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/network/lease"
)

// TestLostBetweenTwoProcesses: an agent that is configured to end when its host loses its subnet does so once, even if
// the subnet was lost while no agent ran.
func TestLostBetweenTwoProcesses(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a, _, subnet, _ := pair(t)
		a.config.Lease.OnLost = config.OnLostExit
		a.remains = waiting(subnet)
		must(t, a.store.Client().Revoke(context.Background(), "n", subnet))
		a.start()
		var lost *lease.LostError
		if err := a.wait(); !errors.As(err, &lost) || lost.Old != subnet.String() || lost.New == lost.Old {
			t.Fatalf("%v", err)
		}
		a.start().ready()
		if now := a.subnet(); now == subnet {
			t.Errorf("still on %s", now)
		}
	})
}
