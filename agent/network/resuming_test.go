package network

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/agenttest"
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

// pair returns two members that know each other, the first of which has stopped. applied is the state of its datapath.
func pair(t *testing.T) (a, b *member, subnet netip.Prefix, applied string) {
	t.Helper()
	store := memory.New()
	a, b = newMember(t, store, "a"), newMember(t, store, "b").start()
	a.kernel.setReport(backend.Report{Endpoints: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.7:51821")}})
	a.start()
	a.ready()
	b.ready()
	subnet, applied = a.subnet(), a.with(b)
	a.applies(applied)
	b.applies(b.with(a)) // otherwise the pass of b for this would come after the restart
	a.stop()
	return a, b, subnet, applied
}

// changeState changes the state file of a host whose process has stopped.
func (m *member) changeState(change func(s *state.Network)) {
	m.t.Helper()
	s, err := state.Load(m.config.DataDir, "n")
	must(m.t, err)
	change(&s)
	must(m.t, state.Save(m.config.DataDir, s))
}

// peersAre waits until the host shows these nodes as its peers.
func (m *member) peersAre(want ...string) {
	m.t.Helper()
	agenttest.Eventually(m.t, func() error {
		var got []string
		for _, p := range m.run.PeerList().Peers {
			if p.Held {
				got = append(got, p.Node)
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("peers %q, want %q", got, want)
		}
		return nil
	})
}

// TestResumeWhileTheStoreIsAway: a host whose packets wait for a process resumes what it remembers, and says that the
// store has not confirmed it.
func TestResumeWhileTheStoreIsAway(t *testing.T) {
	for _, tt := range []struct {
		name    string
		err     error
		hangs   bool
		removed bool // another program removed the device
	}{
		{"away", registry.ErrUnavailable, false, false},
		{"hangs", fmt.Errorf("no answer: %w", registry.ErrUnavailable), true, false},
		{"token revoked", registry.ErrDenied, false, false},
		{"away, and the device was removed", registry.ErrUnavailable, false, true},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			a, _, subnet, applied := pair(t)
			file := a.config.Networks[0].SubnetFile
			must(t, os.Remove(file))
			a.remains = waiting(subnet)
			if tt.removed {
				a.remains = datapath.KernelState{Refuses: true}
			}
			a.registry.SetHanging(tt.hangs)
			a.registry.Set(tt.err)
			tries, before := a.kernel.tries(), a.wall.asked()
			a.start()
			a.more("applies", tries, a.kernel.tries)
			a.applies(applied)
			a.check(health.Lease, api.Warning, subnet.String(), "stays in use as")
			a.check(health.Routes, api.Passing, "1 peers in place")
			a.check(health.Forwarding, api.Passing)
			if !tt.hangs {
				a.check(health.Network, api.Warning, "waiting for")
				if report, _ := a.deps.Reports.Health.Report(); report.Status != api.Warning || report.Ready {
					t.Errorf("%+v", report)
				}
			}
			a.peersAre("b")
			// The datapath is maintained, with the address that the host has now.
			a.follows("192.0.2.7")
			if exists(file) {
				t.Error("a subnet file was written")
			}
			// Rules stay as the former process had them.
			asked := a.wall.asked()
			if len(asked) == len(before) {
				t.Error("the rules were not looked at")
			}
			for _, networks := range asked[len(before):] {
				if diff := cmp.Diff(before[len(before)-1], networks, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
					cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
					t.Errorf("other rules (-before +now):\n%s", diff)
				}
			}
			built, open := a.kernel.backends()

			a.registry.SetHanging(false)
			a.registry.Set(nil)
			if tt.hangs {
				return // the calls that hang would have to time out first
			}
			a.ready()
			a.check(health.Lease, api.Passing)
			a.check(health.Network, api.Passing)
			if !exists(file) {
				t.Error("no subnet file")
			}
			if after, still := a.kernel.backends(); after != built || still != open || open != 1 {
				t.Errorf("%d backends built, %d open; before %d, %d", after, still, built, open)
			}
			if got := a.kernel.states(); slices.Contains(got, "zero") || got[len(got)-1] != applied {
				t.Errorf("applied %q", got)
			}
		})
	}
}

// TestNothingToResume: if the kernel has nothing of this host, nothing is touched before the store was read. If the
// kernel carries packets by itself, nothing that exists is touched.
func TestNothingToResume(t *testing.T) {
	carrier := func(subnet netip.Prefix) datapath.KernelState {
		out := waiting(subnet)
		out.Carrier = true
		return out
	}
	waits := func(subnet netip.Prefix) datapath.KernelState { return waiting(subnet) }
	for _, tt := range []struct {
		name    string
		remains func(subnet netip.Prefix) datapath.KernelState
		before  func(a *member)
		status  string // the status of check network
		peers   bool
	}{
		{"the kernel carries them", carrier, nil, api.Warning, true},
		{"routes alone", func(netip.Prefix) datapath.KernelState { return datapath.KernelState{Routes: 1} }, nil, api.Warning, true},
		{"after a boot", func(netip.Prefix) datapath.KernelState { return datapath.KernelState{} }, nil, api.Critical, false},
		{"another subnet's device", func(netip.Prefix) datapath.KernelState {
			return waiting(netip.MustParsePrefix("10.99.0.0/24"))
		}, nil, api.Critical, false},
		{"no state file", waits, func(a *member) { must(a.t, os.Remove(state.Path(a.config.DataDir, "n"))) }, api.Critical, false},
		{"it was revoked", waits, func(a *member) {
			a.changeState(func(s *state.Network) { s.Revoked = s.Subnets[0] })
		}, api.Critical, false},
		{"not renewed for longer than a lapsed lease is kept", waits, func(a *member) {
			a.changeState(func(s *state.Network) { s.Renewed = time.Now().Add(-a.config.Lease.Hold - time.Minute) })
		}, api.Critical, false},
		{"the clock was set back", waits, func(a *member) {
			a.changeState(func(s *state.Network) { s.Renewed = time.Now().Add(time.Hour) })
		}, api.Critical, false},
		{"no peers file", waits, func(a *member) { must(a.t, os.Remove(state.PeersPath(a.config.DataDir, "n"))) }, api.Critical, false},
		{"a peers file that is broken", waits, func(a *member) {
			must(a.t, os.WriteFile(state.PeersPath(a.config.DataDir, "n"), []byte("{"), 0o600))
		}, api.Critical, false},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			a, b, subnet, applied := pair(t)
			a.remains = tt.remains(subnet)
			if tt.before != nil {
				tt.before(a)
			}
			a.registry.Set(registry.ErrUnavailable)
			tries, passes := a.kernel.tries(), len(a.kernel.applied())
			a.start()
			a.check(health.Network, tt.status, "waiting for the store")
			if tt.peers {
				a.peersAre(b.name)
				before, ok := a.run.Resumed()
				if !ok || before.Network.Name != "n" || before.Own.Subnet() != subnet || len(before.Leases) != 1 || before.Leases[0].Node != "b" {
					t.Errorf("known is %+v, %t", before, ok)
				}
			} else {
				a.peersAre()
			}
			if n := a.kernel.tries(); n != tries {
				t.Errorf("%d passes over the datapath", n-tries)
			}
			if tt.peers {
				a.more("passes", tries, a.kernel.tries)
				a.kernel.setReport(backend.Report{Writes: 1, Repaired: []backend.Repair{{Fault: "device was deleted"}}})
				a.kick()
				a.more("passes", tries+1, a.kernel.tries)
				a.kernel.setReport(backend.Report{})
				for _, pass := range a.kernel.applied()[passes:] {
					if !pass.Partial || stateText(pass) != applied {
						t.Errorf("applied %+v", pass)
					}
				}
			}
			a.registry.Set(nil)
			a.ready()
			a.check(health.Lease, api.Passing)
			if all := a.kernel.applied(); all[len(all)-1].Partial {
				t.Error("the state is partial after the store was read")
			}
		})
	}
}

// TestStoreCountsAfterResume: whatever datapath was resumed, what the store says is applied once it answers.
func TestStoreCountsAfterResume(t *testing.T) {
	for _, tt := range []struct {
		name string
		away func(a *member, subnet netip.Prefix) (peers []*member) // called while the host is away; returns new peers
		want func(a *member, subnet netip.Prefix)
	}{
		{"another peer", func(a *member, _ netip.Prefix) []*member {
			c := newMember(a.t, a.store, "c").start()
			c.ready()
			return []*member{c}
		}, func(a *member, subnet netip.Prefix) {
			if now := a.subnet(); now != subnet {
				a.t.Errorf("had %s, has %s", subnet, now)
			}
		}},
		{"a revocation", func(a *member, subnet netip.Prefix) []*member {
			must(a.t, a.store.Client().Revoke(a.t.Context(), "n", subnet))
			return nil
		}, func(a *member, subnet netip.Prefix) {
			if now := a.subnet(); now == subnet {
				a.t.Errorf("still on %s", now)
			}
			a.check(health.Lease, api.Passing, "it was "+subnet.String(), "must be restarted")
		}},
		{"another backend", func(a *member, _ netip.Prefix) []*member {
			a.define(func(n *registry.Network) { n.Backend = agenttest.Backend(a.t, "other", "") })
			return nil
		}, func(a *member, subnet netip.Prefix) {
			agenttest.Eventually(a.t, func() error {
				if story := a.kernel.story(); !slices.ContainsFunc(story, func(s string) bool {
					return strings.HasPrefix(s, "recorder ") && strings.HasSuffix(s, ": zero")
				}) {
					return fmt.Errorf("the former datapath stays: %q", story)
				}
				return nil
			})
			if now := a.subnet(); now != subnet {
				a.t.Errorf("had %s, has %s", subnet, now)
			}
		}},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			a, b, subnet, applied := pair(t)
			peers := append(tt.away(a, subnet), b)
			a.remains = waiting(subnet)
			a.registry.Set(registry.ErrUnavailable)
			tries := a.kernel.tries()
			a.start()
			a.more("applies", tries, a.kernel.tries)
			a.applies(applied)
			a.registry.Set(nil)
			a.ready()
			tt.want(a, subnet)
			a.applies(a.with(peers...))
			before := a.kernel.states()
			for range 3 { // nothing of the datapath that was resumed comes back
				tries := a.kernel.tries()
				a.kick()
				a.more("applies", tries, a.kernel.tries)
			}
			if got := a.kernel.states(); !slices.Equal(got, before) {
				t.Errorf("applied %q, want %q to be the last", got, before)
			}
			if _, open := a.kernel.backends(); open != 1 {
				t.Errorf("%d backends are open", open)
			}
		})
	}
}

// TestRefusedAfterResume: a store that answers but gives no lease is not an outage. As with any lost lease, the datapath
// is maintained until there is another lease.
func TestRefusedAfterResume(t *testing.T) {
	for _, tt := range []struct {
		name   string
		err    error
		status string
	}{
		{"the network is full", registry.ErrNetworkFull, api.Critical},
		{"no rights", registry.ErrDenied, api.Warning},
		{"no leader", registry.ErrUnavailable, api.Warning},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			a, _, subnet, applied := pair(t)
			a.remains = waiting(subnet)
			a.registry.SetOne("Acquire", tt.err)
			a.kernel.setFail(errors.New("no such device"))
			claims := func() int { return a.registry.Count("own Acquire") }
			asked := claims()
			a.start()
			a.more("claims", asked, claims)
			a.check(health.Lease, tt.status, "waiting for a lease")
			a.check(health.Device, api.Critical, "no such device")
			a.kernel.setFail(nil)
			a.check(health.Device, api.Passing)
			a.applies(applied)
			a.follows("192.0.2.7")
			if got := a.status(); got != tt.status {
				t.Errorf("the host's status is %s, want %s", got, tt.status)
			}
			a.registry.SetOne("Acquire", nil)
			a.ready()
			a.follows("192.0.2.8")
		})
	}
}

// TestStartFromSaved: after a boot without the store, containers can be started with the saved subnet, also without an
// underlay, but only if no other host can have it.
func TestStartFromSaved(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(a *member)
		starts bool
		passes bool // over the datapath
	}{
		{"with an underlay", func(*member) {}, true, true},
		{"without an underlay", func(a *member) { a.move(nil, errors.New("no device")) }, true, false},
		{"not configured", func(a *member) { a.config.Lease.StartFromSaved = false }, false, false},
		{"it was revoked", func(a *member) {
			a.changeState(func(s *state.Network) { s.Revoked = s.Subnets[0] })
		}, false, false},
		{"not renewed within hold", func(a *member) {
			a.changeState(func(s *state.Network) { s.Renewed = time.Now().Add(-25 * time.Hour) })
		}, false, false},
		{"the clock was set back", func(a *member) {
			a.changeState(func(s *state.Network) { s.Renewed = time.Now().Add(time.Hour) })
		}, false, false},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			a, b, subnet, _ := pair(t)
			file := a.config.Networks[0].SubnetFile
			was, err := os.ReadFile(file)
			must(t, err)
			must(t, os.Remove(file)) // it is in /run
			a.config.Lease.StartFromSaved = true
			tt.before(a)
			saved, err := state.Load(a.config.DataDir, "n")
			must(t, err)
			a.registry.Set(registry.ErrUnavailable)
			tries := a.kernel.tries()
			a.start()
			a.check(health.Network, map[bool]string{true: api.Warning, false: api.Critical}[tt.starts], "waiting for")
			if report, _ := a.deps.Reports.Health.Report(); report.Ready != tt.starts {
				t.Errorf("ready: %+v", report)
			}
			if got, err := os.ReadFile(file); (err == nil) != tt.starts || tt.starts && string(got) != string(was) {
				t.Errorf("subnet file %q, %v", got, err)
			}
			if n := a.kernel.tries() - tries; (n > 0) != tt.passes {
				t.Errorf("%d passes", n)
			}
			if tt.starts {
				a.check(health.Lease, api.Warning, subnet.String()+" stays in use as this host has saved it")
				must(t, os.Remove(file))
				time.Sleep(time.Second)
				synctest.Wait()
				if got, err := os.ReadFile(file); err != nil || string(got) != string(was) {
					t.Errorf("a second after it was removed, the subnet file is %q, %v", got, err)
				}
			}
			if now, err := state.Load(a.config.DataDir, "n"); err != nil || !now.Renewed.Equal(saved.Renewed) {
				t.Errorf("renewed %s, was %s, %v", now.Renewed, saved.Renewed, err)
			}
			a.move([]netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil)
			a.registry.Set(nil)
			a.ready()
			a.check(health.Lease, api.Passing)
			if a.subnet() == subnet && tt.starts {
				a.applies(a.with(b))
			}
		})
	}
}

// TestRememberedFlannel: a host that runs flannel, and whose lease the store lacks when the agent starts, stays a peer for
// a day with etcd, where flannel writes once a day, and for as long as others with Kubernetes, where its Node is gone.
func TestRememberedFlannel(t *testing.T) {
	for kind, stays := range map[string]bool{config.StoreEtcd: true, config.StoreKubernetes: false} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, _, applied := pair(t)
				b.die()
				b.store.Delete(memory.Prefix + "/leases/n/" + registry.SubnetKey(b.subnet()))
				path := state.PeersPath(a.config.DataDir, "n")
				text, err := os.ReadFile(path)
				must(t, err)
				text = bytes.Replace(text, []byte(`"held":true`), []byte(`"held":true,"flannel":true`), 1)
				must(t, os.WriteFile(path, text, 0o600))
				a.renew()
				a.prepare()
				a.deps.Store.Kind, a.run = kind, nil
				a.start()
				a.applies(applied)
				time.Sleep(peers.SettleTime(a.config.Lease) + time.Minute)
				if !stays {
					applied = a.with()
				}
				a.applies(applied)
			})
		})
	}
}
