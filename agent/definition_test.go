package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestWatchDefinition: a definition stays in force until the store has another one or a record of its deletion. A
// definition that the store has lost is put back.
func TestWatchDefinition(t *testing.T) {
	denied := func(h *host) { h.registry.setOne("PutNetwork", registry.ErrDenied) }
	for _, tt := range []struct {
		name    string
		change  func(h *host, b memory.Backup) // b was taken before the network was defined
		want    error                          // nil if the definition stays in force
		check   string                         // what the network's check says afterwards, "" if all is well
		defined bool                           // whether the store has the definition afterwards
	}{
		{"nothing", func(*host, memory.Backup) {}, nil, "", true},
		{"written again", func(h *host, _ memory.Backup) { h.define(func(*registry.Network) {}) }, nil, "", true},
		{"written in another way", func(h *host, _ memory.Backup) {
			value, _, _ := h.store.Get(networkKey)
			h.store.Put(networkKey, append(value, " \n"...))
		}, nil, "", true},
		{"changed and changed back", func(h *host, _ memory.Backup) {
			value, _, _ := h.store.Get(networkKey)
			h.define(func(n *registry.Network) { n.Backend = mustBackend(h.t, "other", "") })
			h.store.Put(networkKey, value)
		}, nil, "", true},
		{"another pool", func(h *host, _ memory.Backup) {
			h.define(func(n *registry.Network) { n.Plan = mustPlan(h.t, "10.6.0.0/22") })
		}, errDefinitionChanged, "", false},
		{"another backend", func(h *host, _ memory.Backup) {
			h.define(func(n *registry.Network) { n.Backend = mustBackend(h.t, "other", "") })
		}, errDefinitionChanged, "", false},
		{"another network deleted", func(h *host, _ memory.Backup) {
			n := registry.Network{Name: "m", Plan: mustPlan(h.t, "10.6.0.0/22"), Backend: mustBackend(h.t, "other", "")}
			must(h.t, h.store.Client().PutNetwork(h.t.Context(), n))
			must(h.t, h.store.Client().DeleteNetwork(h.t.Context(), "m"))
		}, nil, "", true},
		{"deleted", func(h *host, _ memory.Backup) { must(h.t, h.store.Client().DeleteNetwork(h.t.Context(), "n")) }, errNetworkGone, "", false},
		{"deleted and defined again", func(h *host, _ memory.Backup) {
			must(h.t, h.store.Client().DeleteNetwork(h.t.Context(), "n"))
			must(h.t, h.store.Client().PutNetwork(h.t.Context(), registry.Network{Name: "n", Plan: mustPlan(h.t, "10.5.0.0/22"), Backend: mustBackend(h.t, "recorder", "")}))
		}, nil, "", true},
		{"lost", func(h *host, _ memory.Backup) { h.store.Delete(networkKey) }, nil, "", true},
		{"lost, and another network defined", func(h *host, _ memory.Backup) {
			empty(h.store)
			n := registry.Network{Name: "m", Plan: mustPlan(h.t, "10.6.0.0/22"), Backend: mustBackend(h.t, "other", "")}
			must(h.t, h.store.Client().PutNetwork(h.t.Context(), n))
		}, nil, "", true},
		{"all lost", func(h *host, _ memory.Backup) { empty(h.store) }, nil, "", true},
		{"set back to before it was defined", func(h *host, b memory.Backup) { h.store.Restore(b) }, nil, "", true},
		{"lost, without the right to put it back", func(h *host, _ memory.Backup) { denied(h); h.store.Delete(networkKey) }, nil, "cannot put it back", false},
		{"lost, and deleted then", func(h *host, _ memory.Backup) {
			denied(h)
			must(h.t, errOf(h.store.Client().Acquire(h.t.Context(), h.inStore(), ownClaim(h))))
			h.store.Delete(networkKey)
			must(h.t, h.store.Client().DeleteNetwork(h.t.Context(), "n"))
		}, errNetworkGone, "", false},
		{"lost, and deleted just before it is put back", func(h *host, _ memory.Backup) {
			must(h.t, errOf(h.store.Client().Acquire(h.t.Context(), h.inStore(), ownClaim(h))))
			once := sync.OnceFunc(func() { must(h.t, h.store.Client().DeleteNetwork(h.t.Context(), "n")) })
			h.registry.mu.Lock()
			h.registry.before = func(call string) {
				if call == "PutNetwork" {
					once()
				}
			}
			h.registry.mu.Unlock()
			h.store.Delete(networkKey)
		}, errNetworkGone, "", false},
		{"lost, and defined in another way just before it is put back", func(h *host, _ memory.Backup) {
			once := sync.OnceFunc(func() {
				must(h.t, h.store.Client().PutNetwork(h.t.Context(), registry.Network{Name: "n", Plan: mustPlan(h.t, "10.6.0.0/22"), Backend: mustBackend(h.t, "recorder", "")}))
			})
			var last time.Time
			h.registry.mu.Lock()
			h.registry.before = func(call string) {
				if call != "Network" { // other goroutines make other calls
					return
				}
				if time.Now().Equal(last) { // the second read, right before the write
					once()
				}
				last = time.Now()
			}
			h.registry.mu.Unlock()
			h.store.Delete(networkKey)
		}, errDefinitionChanged, "", false},
		{"deleted in a new cluster, whose indexes are lower", func(h *host, b memory.Backup) {
			h.registry.setOne("Network", &registry.DeletedError{Deletion: registry.Deletion{Network: "n", Time: time.Now().Add(time.Second),
				CreateIndex: h.watching.known.network.CreateIndex, ModifyIndex: h.watching.known.network.ModifyIndex - 1}})
			h.store.Delete(networkKey)
		}, errNetworkGone, "", false},
		{"set back to an earlier deletion", func(h *host, _ memory.Backup) {
			h.store.Put(networkKey, []byte(`{"version":1,"name":"n","deleted":"1999-01-01T00:00:00Z"}`))
			deleted := h.store.Backup()
			h.store.Delete(networkKey)
			must(h.t, h.store.Client().PutNetwork(h.t.Context(), registry.Network{Name: "n", Plan: mustPlan(h.t, "10.5.0.0/22"), Backend: mustBackend(h.t, "recorder", "")}))
			h.reread()
			h.store.Restore(deleted)
		}, nil, "", true},
		{"set back to an older version", func(h *host, _ memory.Backup) {
			older := h.store.Backup()
			h.define(func(n *registry.Network) { n.Plan[0].Max = n.Plan[0].Min })
			h.reread()
			h.store.Restore(older)
		}, nil, "", true},
		{"its record is bad", func(h *host, _ memory.Backup) { h.store.Put(networkKey, []byte("{")) }, nil, "cannot be used", false},
		{"another record is bad", func(h *host, _ memory.Backup) { h.store.Put(memory.Prefix+"/networks/m", []byte("{")) }, nil, "", true},
		{"the store is away", func(h *host, _ memory.Backup) {
			h.registry.set(registry.ErrUnavailable)
			h.store.Delete(networkKey)
			h.agent.env.networks.Set(networkSet{registry.NetworkSet{}, 1000})
		}, nil, "", false},
		{"read before it was written", func(h *host, _ memory.Backup) { h.agent.env.networks.Set(networkSet{registry.NetworkSet{}, 1}) }, nil, "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, memory.New(), "a")
				before := h.store.Backup()
				must(t, h.store.Client().PutNetwork(t.Context(), registry.Network{Name: "n", Plan: mustPlan(t, "10.5.0.0/22"), Backend: mustBackend(t, "recorder", "")}))
				r := h.part()
				h.watching = r
				h.reread()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { _ = h.agent.watchNetworks(ctx) }()
				synctest.Wait()
				tt.change(h, before)
				n := r.known.network
				ended := make(chan error, 1)
				go func() { ended <- r.watchDefinition(ctx, n) }()
				time.Sleep(time.Minute)
				synctest.Wait()
				select {
				case err := <-ended:
					if tt.want == nil || !errors.Is(err, tt.want) {
						t.Errorf("ended: %v, want %v", err, tt.want)
					}
					return
				default:
				}
				if tt.want != nil {
					t.Fatalf("the definition stays in force, want %v", tt.want)
				}
				now, err := h.store.Client().Network(ctx, "n")
				if defined := err == nil && len(definition.Differences(now, n)) == 0; defined != tt.defined {
					t.Errorf("the store has %+v, %v", now, err)
				}
				if tt.defined && r.shown().definition.ModifyIndex != now.ModifyIndex {
					t.Errorf("version %d is shown, the store has %d", r.shown().definition.ModifyIndex, now.ModifyIndex)
				}
				if got := reasonOf(h.agent, "n", health.Network); tt.check != "" && !strings.Contains(got, tt.check) || tt.check == "" && strings.Contains(got, "the store has") {
					t.Errorf("check: %q, want %q", got, tt.check)
				}
				if tt.check == "cannot put it back" {
					h.registry.setOne("PutNetwork", nil)
					time.Sleep(time.Minute)
					if _, err := h.store.Client().Network(ctx, "n"); err != nil {
						t.Errorf("with the right: %v", err)
					}
					if got := reasonOf(h.agent, "n", health.Network); got != "defined" {
						t.Errorf("check: %q", got)
					}
				}
			})
		})
	}
}

const networkKey = memory.Prefix + "/networks/n"

// inStore returns network n as the store has it.
func (h *host) inStore() registry.Network {
	h.t.Helper()
	n, err := h.store.Client().Network(h.t.Context(), "n")
	must(h.t, err)
	return n
}

// reread makes the runner of TestWatchDefinition read the definition from the store.
func (h *host) reread() {
	h.t.Helper()
	n, err := h.watching.definition(h.t.Context())
	must(h.t, err)
	if n.ModifyIndex != h.inStore().ModifyIndex {
		h.t.Fatalf("version %d, the store has %d", n.ModifyIndex, h.inStore().ModifyIndex)
	}
}

func ownClaim(h *host) registry.Claim {
	return registry.Claim{Node: h.name, NodeID: "id-" + h.name, PublicIPs: h.place.Addrs, MTU: 1450, Backend: mustBackend(h.t, "recorder", ""), TTL: time.Minute, Hold: time.Hour}
}

// reasonOf returns the reason of a network's check, "" if there is no such check.
func reasonOf(a *Agent, network, check string) string {
	report, _ := a.env.health.Report()
	for _, n := range report.Networks {
		for _, c := range n.Checks {
			if n.Network == network && c.Name == check {
				return c.Reason
			}
		}
	}
	return ""
}

// TestBadDefinitionStopsNothing: a network goes on while its record is broken, and follows the record once it is
// repaired.
func TestBadDefinitionStopsNothing(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	subnet := a.subnet()
	key := memory.Prefix + "/networks/n"
	good, _, _ := a.store.Get(key)
	a.store.Put(key, []byte("{"))
	eventually(t, func() error {
		known, _, _ := a.agent.env.networks.Get()
		if _, unusable := known.set.Unusable("n"); !unusable {
			return errors.New("not seen yet")
		}
		return nil
	})
	a.store.Put(key, good)
	a.define(func(n *registry.Network) { n.Backend = mustBackend(t, "recorder", `{"colour":"blue"}`) })
	eventually(t, func() error {
		if v := mustRunner(t, a).shown(); !strings.Contains(string(v.definition.Backend.Object), "blue") {
			return errors.New("not followed yet")
		}
		return nil
	})
	a.applies(subnet.String() + " <- ")
	if got := a.recorder.all(); len(got) != 1 {
		t.Errorf("the datapath was disturbed: %q", got)
	}
}

// TestDefinitionInForce: a host shows the version of the definition that its datapath was made from. It becomes the
// version in the store once the datapath could be changed.
func TestDefinitionInForce(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	a.ready()
	shows := func(adopted, inForce uint64) {
		t.Helper()
		eventually(t, func() error {
			n, err := a.client.Network(t.Context(), "n")
			if err == nil && (n.Local == nil || n.ModifyIndex != adopted || n.Local.ModifyIndex != inForce) {
				err = fmt.Errorf("%+v, %+v: want version %d, %d in force", n, n.Local, adopted, inForce)
			}
			return err
		})
	}
	first, err := a.store.Client().Network(t.Context(), "n")
	must(t, err)
	shows(first.ModifyIndex, first.ModifyIndex)
	a.recorder.setFail(errors.New("no luck"))
	second := a.define(func(n *registry.Network) { n.Backend = mustBackend(t, "recorder", `{"colour":"blue"}`) })
	shows(second.ModifyIndex, first.ModifyIndex)
	a.recorder.setFail(nil)
	shows(second.ModifyIndex, second.ModifyIndex)
	key := memory.Prefix + "/networks/n"
	value, _, _ := a.store.Get(key)
	a.store.Put(key, append(value, '\n')) // as an operator may do by hand
	same, err := a.store.Client().Network(t.Context(), "n")
	must(t, err)
	if same.ModifyIndex == second.ModifyIndex {
		t.Fatal("not written again")
	}
	shows(same.ModifyIndex, same.ModifyIndex)
}

// TestDeletedAgain: a network that is deleted, defined by an operator and deleted again is left each time. Only a
// network that the store has lost is put back.
func TestDeletedAgain(t *testing.T) {
	a := newHost(t, memory.New(), "a").start()
	client := a.store.Client()
	for range 2 {
		a.ready()
		subnet := a.subnet()
		must(t, client.DeleteNetwork(context.Background(), "n"))
		a.check(health.Network, api.Critical, "leno network apply")
		if _, _, ok := a.store.Get(leaseKey(subnet)); ok {
			t.Error("the lease stays")
		}
		if _, err := client.Network(context.Background(), "n"); !errors.Is(err, registry.ErrNetworkNotFound) {
			t.Errorf("put back: %v", err)
		}
		n, err := definition.FromBlock(a.config.Networks[0])
		must(t, err)
		must(t, client.PutNetwork(context.Background(), n))
	}
	a.ready()
	if mustRunner(t, a).local.Name != "n" {
		t.Error("another runner")
	}
}

// TestJoin: a watched network is stopped only after its runner has left it because it was deleted, whatever the store
// shows of all networks.
func TestJoin(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	local := h.config.Networks[0]
	h.config.Networks, h.config.WatchNetworks, h.config.AllowedNetworks = nil, true, []string{"*"}
	a := h.build()
	h.agent = a
	stopped := false
	run := &running{runner: newRunner(a.env, h.config, local, nil)}
	run.cancel = func() { stopped = true; close(run.done) }
	a.runners["n"] = run
	ctx := context.Background()
	a.join(ctx) // no networks have been read yet
	for _, set := range []registry.NetworkSet{
		{Bad: []registry.BadRecord{{Key: networkKey}}},
		{},
		{Networks: []registry.Network{{Name: "n"}}},
		{Deleted: []registry.Deletion{{Network: "n"}}},
	} {
		a.env.networks.Set(networkSet{set, 5})
		a.join(ctx)
		if stopped || run.leaving {
			t.Fatalf("left by what was read of all networks: %+v", set)
		}
	}
	run.left.Store(true)
	a.join(ctx)
	if !stopped || !run.leaving || len(a.self().Networks) != 0 {
		t.Error("a network that was deleted was not left")
	}
}

// TestRememberedDefinition covers what an agent does about a network in which its former process took part.
func TestRememberedDefinition(t *testing.T) {
	n := registry.Network{Name: "n", Plan: mustPlan(t, "10.5.0.0/22"), Backend: mustBackend(t, "recorder", "")}
	noPools := func(c *config.Network) { c.Pools, c.Backend = nil, nil }
	for _, tt := range []struct {
		name   string
		local  func(c *config.Network)
		store  func(h *host) // what happens to the network while no agent runs
		ago    time.Duration // how long ago the definition was used last
		want   error         // the error of awaitDefinition; nil if it returns n
		waits  string        // what the check says while awaitDefinition blocks
		putNow bool          // whether the store has the network afterwards
	}{
		{"there", noPools, func(*host) {}, time.Hour, nil, "", true},
		{"lost", noPools, func(h *host) { empty(h.store) }, time.Hour, nil, "", true},
		{"lost, with a block that defines it", func(*config.Network) {}, func(h *host) { empty(h.store) }, time.Hour, nil, "", true},
		{"lost, with a block that says otherwise", func(c *config.Network) { c.Pools[0].SubnetLen = 25 }, func(h *host) { empty(h.store) }, time.Hour, nil, "", true},
		{"lost, without the right to put it back", noPools, func(h *host) {
			empty(h.store)
			h.registry.setOne("PutNetwork", registry.ErrDenied)
		}, time.Hour, nil, "", false},
		{"lost, and not used for long", noPools, func(h *host) { empty(h.store) }, registry.DeletionKept + time.Hour, nil, "leno network apply", false},
		{"deleted", noPools, func(h *host) { must(h.t, h.store.Client().DeleteNetwork(h.t.Context(), "n")) }, time.Hour, errNetworkGone, "", false},
		{"deleted, and not used for long", noPools, func(h *host) { must(h.t, h.store.Client().DeleteNetwork(h.t.Context(), "n")) }, 2 * registry.DeletionKept, errNetworkGone, "", false},
		{"deleted, with a block that defines it", func(*config.Network) {}, func(h *host) { must(h.t, h.store.Client().DeleteNetwork(h.t.Context(), "n")) }, time.Hour, errNetworkGone, "", false},
		{"deleted in a new store", noPools, func(h *host) {
			empty(h.store)
			must(h.t, h.store.Client().PutNetwork(h.t.Context(), n))
			must(h.t, h.store.Client().DeleteNetwork(h.t.Context(), "n"))
		}, time.Hour, errNetworkGone, "", false},
		{"an older deletion in a new store", noPools, func(h *host) {
			empty(h.store)
			h.store.Put(networkKey, []byte(`{"version":1,"name":"n","deleted":"1999-01-01T00:00:00Z"}`))
		}, time.Hour, nil, "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, memory.New(), "a")
				must(t, h.store.Client().PutNetwork(t.Context(), n))
				stored := h.inStore()
				lease, err := h.store.Client().Acquire(t.Context(), stored, ownClaim(h))
				must(t, err)
				tt.local(&h.config.Networks[0])
				r := h.part()
				r.show(func(v *view) { v.local.Renewed = time.Now().Add(-tt.ago) })
				must(t, r.save(stored, lease))
				time.Sleep(time.Second) // a deletion must be later than the time in the file
				tt.store(h)

				r = h.part()
				r.known = rememberedDefinition(h.config.DataDir, "n")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				type answer struct {
					n   registry.Network
					err error
				}
				got := make(chan answer, 1)
				go func() {
					n, err := r.awaitDefinition(ctx)
					got <- answer{n, err}
				}()
				time.Sleep(time.Second)
				synctest.Wait()
				select {
				case a := <-got:
					if !errors.Is(a.err, tt.want) || a.err == nil && len(definition.Differences(a.n, n)) > 0 || tt.waits != "" {
						t.Fatalf("got %+v, %v", a.n, a.err)
					}
					if a.err != nil {
						return
					}
					go func() { _ = h.agent.watchNetworks(ctx) }()
					go func() { _ = r.watchDefinition(ctx, a.n) }()
					time.Sleep(time.Minute)
				default:
					if reason := reasonOf(h.agent, "n", health.Network); tt.waits == "" || !strings.Contains(reason, tt.waits) {
						t.Fatalf("it waits: %s", reason)
					}
				}
				now, err := h.store.Client().Network(ctx, "n")
				if put := err == nil && len(definition.Differences(now, n)) == 0; put != tt.putNow {
					t.Errorf("the store has %+v, %v", now, err)
				}
			})
		})
	}
}

// TestRememberedVersion covers what an agent does about a version of the definition in the store that has a lower index
// than the one its former process wrote down. In a new cluster, that version may be the later one.
func TestRememberedVersion(t *testing.T) {
	first := registry.Network{Name: "n", Plan: mustPlan(t, "10.5.0.0/22"), Backend: mustBackend(t, "recorder", "")}
	for _, tt := range []struct {
		name    string
		unseen  bool // this host has not seen the first version
		cluster bool // the store is a new cluster
		change  string
		want    string
	}{
		{"set back", false, false, "", "last"},
		{"set back to a version that this host has not seen", true, false, "", "first"},
		{"set back, and changed since", false, false, "later", "later"},
		{"a new cluster", false, true, "", "last"},
		{"a new cluster, and changed since", false, true, "later", "later"},
		{"a new cluster, a version that was not seen, and changed since", true, true, "later", "later"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, memory.New(), "a")
			must(t, h.store.Client().PutNetwork(t.Context(), first))
			lease, err := h.store.Client().Acquire(t.Context(), h.inStore(), ownClaim(h))
			must(t, err)
			r := h.part()
			if !tt.unseen {
				must(t, r.save(h.inStore(), lease))
			}
			snapshot := h.store.Backup()
			colour := func(colour string) func(*registry.Network) {
				return func(n *registry.Network) { n.Backend = mustBackend(t, "recorder", `{"colour":"`+colour+`"}`) }
			}
			for range 9 { // so that the indexes of a new cluster stay lower for a while
				h.store.Put("other", []byte(time.Now().String()))
			}
			last := h.define(colour("last"))
			must(t, r.save(last, lease))
			if tt.cluster {
				h.store = memory.New()
				h.registry = newOutage(h.store.Client())
			}
			h.store.Restore(snapshot)
			if tt.change != "" {
				if later := h.define(colour(tt.change)); tt.cluster && (later.ModifyIndex >= last.ModifyIndex || later.CreateIndex != last.CreateIndex) {
					t.Fatalf("the later version is %+v, the last one of the cluster before %+v", later, last)
				}
			}
			r = h.part()
			r.known = rememberedDefinition(h.config.DataDir, "n")
			n, err := r.definition(t.Context())
			must(t, err)
			if got := string(n.Backend.Object); tt.want == "first" && strings.Contains(got, "colour") || tt.want != "first" && !strings.Contains(got, tt.want) {
				t.Errorf("got %s, want the %s version", got, tt.want)
			}
		})
	}
}

// TestDeletedIsNotDefinedAgain: a block with pools does not define a deleted network again, even on a host that
// remembers nothing of the network.
func TestDeletedIsNotDefinedAgain(t *testing.T) {
	store := memory.New()
	a := newHost(t, store, "a")
	n, err := definition.FromBlock(a.config.Networks[0])
	must(t, err)
	must(t, store.Client().PutNetwork(t.Context(), n))
	must(t, store.Client().DeleteNetwork(t.Context(), "n"))
	a.start()
	a.check(health.Network, api.Critical, "leno network apply")
	if _, err := store.Client().Network(t.Context(), "n"); !errors.Is(err, registry.ErrNetworkNotFound) {
		t.Errorf("defined again: %v", err)
	}
	if _, err := a.client.Network(t.Context(), "n"); err == nil || !strings.Contains(err.Error(), "deleted") {
		t.Errorf("the API: %v", err)
	}
	must(t, errOf(a.client.PutNetwork(t.Context(), api.Network{Name: "n", Pools: []api.Pool{{Prefix: n.Plan[0].Prefix}}, Backend: n.Backend.Object}, false)))
	a.ready()
	a.check(health.Network, api.Passing)
}

// TestNotDefinedBesideAnother: a block does not define a network that hosts could not carry next to an existing one. It
// defines the network once the other one is gone.
func TestNotDefinedBesideAnother(t *testing.T) {
	store := memory.New()
	must(t, store.Client().PutNetwork(t.Context(), registry.Network{Name: "m", Plan: mustPlan(t, "10.5.2.0/23"), Backend: mustBackend(t, "recorder", "")}))
	a := newHost(t, store, "a").start()
	a.check(health.Network, api.Critical, "overlaps 10.5.2.0/23 of network m", "leno network apply -force")
	if _, err := store.Client().Network(t.Context(), "n"); !errors.Is(err, registry.ErrNetworkNotFound) {
		t.Errorf("it was defined: %v", err)
	}
	must(t, store.Client().DeleteNetwork(t.Context(), "m"))
	a.ready()
}

// TestNotDefinedWhileOthersTakePart: a host that remembers nothing of a network leaves it to the hosts that take part
// in the network to put its definition back, and does not claim a lease until they have claimed theirs again.
func TestNotDefinedWhileOthersTakePart(t *testing.T) {
	t.Parallel()
	store := memory.New()
	a := newHost(t, store, "a").start()
	a.ready()
	definition, err := store.Client().Network(t.Context(), "n")
	must(t, err)
	subnet := a.subnet()
	must(t, a.stop())
	empty(store)
	b := newHost(t, store, "b")
	b.config.Networks[0].Pools = []config.Pool{{Prefix: netip.MustParsePrefix("10.7.0.0/22")}}
	b.start()
	b.check(health.Network, api.Critical, "waiting for a to put it back")
	if mustRunner(t, b).lastLoss().IsZero() {
		t.Error("it does not know that the store has lost the network")
	}
	if _, err := store.Client().Network(t.Context(), "n"); !errors.Is(err, registry.ErrNetworkNotFound) {
		t.Fatalf("it was defined: %v", err)
	}
	definition.CreateIndex, definition.ModifyIndex = 0, 0
	must(t, store.Client().PutNetwork(t.Context(), definition))
	b.check(health.Lease, api.Critical, "waiting for a to claim again")
	a.start()
	b.ready()
	if got := a.subnet(); got != subnet || b.subnet() == subnet {
		t.Errorf("a has %s, before %s, and b %s", got, subnet, b.subnet())
	}
}

// stoppedRegistry simulates a process that is stopped right after it has read a network. The function in while does
// what happens before the process goes on.
type stoppedRegistry struct {
	registry.Registry
	while func()
}

func (s *stoppedRegistry) Network(ctx context.Context, name string) (registry.Network, error) {
	n, err := s.Registry.Network(ctx, name)
	if s.while != nil {
		s.while()
		s.while = nil
	}
	return n, err
}

// TestDeletedWhileTheProcessWasStopped: a definition that was read before the network was lost, put back and deleted is
// no sign that the network was defined again after its deletion.
func TestDeletedWhileTheProcessWasStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, memory.New(), "a")
		other := h.store.Client()
		n := registry.Network{Name: "n", Plan: mustPlan(t, "10.5.0.0/22"), Backend: mustBackend(t, "recorder", "")}
		must(t, other.PutNetwork(t.Context(), n))
		r := h.part()
		reads := &stoppedRegistry{Registry: r.env.registry}
		r.env.registry = reads
		reads.while = func() {
			time.Sleep(time.Minute)
			must(t, errOf(other.Acquire(t.Context(), h.inStore(), ownClaim(h))))
			h.store.Delete(networkKey)
			must(t, other.PutNetwork(t.Context(), n))
			time.Sleep(time.Minute)
			must(t, other.DeleteNetwork(t.Context(), "n"))
			time.Sleep(time.Minute)
		}
		if _, err := r.definition(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := r.definition(t.Context()); !errors.Is(err, errNetworkGone) {
			t.Errorf("got %v, want the end of the network", err)
		}
	})
}
