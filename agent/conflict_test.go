package agent

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestSameNameAtOnce: two hosts of one name that took leases at the same moment could not see each other's lease. The
// conflict is found afterwards.
func TestSameNameAtOnce(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a").start()
		a.ready()
		lease := a.rival("b", netip.Prefix{})
		lease.Node = "a" // a moment later, the store would have refused the name
		value, err := registry.FormatLease(lease)
		must(t, err)
		a.store.Put(leaseKey(lease.Subnet()), value)
		a.check(health.Conflict, api.Critical, "same name", "192.0.2.97", "192.0.2.98")
		a.applies(a.subnet().String() + " <- a@" + lease.Subnet().String())
	})
}

// rival acquires a lease of network n for another host, which has no agent.
func (h *host) rival(name string, prefer netip.Prefix) registry.Lease {
	h.t.Helper()
	client, like := h.store.Client(), agenttest.Lease(name, 0, "", 0)
	n, err := client.Network(context.Background(), "n")
	must(h.t, err)
	lease, err := client.Acquire(context.Background(), n, registry.Claim{Node: name, NodeID: like.NodeID, PublicIPs: like.PublicIPs,
		MTU: 1450, Backend: like.Backend, Prefer: prefer, TTL: time.Hour, Hold: time.Hour})
	must(h.t, err)
	return lease
}
