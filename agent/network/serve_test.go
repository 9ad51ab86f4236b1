package network

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestSavedRenewal: the state file says when the lease was last renewed, but is not written at every renewal.
func TestSavedRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, memory.New(), "a")
		h.put("10.5.0.0/22", "recorder")
		n, r, began := h.inStore(), h.runner(), time.Now().UTC().Truncate(time.Second)
		lease := h.acquire()
		r.lease.Lease().Set(lease)
		later := lease
		later.Session = "sb"
		for _, tt := range []struct {
			name  string
			lease registry.Lease
			after time.Duration // since the last step, during which the lease is renewed
			want  time.Duration // when the file says that it was renewed
		}{
			{"at first", lease, 0, 0},
			{"again at once", lease, time.Minute, 0},
			{"after a tenth of the time", lease, 3 * time.Hour, 3*time.Hour + time.Minute},
			{"not since", lease, 0, 3*time.Hour + time.Minute},
			{"another session", later, time.Hour, 4*time.Hour + time.Minute},
		} {
			for range tt.after / (30 * time.Second) {
				time.Sleep(30 * time.Second)
				_, err := r.lease.Renew(t.Context(), r.deps.Store.Registry.As(""))
				must(t, err)
			}
			r.lease.Lease().Set(tt.lease)
			must(t, r.save(n, tt.lease))
			if got, err := state.Load(h.config.DataDir, "n"); err != nil || !got.Renewed.Equal(began.Add(tt.want)) {
				t.Errorf("%s: %s, want %s, %v", tt.name, got.Renewed, began.Add(tt.want), err)
			}
		}
		saved, err := state.Load(h.config.DataDir, "n")
		must(t, err)
		saved.Renewed = time.Now().Add(time.Hour) // before the clock was set back
		must(t, state.Save(h.config.DataDir, saved))
		must(t, r.save(n, later))
		if got, err := state.Load(h.config.DataDir, "n"); err != nil || got.Renewed.After(time.Now()) {
			t.Errorf("after the clock was set back: %s, %v", got.Renewed, err)
		}
	})
}

// TestSavedIsNewest: a pass over the datapath that began with an earlier lease does not overwrite the lease that is
// held now.
func TestSavedIsNewest(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	r := h.runner()
	n, err := definition.FromBlock(h.config.Networks[0])
	must(t, err)
	before, now := leaseOf(1, "sa", 1), leaseOf(2, "sa", 2)
	r.lease.Lease().Set(now)
	must(t, r.save(n, now))
	must(t, r.save(n, before))
	if got, err := state.Load(h.config.DataDir, "n"); err != nil || !slices.Equal(got.Subnets, now.Subnets) {
		t.Errorf("saved %v, held %v, %v", got.Subnets, now.Subnets, err)
	}
}

// TestPreviousUnderlay: the next process learns from the state file on which underlay this one was.
func TestPreviousUnderlay(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	must(t, state.Save(h.config.DataDir, state.Network{
		Network:   "n",
		Subnets:   leaseOf(1, "sa", 1).Subnets,
		Underlay:  "eth0",
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	}))
	got := h.runner().previousUnderlay()
	if got.Interface != "eth0" || fmt.Sprint(got.Addrs) != "[192.0.2.1]" || got.Peers != nil {
		t.Errorf("%+v", got)
	}
}

// TestRulesEndWithAlloc: a network that another definition gives the backend alloc, which has no datapath, has no rules
// any more.
func TestRulesEndWithAlloc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, memory.New(), "a")
		h.put("10.5.0.0/22", "recorder")
		n, r := h.inStore(), h.runner()
		state := backend.State{Subnets: n.Plan.Subnets(1)}
		for range 2 {
			must(t, r.protect(t.Context(), n, state))
		}
		n.Backend = registry.Backend{Type: "alloc", Object: []byte(`{"type":"alloc"}`)}
		for range 2 {
			must(t, r.protect(t.Context(), n, state))
		}
		if asked := h.wall.asked(); len(asked) != 2 || len(asked[0]) != 1 || len(asked[1]) != 0 {
			t.Errorf("rules were asked for as %+v", asked)
		}
	})
}

// TestGuardedPeers: the firewall guards where the datapath reaches peers at other ports, and no port that only a record
// names.
func TestGuardedPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a").start()
		a.ready()
		b := agenttest.Lease("b", 0, "", 0)
		_, err := a.store.Client().Acquire(t.Context(), a.inStore(), registry.Claim{Node: "b", NodeID: b.NodeID, MTU: 1450,
			PublicIPs: b.PublicIPs, Backend: agenttest.Backend(t, "other", `{"public_port":53}`), TTL: time.Hour, Hold: time.Hour})
		must(t, err)
		a.peersAre("b")
		want := []netip.AddrPort{netip.MustParseAddrPort("203.0.113.7:51830")}
		a.kernel.setReport(backend.Report{Endpoints: want})
		a.kick()
		agenttest.Eventually(t, func() error {
			asked := a.wall.asked()
			if n := asked[len(asked)-1][0]; !slices.Equal(n.Peers, want) || len(n.Ports) > 0 {
				return fmt.Errorf("guards %v and %v", n.Peers, n.Ports)
			}
			return nil
		})
		a.stop()
	})
}

// TestLeaseIgnoredByFlannel: the check of a lease that hosts with flannel ignore says so while there are such hosts.
func TestLeaseIgnoredByFlannel(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	r := h.runner()
	n, err := definition.FromBlock(h.config.Networks[0])
	must(t, err)
	n.Plan, err = append(n.Plan, registry.Pool{Prefix: netip.MustParsePrefix("fd00:5::/48")}).Normalize()
	must(t, err)
	own, other := leaseOf(1, "sa", 1), leaseOf(2, "sb", 2)
	own.Subnets, own.Backend = n.Plan.Subnets(1), agenttest.Backend(t, "vxlan", `{}`)
	own.PublicIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	other.Backend, other.Foreign = own.Backend, true
	reserved := other
	reserved.Backend = agenttest.Backend(t, "udp", `{}`)
	dual := own
	dual.PublicIPs = append(own.PublicIPs[:1:1], netip.MustParseAddr("2001:db8::1"))
	const ignored = "10.5.1.0/24: hosts with flannel would ignore this host: vxlan needs a public address of the family of "
	const held = "10.5.1.0/24 is held"
	for _, tt := range []struct {
		name  string
		own   registry.Lease
		other registry.Lease
		want  string
	}{
		{"with a host that runs flannel", own, other, ignored + n.Plan.Subnets(1)[1].String()},
		{"with a reservation of flannel's", own, reserved, held},
		{"with addresses of both families", dual, other, held},
	} {
		r.lease.Lease().Set(tt.own)
		_ = r.serve(t.Context(), &peers.View{Network: n, Own: tt.own, Leases: []registry.Lease{tt.other}}, backend.State{}, false)
		if got := h.reason(health.Lease); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
