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
	client, like := h.store.Client(), testLease(name, 0, "", 0)
	n, err := client.Network(context.Background(), "n")
	must(h.t, err)
	lease, err := client.Acquire(context.Background(), n, registry.Claim{Node: name, NodeID: like.NodeID, PublicIPs: like.PublicIPs,
		MTU: 1450, Backend: like.Backend, Prefer: prefer, TTL: time.Hour, Hold: time.Hour})
	must(h.t, err)
	return lease
}

// TestTakingBackSlowsDown: pauses grow while another program overwrites this host's record again and again.
func TestTakingBackSlowsDown(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a").slow().start()
	a.ready()
	key := leaseKey(a.subnet())
	own, _, _ := a.store.Get(key)
	began := len(a.registry.at("Acquire"))
	wantGrowing(t, "acquires", 4*a.pace.First/10, func() []time.Time {
		if now, _, _ := a.store.Get(key); string(now) == string(own) {
			a.store.Put(key, []byte("{"))
		}
		return a.registry.at("Acquire")[began:]
	})
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

func TestSuspicionsEndOnTheirOwn(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	r := h.part()
	r.suspect("claim", "one")
	r.suspect("leases", "two")
	h.check(health.Conflict, api.Critical, "one; two")
	r.suspect("claim", "")
	h.check(health.Conflict, api.Critical, "two")
	r.suspect("leases", "")
	h.check(health.Conflict, api.Passing)
}

// TestConflictIsLookedAtAgain: a rival that falls silent writes nothing to the store, so a conflict is checked again
// for as long as it lasts.
func TestConflictIsLookedAtAgain(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	r := h.part()
	own := registry.Lease{Node: "a", NodeID: "1", Session: "s", PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	rival := registry.Lease{Node: "b", NodeID: "2", Session: "t", PublicIPs: own.PublicIPs}
	if r.judge([]registry.Lease{own, rival}, own) == nil {
		t.Error("a conflict is not checked again")
	}
	h.check(health.Conflict, api.Critical, "192.0.2.1")
	rival.Session = ""
	if r.judge([]registry.Lease{own, rival}, own) != nil {
		t.Error("a conflict that has ended is checked again")
	}
	h.check(health.Conflict, api.Passing)
}
