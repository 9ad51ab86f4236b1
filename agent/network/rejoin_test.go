package network

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestFormerSubnet: a host that takes part in a network again gets its former subnet, if that is free.
func TestFormerSubnet(t *testing.T) {
	for _, tt := range []struct {
		name string
		then func(a *member, s netip.Prefix) // called after the host has left the network
		same bool
	}{
		{"free", func(*member, netip.Prefix) {}, true},
		{"taken", func(a *member, s netip.Prefix) {
			n := a.inStore()
			_, err := a.store.Client().Acquire(a.t.Context(), n, registry.Claim{Node: "b", NodeID: "id-b",
				PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.66")}, MTU: 1400,
				Backend: n.Backend, Prefer: s, TTL: a.config.Lease.TTL, Hold: a.config.Lease.Hold})
			must(a.t, err)
		}, false},
		{"in another plan", func(a *member, _ netip.Prefix) {
			a.remove()
			a.put("10.5.0.0/22", "recorder")
		}, false},
		{"the file is broken", func(a *member, _ netip.Prefix) {
			must(a.t, os.WriteFile(state.FormerSubnetsPath(a.config.DataDir), []byte("{"), 0o600))
		}, false},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			a := newMember(t, memory.New(), "a")
			// So many subnets that the host does not get the same one twice by chance.
			a.config.Networks[0].Pools = []config.Pool{{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 30}}
			a.start().ready()
			subnet := a.subnet()
			a.run.SetEnding(Leave)
			a.stop()
			if _, _, there := a.store.Get(leaseKey(subnet)); there || exists(state.Path(a.config.DataDir, "n")) {
				t.Fatal("it was not left")
			}
			must(t, a.deps.Former.Put("n", subnet)) // as an agent does whose configuration lacks the block
			tt.then(a, subnet)
			a.start().ready()
			if got := a.subnet(); (got == subnet) != tt.same {
				t.Errorf("subnet %s, was %s", got, subnet)
			}
			agenttest.Eventually(t, func() error {
				if got := a.deps.Former.Subnet("n"); got.IsValid() {
					return fmt.Errorf("%s is remembered still", got)
				}
				return nil
			})
		})
	}
}

// TestDeletedWhileTheHostWasAway: what an earlier process left of a network is removed if the network was deleted while
// no process ran, and stays if the store has lost the network.
func TestDeletedWhileTheHostWasAway(t *testing.T) {
	whole := func(*config.Network) {}
	withoutPools := func(c *config.Network) { c.Pools, c.Backend = nil, nil }
	for _, tt := range []struct {
		name    string
		block   func(c *config.Network)
		deleted bool // otherwise the store has lost the network
	}{
		{"deleted, with a block that defines nothing", withoutPools, true},
		{"deleted, defined by the host", whole, true},
		{"lost, with a block that defines nothing", withoutPools, false},
		{"lost, defined by the host", whole, false},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			a := newMember(t, memory.New(), "a")
			n, err := definition.FromBlock(a.config.Networks[0])
			must(t, err)
			must(t, a.store.Client().PutNetwork(t.Context(), n))
			tt.block(&a.config.Networks[0])
			a.start().ready()
			subnet, file := a.subnet(), a.config.Networks[0].SubnetFile
			a.stop()
			if tt.deleted {
				a.remove()
			} else {
				empty(a.store)
			}
			a.start()
			if !tt.deleted {
				a.ready()
				if now, err := a.store.Client().Network(t.Context(), "n"); err == nil && len(definition.Differences(now, n)) > 0 {
					t.Errorf("the store has %+v", now)
				}
				agenttest.Eventually(t, func() error {
					_, err := a.store.Client().Network(t.Context(), "n")
					return err
				})
				if got := a.subnet(); got != subnet || !exists(file) {
					t.Errorf("%s, before %s; the subnet file exists %t", got, subnet, exists(file))
				}
				if slices.Contains(a.kernel.states(), "zero") {
					t.Error("the network was left")
				}
				return
			}
			a.applies("zero")
			agenttest.Eventually(t, func() error {
				if _, _, there := a.store.Get(leaseKey(subnet)); there || exists(file) || exists(state.Path(a.config.DataDir, "n")) {
					return errors.New("something was left behind")
				}
				return nil
			})
			// When the network is defined again, the host takes part again.
			must(t, a.store.Client().PutNetwork(t.Context(), n))
			a.ready()
			a.check(health.Network, api.Passing)
		})
	}
}

// TestSubnetKeptOverRestarts: a host keeps its subnet and its session over a restart, whatever became of its state file,
// and the datapath is not disturbed.
func TestSubnetKeptOverRestarts(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"state kept":        func(string) error { return nil },
		"state file lost":   os.Remove,
		"state file broken": func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
	} {
		simulated(t, name, func(t *testing.T) {
			a := newMember(t, memory.New(), "a").start()
			a.ready()
			before, _ := a.run.Lease()
			a.stop()
			path := state.Path(a.config.DataDir, "n")
			must(t, change(path))
			a.start().ready()
			if name == "state file broken" {
				if data, err := os.ReadFile(path + state.BadSuffix); err != nil || string(data) != "{" {
					t.Errorf("the broken file was not kept: %q, %v", data, err)
				}
			}
			if now, _ := a.run.Lease(); now.Subnet() != before.Subnet() || now.Session != before.Session {
				t.Errorf("%+v, before %+v", now, before)
			}
			if states := a.kernel.states(); len(states) != 1 {
				t.Errorf("the datapath was disturbed: %q", states)
			}
		})
	}
}

// TestLeasedAppliedAndWritten: hosts of a network get different subnets, write subnet files and have routes to each
// other. A subnet file that was removed is written again.
func TestLeasedAppliedAndWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a := newMember(t, store, "a").start()
		a.ready()
		subnet, file := a.subnet(), a.config.Networks[0].SubnetFile
		a.applies(subnet.String() + " <- ")
		data, err := os.ReadFile(file)
		must(t, err)
		want := fmt.Sprintf("LENO_NETWORK=10.5.0.0/22\nLENO_SUBNET=%s\nLENO_MTU=1450\nLENO_IPMASQ=false\n", state.Gateway(subnet))
		if !strings.HasPrefix(string(data), want) {
			t.Errorf("subnet file:\n%s\nwant\n%s", data, want)
		}
		b := newMember(t, store, "b").start()
		if b.subnet() == subnet {
			t.Fatalf("two hosts hold %s", subnet)
		}
		a.applies(a.with(b))
		b.applies(b.with(a))
		must(t, os.Remove(filepath.Clean(file)))
		a.kick()
		agenttest.Eventually(t, func() error { _, err := os.Stat(file); return err })
	})
}

// TestPeersFollowAMove: peers send to the address that a host has now.
func TestPeersFollowAMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a, b := newMember(t, store, "a").start(), newMember(t, store, "b").start()
		a.ready()
		b.applies(b.with(a))
		moved := netip.MustParseAddr("192.0.2.200")
		a.move([]netip.Addr{moved}, nil)
		agenttest.Eventually(t, func() error {
			passes := b.kernel.applied()
			last := passes[len(passes)-1]
			if len(last.Peers) != 1 || last.Peers[0].PublicIPs[0] != moved || last.Peers[0].Subnets[0] != a.subnet() {
				return fmt.Errorf("b applied %+v", last)
			}
			return nil
		})
	})
}

// TestPeersKeptWhileTheStoreIsAway: a host that cannot reach the store keeps its subnet and its peers, and says so.
func TestPeersKeptWhileTheStoreIsAway(t *testing.T) {
	for _, kind := range []string{config.StoreConsul, config.StoreEtcd} {
		simulated(t, kind, func(t *testing.T) { peersAreKept(t, kind) })
	}
}

func peersAreKept(t *testing.T, kind string) {
	store := memory.New()
	a, b := newMember(t, store, "a"), newMember(t, store, "b").start()
	a.deps.Store.Kind = kind
	a.start()
	want := a.with(b)
	a.applies(want)
	a.ready()
	for _, failure := range []error{registry.ErrUnavailable, registry.ErrUncertain, registry.ErrDenied} {
		a.registry.Set(fmt.Errorf("no luck: %w", failure))
		a.check(health.Lease, api.Warning, "not renewed since", "no luck")
		a.check(health.Snapshot, api.Warning, "peers keep their routes")
		a.check(health.StoreCheck(kind), api.Warning, string(report.Leases), string(report.Session))
		if got, _ := a.deps.Reports.Health.Report(); got.Status != api.Warning || !got.Ready {
			t.Errorf("%+v", got)
		}
		a.registry.Set(nil)
		a.check(health.Lease, api.Passing)
		a.check(health.Snapshot, api.Passing)
		a.check(health.StoreCheck(kind), api.Passing)
	}
	a.applies(want)
	states := a.kernel.states()
	for _, state := range states {
		if state != want && !strings.HasSuffix(state, " <- ") {
			t.Errorf("state %q was applied while the store was away", state)
		}
	}
	if len(states) > 2 {
		t.Errorf("peers came and went: %q", states)
	}
}

// TestNetworkWithReservations defines a network that hosts wait for. Each host gets the subnet that is reserved for it,
// although it claims one the moment the network exists.
func TestNetworkWithReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		members := []*member{newMember(t, store, "a"), newMember(t, store, "b"), newMember(t, store, "c")}
		n, err := definition.FromBlock(members[0].config.Networks[0])
		must(t, err)
		var kept []registry.Reservation
		for i, m := range members {
			m.config.Networks[0].Pools = nil
			m.start()
			// Slots are chosen in another order than this.
			v, err := registry.CheckReservation(n, registry.Reservation{
				Subnet: netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", 3-i)), Node: m.name})
			must(t, err)
			kept = append(kept, v)
		}
		for _, m := range members {
			m.check(health.Network, api.Critical, "leno network apply")
		}
		must(t, store.Client().PutNetwork(t.Context(), n, kept...))
		for i, m := range members {
			m.ready()
			if got := m.subnet(); got != kept[i].Subnet {
				t.Errorf("%s has %s, want %s", m.name, got, kept[i].Subnet)
			}
		}
	})
}

// TestContradictoryDefinition: a host that carries a network stops when the definition requires encryption and has a
// backend that does not encrypt. Packets are refused from then on, also by the next process, until the definition is
// right.
func TestContradictoryDefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a").start()
		a.ready()
		refused := func() {
			t.Helper()
			a.check(health.Network, api.Critical, "not carried", "encryption is required, and backend recorder does not encrypt")
			a.guards("[10.5.0.0/22] true")
			a.applies("zero")
		}
		a.define(func(n *registry.Network) { n.Encryption = registry.EncryptionRequired })
		refused()
		a.stop()
		a.config.Lease.StartFromSaved = true
		a.registry.Set(registry.ErrUnavailable)
		a.start()
		a.check(health.Network, api.Critical, "waiting for")
		a.guards("[10.5.0.0/22] true")
		a.applies("zero")
		a.registry.Set(nil)
		refused()
		a.define(func(n *registry.Network) { n.Encryption = "" })
		a.ready()
		a.check(health.Network, api.Passing)
		a.guards("[10.5.0.0/22] false")
		time.Sleep(time.Minute)
		a.guards("[10.5.0.0/22] false")
	})
}

// TestEncryptionByAnUnusableBackend: a host that cannot run the backends of a definition which requires encryption goes on
// only with a datapath that encrypts. Otherwise it refuses packets, also after a restart, until the definition is right.
func TestEncryptionByAnUnusableBackend(t *testing.T) {
	for _, tt := range []struct {
		name          string
		before        string // the backend until then, "" if the host knows no definition
		kind, options string
		why           string // in the check
		refuses       bool
	}{
		{"unknown", "recorder", "pigeon", "", "backend pigeon does not encrypt", true},
		{"bad options", "recorder", "secret", `{"bad":1}`, `backend "secret": bad options`, true},
		{"unknown to a new host", "", "pigeon", "", "backend pigeon does not encrypt", true},
		{"bad options for a new host", "", "secret", `{"bad":1}`, `backend "secret": bad options`, true},
		{"unknown, and packets are encrypted", "secret", "pigeon", "", `no backend "pigeon"`, false},
		{"bad options, and packets are encrypted", "secret", "secret", `{"bad":1}`, `backend "secret": bad options`, false},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			a := newMember(t, memory.New(), "a")
			start := func() {
				kind := a.kernel.kind("secret")
				kind.Encrypts = true
				kind.Normalize = func(o json.RawMessage) (json.RawMessage, error) {
					if strings.Contains(string(o), "bad") {
						return nil, errors.New("bad options")
					}
					return o, nil
				}
				a.deps.Datapaths.Backends["secret"] = kind
				a.startAgain()
			}
			a.put("10.5.0.0/22", cmp.Or(tt.before, tt.kind))
			if tt.before != "" {
				start()
				a.ready()
			}
			a.define(func(n *registry.Network) {
				n.Backend, n.Encryption = agenttest.Backend(t, tt.kind, tt.options), registry.EncryptionRequired
			})
			if tt.before == "" {
				start()
			}
			for range 2 {
				if tt.refuses {
					a.check(health.Network, api.Critical, "not carried", "packets to it are refused", tt.why)
					a.guards("[10.5.0.0/22] true")
				} else {
					a.check(health.Network, api.Warning, "the one before stays in force", tt.why)
					a.ready()
				}
				if zero := slices.Contains(a.kernel.states(), "zero"); zero != (tt.refuses && tt.before != "") {
					t.Errorf("taken down: %t", zero)
				}
				a.stop()
				a.renew()
				a.prepare()
				start()
			}
			a.define(func(n *registry.Network) { n.Backend = agenttest.Backend(t, "secret", "") })
			a.ready()
			a.check(health.Network, api.Passing, "defined")
		})
	}
}
