package agent

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// copyDataDir gives h the node id and the state file of from, as a cloned machine has them.
func copyDataDir(h, from *host) {
	must(h.t, os.MkdirAll(h.config.DataDir, 0o755))
	for _, name := range []string{"node-id", "n.json"} {
		data, err := os.ReadFile(filepath.Join(from.config.DataDir, name))
		must(h.t, err)
		must(h.t, os.WriteFile(filepath.Join(h.config.DataDir, name), data, 0o600))
	}
}

// TestSameNameAtOnce: two hosts of one name that took leases at the same moment could not see each other's lease. The
// conflict is found afterwards.
func TestSameNameAtOnce(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	lease := a.rival("b", netip.Prefix{})
	lease.Node = "a" // a moment later, the store would have refused the name
	value, err := registry.FormatLease(lease)
	must(t, err)
	a.store.Put(leaseKey(lease.Subnet()), value)
	a.check(health.Conflict, api.Critical, "same name", "192.0.2.97", "192.0.2.98")
	a.applies(a.subnet().String() + " <- a@" + lease.Subnet().String())
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

// wantGrowing waits for the fourth of several attempts, and fails if the pause before it is shorter than least.
func wantGrowing(t *testing.T, what string, least time.Duration, at func() []time.Time) {
	t.Helper()
	var times []time.Time
	eventually(t, func() error {
		if times = at(); len(times) < 4 {
			return fmt.Errorf("%d %s", len(times), what)
		}
		return nil
	})
	if pause := times[3].Sub(times[2]); pause < least {
		t.Errorf("%s: still %s apart: %v", what, pause, times)
	}
}
