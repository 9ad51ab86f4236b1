package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/faulty"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// waiting returns the state of a kernel with a device that has the first addresses of the subnets and that no process
// reads.
func waiting(subnets ...netip.Prefix) datapath.KernelState {
	out := datapath.KernelState{Routes: 2, Refuses: true, Device: true, Up: true}
	for _, s := range subnets {
		out.Addrs = append(out.Addrs, s.Addr())
	}
	return out
}

// pair returns two hosts that know each other, the first of which has stopped. applied is the state of its datapath.
func pair(t *testing.T) (a, b *host, subnet netip.Prefix, applied string) {
	t.Helper()
	store := memory.New()
	a, b = newHost(t, store, "a").start(), newHost(t, store, "b").start()
	a.ready()
	b.ready()
	subnet = a.subnet()
	applied = fmt.Sprintf("%s <- b@%s", subnet, b.subnet())
	a.applies(applied)
	b.applies(fmt.Sprintf("%s <- a@%s", b.subnet(), subnet)) // otherwise the pass of b for this would come after the restart
	must(t, a.stop())
	return a, b, subnet, applied
}

// TestResumeWithoutAName: a host whose packets wait for a process resumes what it remembers, although only the store
// knows its name, and shows it, and says that the store has not confirmed it.
func TestResumeWithoutAName(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a, b, subnet, applied := pair(t)
		a.remains = waiting(subnet)
		a.registry.Set(registry.ErrUnavailable)
		a.config.NodeName, a.catalog = "", &namelessStore{a.registry, "a"}
		tries := len(a.recorder.tries())
		a.start()
		a.more("applies", tries, func() int { return len(a.recorder.tries()) })
		a.applies(applied)
		a.check(health.Lease, api.Warning, subnet.String(), "stays in use as")
		a.check(health.Network, api.Warning, subnet.String(), "stays in use as")
		a.check(health.Node, api.Warning, "waiting for this host's name")
		if code, report := a.health(); code != http.StatusTooManyRequests || report.Ready {
			t.Errorf("healthz %d, %+v", code, report)
		}
		a.showsResumed(subnet, b.subnet())
		built, open := a.recorder.open()

		a.registry.Set(nil)
		a.ready()
		a.check(health.Lease, api.Passing)
		a.check(health.Network, api.Passing)
		if after, still := a.recorder.open(); after != built || still != open || open != 1 {
			t.Errorf("%d backends built, %d open; before %d, %d", after, still, built, open)
		}
		if got := a.recorder.all(); slices.Contains(got, "zero") || got[len(got)-1] != applied {
			t.Errorf("applied %q", got)
		}
		list, err := a.client.Leases(t.Context(), "n")
		if err != nil || len(list.Leases) != 2 || !list.Leases[0].Held || !list.Leases[1].Held {
			t.Errorf("leases: %+v, %v", list, err)
		}
	})
}

// TestStartFromSavedWithoutAName: after a boot without the store, which alone knows this host's name, containers can be
// started if the host has saved its subnet and may use it. Otherwise the check of the network fails.
func TestStartFromSavedWithoutAName(t *testing.T) {
	for _, saved := range []bool{true, false} {
		subtest(t, fmt.Sprintf("start_from_saved %t", saved), func(t *testing.T) {
			a, _, _, applied := pair(t)
			a.registry.Set(registry.ErrUnavailable)
			a.config.NodeName, a.catalog = "", &namelessStore{a.registry, "a"}
			a.config.Lease.StartFromSaved, a.config.Lease.Hold = saved, 10*time.Minute
			a.start()
			status, code := api.Critical, http.StatusServiceUnavailable
			if saved {
				status, code = api.Warning, http.StatusTooManyRequests
				a.ready()
				a.applies(applied)
			}
			a.check(health.Node, api.Warning, "waiting for this host's name")
			a.check(health.Network, status)
			if got, report := a.health(); got != code || report.Ready != saved {
				t.Errorf("healthz %d, %+v", got, report)
			}
			if saved {
				time.Sleep(a.config.Lease.Hold)
				a.check(health.Lease, api.Critical, "longer than lease.hold")
				if got, report := a.health(); got != http.StatusServiceUnavailable || report.Ready {
					t.Errorf("after lease.hold: healthz %d, %+v", got, report)
				}
			}
			a.registry.Set(nil)
			a.ready()
			a.check(health.Network, api.Passing)
			a.applies(applied)
		})
	}
}

// showsResumed fails the test unless the API shows network n with the host's subnet and that of its peer b, as the former
// process of the host wrote them down.
func (h *host) showsResumed(subnet, peer netip.Prefix) {
	h.t.Helper()
	ctx, c := h.t.Context(), h.client
	all, err := c.Networks(ctx)
	if err != nil || len(all.Networks) != 1 || all.Networks[0].Local == nil || !slices.Equal(all.Networks[0].Local.Subnets, []netip.Prefix{subnet}) {
		h.t.Errorf("networks: %+v, %v", all, err)
	}
	if n, err := c.Network(ctx, "n"); err != nil || len(n.Pools) != 1 {
		h.t.Errorf("network: %+v, %v", n, err)
	}
	want := []string{fmt.Sprintf("%s own true held true", subnet), fmt.Sprintf("%s own false held true", peer)}
	for _, memory := range []string{"", "?memory=true"} {
		var list api.LeaseList
		code, body := h.request("GET", "/v1/network/n/leases"+memory, "")
		must(h.t, json.Unmarshal([]byte(body), &list))
		var got []string
		for _, l := range list.Leases {
			got = append(got, fmt.Sprintf("%s own %t held %t", l.Subnet, l.Own, l.Held))
		}
		slices.Sort(got)
		slices.Sort(want)
		if code != http.StatusOK || !slices.Equal(got, want) {
			h.t.Errorf("leases%s: %d %q, want %q", memory, code, got, want)
		}
	}
	if l, err := c.Lease(ctx, "n", peer); err != nil || l.Node != "b" {
		h.t.Errorf("lease: %+v, %v", l, err)
	}
	peers, err := c.Peers(ctx, "n")
	if err != nil || len(peers.Peers) != 1 || peers.Peers[0].Node != "b" || !peers.Peers[0].Held {
		h.t.Errorf("peers: %+v, %v", peers, err)
	}
}

// namelessStore is a store that tells the host its name when it can be asked.
type namelessStore struct {
	*faulty.Registry
	name string
}

func (s *namelessStore) Abilities() registry.Abilities {
	can := s.Registry.Abilities()
	can.NodeName = s.NodeName
	return can
}

func (s *namelessStore) NodeName(ctx context.Context) (name string, err error) {
	err = s.Call(ctx, "NodeName", func(context.Context) error { return nil })
	return s.name, err
}

// TestResumeWatchedNetwork: a network without a block is resumed, too, although only the store says that it exists.
// The host leaves it once the network is certain to be gone.
func TestResumeWatchedNetwork(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a, b, subnet, applied := pair(t)
		a.config.Networks, a.config.WatchNetworks, a.config.AllowedNetworks = nil, true, []string{"*"}
		a.remains = waiting(subnet)
		a.registry.Set(registry.ErrUnavailable)
		tries := len(a.recorder.tries())
		a.start()
		a.more("applies", tries, func() int { return len(a.recorder.tries()) })
		a.applies(applied)
		if report, _ := a.agent.env.Reports.Health.Report(); report.Ready {
			t.Error("ready before the store has answered")
		}
		must(t, b.stop())
		must(t, a.store.Client().DeleteNetwork(context.Background(), "n"))
		a.registry.Set(nil)
		a.applies("zero")
		eventually(t, func() error {
			if _, running := a.agent.networks.get("n"); running || exists(state.Path(a.config.DataDir, "n")) {
				return errors.New("something was left behind")
			}
			return nil
		})
	})
}

// TestResumeBesideAnother: a network that is resumed keeps its pools until the host has left it.
func TestResumeBesideAnother(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a, b, subnet, _ := pair(t)
		must(t, b.stop())
		client := a.store.Client()
		n, err := client.Network(context.Background(), "n")
		must(t, err)
		must(t, client.DeleteNetwork(context.Background(), "n"))
		n.Name, n.CreateIndex, n.ModifyIndex = "m", 0, 0
		must(t, client.PutNetwork(context.Background(), n))
		a.config.Networks, a.config.WatchNetworks, a.config.AllowedNetworks = nil, true, []string{"*"}
		a.remains = waiting(subnet)
		from := len(a.recorder.made())
		a.registry.Set(registry.ErrUnavailable)
		a.start()
		a.more("applies", from, func() int { return len(a.recorder.made()) })
		a.registry.Set(nil)
		a.more("networks", 0, func() int {
			return len(slices.DeleteFunc(a.recorder.made()[from:], func(m applied) bool { return m.config.Network != "m" }))
		})
		made := a.recorder.made()[from:]
		first := slices.IndexFunc(made, func(m applied) bool { return m.config.Network == "m" })
		if first < 2 || made[first-1].config.Network != "n" || !made[first-1].state.Zero() {
			t.Errorf("m began before n had left: %+v", made[:first+1])
		}
		if slices.ContainsFunc(made[first:], func(m applied) bool { return m.config.Network == "n" }) {
			t.Error("n went on")
		}
	})
}

// TestResumeSwapped: two networks that swapped their pools while no agent ran do not wait for each other.
func TestResumeSwapped(t *testing.T) {
	simulated(t, func(t *testing.T) {
		ctx := context.Background()
		a := newHost(t, memory.New(), "a")
		m := a.config.Networks[0]
		m.Name, m.SubnetFile = "m", m.SubnetFile+".m"
		m.Pools = []config.Pool{{Prefix: netip.MustParsePrefix("10.6.0.0/22")}}
		a.config.Networks = append(a.config.Networks, m)
		a.start().ready()
		was := map[string]netip.Prefix{}
		for _, name := range []string{"n", "m"} {
			r, _ := a.agent.networks.get(name)
			lease, _ := r.Lease()
			was[name] = lease.Subnet()
		}
		must(t, a.stop())
		client := a.store.Client()
		one, err := client.Network(ctx, "n")
		must(t, err)
		two, err := client.Network(ctx, "m")
		must(t, err)
		one.Plan, two.Plan = two.Plan, one.Plan
		must(t, client.PutNetwork(ctx, one))
		must(t, client.PutNetwork(ctx, two))
		a.remains = waiting(was["n"], was["m"])
		a.registry.Set(registry.ErrUnavailable)
		from := len(a.recorder.made())
		a.start()
		a.more("applies", 1, func() int { return len(a.recorder.made()[from:]) })
		a.registry.Set(nil)
		a.ready()
		for name, pool := range map[string]string{"n": "10.6.0.0/22", "m": "10.5.0.0/22"} {
			r, _ := a.agent.networks.get(name)
			if lease, _ := r.Lease(); !netip.MustParsePrefix(pool).Contains(lease.Subnet().Addr()) {
				t.Errorf("%s has %s", name, lease.Subnet())
			}
		}
		if _, open := a.recorder.open(); open != 2 {
			t.Errorf("%d backends are open", open)
		}
	})
}
