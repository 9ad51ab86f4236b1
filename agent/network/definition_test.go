package network

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// A watcher is a host that watches the definition of network n.
type watcher struct {
	*host
	watched *definitionKeeper
}

// TestWatchDefinition: a definition stays in force until the store has another one or a record of its deletion. A
// definition that the store has lost is put back.
func TestWatchDefinition(t *testing.T) {
	denied := func(h *watcher) { h.registry.SetOne("PutNetwork", registry.ErrDenied) }
	for _, tt := range []struct {
		name    string
		change  func(h *watcher, b memory.Backup) // b was taken before the network was defined
		want    error                             // nil if the definition stays in force
		check   string                            // what the network's check says afterwards, "" if all is well
		defined bool                              // whether the store has the definition afterwards
	}{
		{"nothing", func(*watcher, memory.Backup) {}, nil, "", true},
		{"written again", func(h *watcher, _ memory.Backup) { h.define(func(*registry.Network) {}) }, nil, "", true},
		{"written in another way", func(h *watcher, _ memory.Backup) {
			value, _, _ := h.store.Get(networkKey)
			h.store.Put(networkKey, append(value, " \n"...))
		}, nil, "", true},
		{"changed and changed back", func(h *watcher, _ memory.Backup) {
			value, _, _ := h.store.Get(networkKey)
			h.define(func(n *registry.Network) { n.Backend = agenttest.Backend(h.t, "other", "") })
			h.store.Put(networkKey, value)
		}, nil, "", true},
		{"another pool", func(h *watcher, _ memory.Backup) {
			h.define(func(n *registry.Network) { n.Plan = agenttest.Plan(h.t, "10.6.0.0/22") })
		}, errDefinitionChanged, "", false},
		{"another backend", func(h *watcher, _ memory.Backup) {
			h.define(func(n *registry.Network) { n.Backend = agenttest.Backend(h.t, "other", "") })
		}, errDefinitionChanged, "", false},
		{"another network deleted", func(h *watcher, _ memory.Backup) {
			n := registry.Network{Name: "m", Plan: agenttest.Plan(h.t, "10.6.0.0/22"), Backend: agenttest.Backend(h.t, "other", "")}
			must(h.t, h.store.Client().PutNetwork(h.t.Context(), n))
			must(h.t, h.store.Client().DeleteNetwork(h.t.Context(), "m"))
		}, nil, "", true},
		{"deleted", func(h *watcher, _ memory.Backup) { h.remove() }, errNetworkGone, "", false},
		{"deleted and defined again", func(h *watcher, _ memory.Backup) {
			must(h.t, h.store.Client().DeleteNetwork(h.t.Context(), "n"))
			h.put("10.5.0.0/22", "recorder")
		}, nil, "", true},
		{"lost", func(h *watcher, _ memory.Backup) { h.store.Delete(networkKey) }, nil, "", true},
		{"lost, and another network defined", func(h *watcher, _ memory.Backup) {
			empty(h.store)
			n := registry.Network{Name: "m", Plan: agenttest.Plan(h.t, "10.6.0.0/22"), Backend: agenttest.Backend(h.t, "other", "")}
			must(h.t, h.store.Client().PutNetwork(h.t.Context(), n))
		}, nil, "", true},
		{"all lost", func(h *watcher, _ memory.Backup) { empty(h.store) }, nil, "", true},
		{"set back to before it was defined", func(h *watcher, b memory.Backup) { h.store.Restore(b) }, nil, "", true},
		{"lost, without the right to put it back", func(h *watcher, _ memory.Backup) {
			denied(h)
			h.store.Delete(networkKey)
		}, nil, "cannot put it back", false},
		{"lost in a store in which only an operator defines networks", func(h *watcher, _ memory.Backup) {
			h.registry.SetOne("PutNetwork", fmt.Errorf("%w: it is defined in net-conf.json", registry.ErrNotSupported))
			h.store.Delete(networkKey)
		}, nil, "it is defined in net-conf.json; put it back there", false},
		{"lost, and deleted then", func(h *watcher, _ memory.Backup) {
			denied(h)
			h.acquire()
			h.store.Delete(networkKey)
			must(h.t, h.store.Client().DeleteNetwork(h.t.Context(), "n"))
		}, errNetworkGone, "", false},
		{"lost, and deleted just before it is put back", func(h *watcher, _ memory.Backup) {
			h.acquire()
			once := sync.OnceFunc(func() { must(h.t, h.store.Client().DeleteNetwork(h.t.Context(), "n")) })
			h.registry.SetBefore(func(call string) {
				if call == "PutNetwork" {
					once()
				}
			})
			h.store.Delete(networkKey)
		}, errNetworkGone, "", false},
		{"lost, and defined in another way just before it is put back", func(h *watcher, _ memory.Backup) {
			once := sync.OnceFunc(func() {
				h.put("10.6.0.0/22", "recorder")
			})
			var last time.Time
			h.registry.SetBefore(func(call string) {
				if call != "Network" { // other goroutines make other calls
					return
				}
				if time.Now().Equal(last) { // the second read, right before the write
					once()
				}
				last = time.Now()
			})
			h.store.Delete(networkKey)
		}, errDefinitionChanged, "", false},
		{"deleted in a new cluster, whose indexes are lower", func(h *watcher, b memory.Backup) {
			h.registry.SetOne("Network", &registry.DeletedError{Deletion: registry.Deletion{Network: "n", Time: time.Now().Add(time.Second),
				CreateIndex: h.watched.known.Network.CreateIndex, ModifyIndex: h.watched.known.Network.ModifyIndex - 1}})
			h.store.Delete(networkKey)
		}, errNetworkGone, "", false},
		{"set back to an earlier deletion", func(h *watcher, _ memory.Backup) {
			h.store.Put(networkKey, []byte(`{"version":1,"name":"n","deleted":"1999-01-01T00:00:00Z"}`))
			deleted := h.store.Backup()
			h.store.Delete(networkKey)
			h.put("10.5.0.0/22", "recorder")
			h.reread()
			h.store.Restore(deleted)
		}, nil, "", true},
		{"set back to an older version", func(h *watcher, _ memory.Backup) {
			older := h.store.Backup()
			h.define(func(n *registry.Network) { n.Plan[0].Max = n.Plan[0].Min })
			h.reread()
			h.store.Restore(older)
		}, nil, "", true},
		{"its record is bad", func(h *watcher, _ memory.Backup) { h.store.Put(networkKey, []byte("{")) }, nil, "cannot be used", false},
		{"another record is bad", func(h *watcher, _ memory.Backup) { h.store.Put(memory.Prefix+"/networks/m", []byte("{")) }, nil, "", true},
		{"the store is away", func(h *watcher, _ memory.Backup) {
			h.registry.Set(registry.ErrUnavailable)
			h.store.Delete(networkKey)
			h.deps.Store.Networks.Set(Networks{Set: registry.NetworkSet{}, Index: 1000})
		}, nil, "", false},
		{"read before it was written", func(h *watcher, _ memory.Backup) {
			h.deps.Store.Networks.Set(Networks{Set: registry.NetworkSet{}, Index: 1})
		}, nil, "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &watcher{host: newHost(t, memory.New(), "a")}
				before := h.store.Backup()
				h.put("10.5.0.0/22", "recorder")
				d := h.runner().definition
				h.watched = d
				h.reread()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go h.follow(ctx)
				synctest.Wait()
				tt.change(h, before)
				n := d.known.Network
				ended := make(chan error, 1)
				go func() { ended <- d.watch(ctx, n) }()
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
				if shown, _, _ := d.inForce.Get(); tt.defined && shown.ModifyIndex != now.ModifyIndex {
					t.Errorf("version %d is shown, the store has %d", shown.ModifyIndex, now.ModifyIndex)
				}
				got := h.reason(health.Network)
				if tt.check != "" && !strings.Contains(got, tt.check) || tt.check == "" && strings.Contains(got, "the store has") {
					t.Errorf("check: %q, want %q", got, tt.check)
				}
				if notes := h.watched.now().ignored; (tt.check == "cannot be used") != (notes != "") || notes != "" && notes != got {
					t.Errorf("shown with the network: %q", notes)
				}
				if tt.check == "cannot put it back" {
					h.registry.SetOne("PutNetwork", nil)
					time.Sleep(time.Minute)
					if _, err := h.store.Client().Network(ctx, "n"); err != nil {
						t.Errorf("with the right: %v", err)
					}
					if got := h.reason(health.Network); got != "defined" {
						t.Errorf("check: %q", got)
					}
				}
			})
		})
	}
}

// reread makes the runner of TestWatchDefinition read the definition from the store.
func (h *watcher) reread() {
	h.t.Helper()
	n, err := h.watched.find(h.t.Context())
	must(h.t, err)
	if n.ModifyIndex != h.inStore().ModifyIndex {
		h.t.Fatalf("version %d, the store has %d", n.ModifyIndex, h.inStore().ModifyIndex)
	}
}

// TestDefinedByAnotherHostFirst: hosts that start together on an empty store all define their networks. A host that finds
// no definition, and then sessions of another host that has defined the network in the meantime, has seen no loss.
func TestDefinedByAnotherHostFirst(t *testing.T) {
	for _, tt := range []struct {
		name  string
		other func(h *host) // what another host does between the two reads
		want  error
		loss  bool
	}{
		{"defined", func(h *host) { h.put("10.5.0.0/22", "recorder") }, nil, false},
		{"defined in another way", func(h *host) { h.put("10.6.0.0/22", "recorder") }, nil, false},
		{"defined and deleted", func(h *host) { h.put("10.5.0.0/22", "recorder"); h.remove() }, registry.ErrNetworkNotFound, false},
		{"defined badly", func(h *host) { h.store.Put(networkKey, []byte("{")) }, registry.ErrInvalid, false},
		{"lost", func(*host) {}, errDefinitionLost, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, memory.New(), "a")
				other := newHost(t, h.store, "b")
				h.registry.SetBefore(func(call string) {
					if call != "Holders" {
						return
					}
					h.registry.SetBefore(nil)
					other.put("10.5.0.0/22", "recorder")
					other.acquire()
					h.store.Delete(networkKey)
					tt.other(other)
				})
				d := h.runner().definition
				loss := false
				d.leases.note = func(int) { loss = true }
				n, err := d.find(t.Context())
				if !errors.Is(err, tt.want) || loss != tt.loss {
					t.Fatalf("error %v, want %v; loss %t, want %t", err, tt.want, loss, tt.loss)
				}
				if tt.want == nil && n.ModifyIndex != h.inStore().ModifyIndex {
					t.Errorf("version %d, the store has %d", n.ModifyIndex, h.inStore().ModifyIndex)
				}
			})
		})
	}
}

// TestRememberedDefinition covers what an agent does about a network in which its former process took part.
func TestRememberedDefinition(t *testing.T) {
	n := registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22"), Backend: agenttest.Backend(t, "recorder", "")}
	noPools := func(c *config.Network) { c.Pools, c.Backend = nil, nil }
	for _, tt := range []struct {
		name   string
		local  func(c *config.Network)
		store  func(h *host) // what happens to the network while no agent runs
		ago    time.Duration // how long ago the definition was used last
		want   error         // the error of await; nil if it returns n
		waits  string        // what the check says while await blocks
		putNow bool          // whether the store has the network afterwards
	}{
		{"there", noPools, func(*host) {}, time.Hour, nil, "", true},
		{"lost", noPools, func(h *host) { empty(h.store) }, time.Hour, nil, "", true},
		{"lost, with a block that defines it", func(*config.Network) {}, func(h *host) { empty(h.store) }, time.Hour, nil, "", true},
		{"lost, with a block that says otherwise", func(c *config.Network) { c.Pools[0].SubnetLen = 25 },
			func(h *host) { empty(h.store) }, time.Hour, nil, "", true},
		{"lost, without the right to put it back", noPools, func(h *host) {
			empty(h.store)
			h.registry.SetOne("PutNetwork", registry.ErrDenied)
		}, time.Hour, nil, "", false},
		{"lost, and not used for long", noPools, func(h *host) { empty(h.store) },
			registry.DeletionKept + time.Hour, nil, "leno network apply", false},
		{"invalid", noPools, func(h *host) { h.store.Put(networkKey, []byte("{")) }, time.Hour, nil, "", false},
		{"deleted", noPools, (*host).remove, time.Hour, errNetworkGone, "", false},
		{"deleted, and not used for long", noPools, (*host).remove, 2 * registry.DeletionKept, errNetworkGone, "", false},
		{"deleted, with a block that defines it", func(*config.Network) {}, (*host).remove, time.Hour, errNetworkGone, "", false},
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
				lease := h.acquire()
				tt.local(&h.config.Networks[0])
				must(t, h.runner().save(stored, lease))
				time.Sleep(tt.ago + time.Second) // a deletion must be later than the time in the file
				tt.store(h)

				d := h.runner().definition
				d.known = rememberedDefinition(h.config, "n")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				type answer struct {
					n   registry.Network
					err error
				}
				got := make(chan answer, 1)
				go func() {
					n, err := d.await(ctx)
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
					go h.follow(ctx)
					go func() { _ = d.watch(ctx, a.n) }()
					time.Sleep(time.Minute)
				default:
					if reason := h.reason(health.Network); tt.waits == "" || !strings.Contains(reason, tt.waits) {
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
		n := registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22"), Backend: agenttest.Backend(t, "recorder", "")}
		must(t, other.PutNetwork(t.Context(), n))
		reads := &stoppedRegistry{Registry: h.deps.Store.Registry}
		h.deps.Store.Registry = reads
		d := h.runner().definition
		reads.while = func() {
			time.Sleep(time.Minute)
			h.acquire()
			h.store.Delete(networkKey)
			must(t, other.PutNetwork(t.Context(), n))
			time.Sleep(time.Minute)
			must(t, other.DeleteNetwork(t.Context(), "n"))
			time.Sleep(time.Minute)
		}
		if _, err := d.find(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := d.find(t.Context()); !errors.Is(err, errNetworkGone) {
			t.Errorf("got %v, want the end of the network", err)
		}
	})
}
