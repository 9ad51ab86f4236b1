package agent

import (
	"context"
	"net/netip"
	"os"
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

// TestCopiedDataDir: while a copy of a running host asks whether the host is there, and while both report it, peers send to
// the host only.
func TestCopiedDataDir(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a, c := newHost(t, store, "a").slow().start(), newHost(t, store, "c").start()
		a.ready()
		c.applies(c.subnet().String() + " <- a@" + a.subnet().String())
		b := newHost(t, store, "b").slow()
		must(t, os.CopyFS(b.config.DataDir, os.DirFS(a.config.DataDir)))
		b.start()
		b.check(health.Conflict, api.Critical, "copied")
		a.check(health.Conflict, api.Critical, "copied")
		for _, made := range c.recorder.made() {
			for _, p := range made.state.Peers {
				if p.PublicIPs[0] != a.place.Addrs[0] { // the copy's comes after it, as a question
					t.Errorf("a peer sent to %s at %v", p.Node, p.PublicIPs)
				}
			}
		}
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
