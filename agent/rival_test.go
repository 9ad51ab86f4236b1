package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/faulty"
	"github.com/lenonet/leno/registry/memory"
)

// TestSubnetFileFollowsALostSubnet: the subnet file names the new subnet even while the datapath fails, because the
// containers on the former subnet may be what keeps the datapath from being complete.
func TestSubnetFileFollowsALostSubnet(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		a.ready()
		before := a.subnet()
		a.recorder.setFail(errors.New("put route: the bridge is in the way"))
		must(t, a.client.RevokeLease(t.Context(), "n", before))
		eventually(t, func() error {
			if got := state.SubnetInFile(a.config.Networks[0].SubnetFile); got == before || got != a.subnet() {
				return fmt.Errorf("the file says %s, the lease is %s", got, a.subnet())
			}
			return nil
		})
		a.check(health.Device, api.Critical, "in the way")
	})
}

// reconnecting counts how often the connections from lost addresses were closed.
type reconnecting struct {
	*faulty.Registry
	times atomic.Int32
}

func (c *reconnecting) Reconnect() { c.times.Add(1) }

// TestMovedDialsAnew: a host whose address has changed closes its connections to the store, because those from the
// former address are useless.
func TestMovedDialsAnew(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		c := &reconnecting{Registry: a.registry}
		a.catalog = c
		a.start().ready()
		a.kick()
		acquired := a.registry.Count("own Acquire")
		a.move([]netip.Addr{netip.MustParseAddr("192.0.2.200")}, nil)
		a.kick()
		a.more("claims", acquired, func() int { return a.registry.Count("own Acquire") })
		if n := c.times.Load(); n != 1 {
			t.Errorf("reconnected %d times", n)
		}
	})
}
