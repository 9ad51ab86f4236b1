package agent

import (
	"net/netip"
	"testing"

	"github.com/lenonet/leno/registry/memory"
)

// TestUnderlayOfSomeNetwork: a device or a route counts if it counts for one of the networks.
func TestUnderlayOfSomeNetwork(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a, b := newHost(t, store, "a"), newHost(t, store, "b").start()
		a.config.Networks = append(a.config.Networks, a.second()) // b has no part in it
		a.start().ready()
		a.applies(a.subnet().String() + " <- b@" + b.subnet().String())
		if !a.agent.networks.reaches(netip.MustParsePrefix("192.0.2.96/28")) || a.agent.networks.reaches(netip.MustParsePrefix("192.0.2.0/27")) {
			t.Error("routes to the peer do not count, or others do")
		}
		if !a.agent.networks.usesLink("eth0") || a.agent.networks.usesLink("eth1") {
			t.Error("the device of the underlay does not count, or others do")
		}
	})
}
