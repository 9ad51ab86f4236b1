package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/memory"
)

// coloured returns a change of a definition that gives its backend a colour.
func coloured(t *testing.T, colour string) func(*registry.Network) {
	return func(n *registry.Network) { n.Backend = agenttest.Backend(t, "recorder", `{"colour":"`+colour+`"}`) }
}

// TestRememberedVersion covers what an agent does about a version of the definition in the store that has a lower index
// than the one its former process wrote down. In a new cluster, that version may be the later one.
func TestRememberedVersion(t *testing.T) {
	first := registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22"), Backend: agenttest.Backend(t, "recorder", "")}
	for _, tt := range []struct {
		name    string
		unseen  bool // this host has not seen the first version
		byHand  bool // the first version has no revision
		emptied bool // the store was emptied after the last version, and filled again
		cluster bool // the store is a new cluster
		change  string
		want    string
	}{
		{"set back", false, false, false, false, "", "last"},
		{"set back to a version that this host has not seen", true, false, false, false, "", "last"},
		{"set back to a version that was written by hand", false, true, false, false, "", "last"},
		{"set back, and changed since", false, false, false, false, "later", "later"},
		{"emptied, filled, and set back to a time before", false, false, true, false, "", "last"},
		{"a new cluster", false, false, false, true, "", "last"},
		{"a new cluster, and changed since", false, false, false, true, "later", "later"},
		{"a new cluster, a version that was not seen, and changed since", true, false, false, true, "later", "later"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, memory.New(), "a")
			first := first
			if !tt.byHand {
				first = first.Replacing(registry.Network{})
			}
			must(t, h.store.Client().PutNetwork(t.Context(), first))
			lease := h.acquire()
			r := h.runner()
			if !tt.unseen {
				must(t, r.save(h.inStore(), lease))
			}
			snapshot := h.store.Backup()
			for range 9 { // so that the indexes of a new cluster stay lower for a while
				h.store.Put("other", []byte(time.Now().String()))
			}
			last := h.define(coloured(t, "last"))
			must(t, r.save(last, lease))
			if tt.emptied {
				empty(h.store)
				restored := last
				restored.CreateIndex, restored.ModifyIndex = 0, 0
				must(t, h.store.Client().PutNetwork(t.Context(), restored))
				must(t, r.save(h.inStore(), lease))
			}
			if tt.cluster {
				h.connect(memory.New())
			}
			h.store.Restore(snapshot)
			if tt.change != "" {
				later := h.define(coloured(t, tt.change))
				if tt.cluster && (later.ModifyIndex >= last.ModifyIndex || later.CreateIndex != last.CreateIndex) {
					t.Fatalf("the later version is %+v, the last one of the cluster before %+v", later, last)
				}
			}
			d := h.runner().definition
			d.known = rememberedDefinition(h.config, "n")
			n, err := d.find(t.Context())
			must(t, err)
			got := string(n.Backend.Object)
			if !strings.Contains(got, tt.want) {
				t.Errorf("got %s, want the %s version", got, tt.want)
			}
		})
	}
}

// TestOlderDefinitionRestored: all agents were restarted when the store lost everything, and a host that was away during
// the last change is the first to restore the definition. Hosts that know of the change do not follow it, and the change
// is restored.
func TestOlderDefinitionRestored(t *testing.T) {
	for _, restored := range []bool{true, false} { // or defined again by an operator, who has the last word
		t.Run(fmt.Sprintf("restored %t", restored), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, memory.New(), "a")
				first := registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22"), Backend: agenttest.Backend(t, "recorder", "")}
				must(t, h.store.Client().PutNetwork(t.Context(), first.Replacing(registry.Network{})))
				first = h.inStore()
				lease := h.acquire()
				last := h.define(coloured(t, "last"))
				must(t, h.runner().save(last, lease))
				empty(h.store)
				wanted := last
				if first.CreateIndex, first.ModifyIndex = 0, 0; !restored {
					first = first.Replacing(registry.Network{})
					wanted = first
				}
				must(t, h.store.Client().PutNetwork(t.Context(), first))

				d := h.runner().definition
				d.known = rememberedDefinition(h.config, "n")
				n, err := d.find(t.Context())
				must(t, err)
				if differs := definition.Differences(n, wanted); len(differs) > 0 {
					t.Errorf("the definition in force differs from the one wanted: %q", differs)
				}
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				all.Go(func() { h.follow(ctx) })
				all.Go(func() { _ = d.watch(ctx, n) })
				time.Sleep(time.Minute)
				cancel()
				all.Wait()
				now := h.inStore()
				if differs := definition.Differences(now, wanted); len(differs) > 0 {
					t.Errorf("the definition in the store differs from the one wanted: %q", differs)
				}
				if now.Revision != wanted.Revision || !slices.Equal(now.Earlier, wanted.Earlier) {
					t.Errorf("revision %s after %s, want %s after %s", now.Revision, now.Earlier, wanted.Revision, wanted.Earlier)
				}
				if now.Restored.IsZero() == restored {
					t.Errorf("restored at %v", now.Restored)
				}
			})
		})
	}
}

// TestRestoredDefinitionShowsTheLoss: a host that reads a definition that another one has restored knows that the
// store may lack leases until a host writes that all are there, whatever the difference between their clocks.
func TestRestoredDefinitionShowsTheLoss(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Second)
	before := now.Add(-time.Hour)
	for _, tt := range []struct {
		name     string
		last     time.Time // when the definition that the keeper read before had been restored
		restored time.Time
		leases   int
		want     bool
	}{
		{"never restored", time.Time{}, time.Time{}, 0, false},
		{"restored since, or a new host, or one that has reloaded its configuration", time.Time{}, now, 7, true},
		{"restored again since", before, now, 7, true},
		{"by a clock that is behind", time.Time{}, now.AddDate(-1, 0, 0), 7, true},
		{"by a clock that is ahead", time.Time{}, now.AddDate(1, 0, 0), 7, true},
		{"and all hosts have claimed since", time.Time{}, now, 0, false},
		{"seen before", now, now, 7, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, memory.New(), "a")
			n := registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22"),
				Backend: agenttest.Backend(t, "recorder", ""), Restored: tt.restored, RestoredLeases: tt.leases}
			must(t, h.store.Client().PutNetwork(t.Context(), n))
			d := h.runner().definition
			noted := -1
			d.leases.note, d.loss.restored = func(leases int) { noted = leases }, tt.last
			_, err := d.find(t.Context())
			must(t, err)
			if tt.want && noted != 7 || !tt.want && noted != -1 {
				t.Errorf("a loss of %d leases, want one: %t", noted, tt.want)
			}
		})
	}
}

// TestSetForward: a change in a store that was set back stays when the store is set forward to what was in force before.
func TestSetForward(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	must(t, h.store.Client().PutNetwork(t.Context(), registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22"),
		Backend: agenttest.Backend(t, "recorder", "")}.Replacing(registry.Network{})))
	first := h.store.Backup()
	d := h.runner().definition
	inForce := func(want string) {
		t.Helper()
		n, err := d.find(t.Context())
		must(t, err)
		if got := string(n.Backend.Object); !strings.Contains(got, want) {
			t.Errorf("in force is %s, want %s", got, want)
		}
	}
	abandoned := h.define(coloured(t, "abandoned"))
	second := h.store.Backup()
	inForce("abandoned")
	h.store.Restore(first)
	h.define(coloured(t, "last"))
	inForce("last")
	if got := h.said.With("made without knowing the one in force before"); len(got) != 1 {
		t.Errorf("two changes of the same generation were reported %d times", len(got))
	}
	h.store.Restore(second)
	inForce("last")

	// A host that knows only the last one abandons it then, and restores the other one. Hosts must not do so in turns.
	must(t, h.store.Client().DeleteNetwork(t.Context(), "n"))
	h.store.Delete(networkKey)
	restored := d.known.Network
	restored.Revision, restored.Earlier = abandoned.Revision, restored.Earlier[:1]
	coloured(t, "abandoned")(&restored)
	must(t, h.store.Client().PutNetwork(t.Context(), restored.Restoring(0)))
	inForce("abandoned")
}

// TestRestoredAmongHosts: after the store lost everything, a host that was away restores an older definition, or a new
// host defines the network from its configuration. The hosts that use the network restore the last one, with all its
// revisions, and everybody follows it.
func TestRestoredAmongHosts(t *testing.T) {
	for _, tt := range []struct {
		name    string
		changes []string // the colours of the definition after the first
		other   func(all []registry.Network) *belief.Definition
	}{
		{"a host that was away during two changes, the second of which took the first back", []string{"last", "first"},
			func(all []registry.Network) *belief.Definition {
				return &belief.Definition{Network: all[0], Used: time.Now()}
			}},
		{"a host that was away during the second of them", []string{"last", "first"},
			func(all []registry.Network) *belief.Definition {
				return &belief.Definition{Network: all[1], Used: time.Now()}
			}},
		{"a new host", []string{"last"}, func([]registry.Network) *belief.Definition { return nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newHost(t, memory.New(), "a")
				n := registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22")}
				coloured(t, "first")(&n)
				must(t, a.store.Client().PutNetwork(t.Context(), n.Replacing(registry.Network{})))
				all := []registry.Network{a.inStore()}
				for _, c := range tt.changes {
					all = append(all, a.define(coloured(t, c)))
				}
				last := all[len(all)-1]
				running := a.runner().definition
				_, err := running.find(t.Context())
				must(t, err)

				empty(a.store)
				b := newHost(t, a.store, "b")
				other := b.runner().definition
				if other.known = tt.other(all); other.known != nil {
					restored := other.known.Network
					restored.CreateIndex, restored.ModifyIndex = 0, 0
					must(t, a.store.Client().PutNetwork(t.Context(), restored))
				}
				ctx, cancel := context.WithCancel(t.Context())
				var parts sync.WaitGroup
				for h, d := range map[*host]*definitionKeeper{a: running, b: other} {
					n, err := d.find(t.Context())
					must(t, err)
					parts.Go(func() { h.follow(ctx) })
					parts.Go(func() {
						for ctx.Err() == nil {
							if err := d.watch(ctx, n); errors.Is(err, errDefinitionChanged) {
								if d == running {
									t.Errorf("the running host has changed to %s", a.inStore().Backend.Object)
								}
								n, _ = d.find(ctx)
							}
						}
					})
				}
				time.Sleep(time.Minute)
				cancel()
				parts.Wait()
				for _, got := range []registry.Network{a.inStore(), running.known.Network, other.known.Network} {
					same := len(definition.Differences(got, last)) == 0 && slices.Equal(got.Earlier, last.Earlier)
					if !same || got.Revision != last.Revision {
						t.Errorf("got %+v, want %+v", got, last)
					}
				}
			})
		})
	}
}

// TestHasLost covers what of the store's answers means that it has lost the definition in force, or its last change.
func TestHasLost(t *testing.T) {
	h := newHost(t, memory.New(), "a")
	h.put("10.5.0.0/22", "recorder")
	older := h.define(func(*registry.Network) {}) // which gives it a revision
	now := h.define(func(n *registry.Network) { n.Backend = agenttest.Backend(t, "other", "") })
	r := h.runner()
	if r.Judge(older, nil) == belief.Lost || r.Judge(registry.Network{}, registry.ErrNetworkNotFound) == belief.Lost {
		t.Error("lost before it was known")
	}
	_, err := r.definition.find(t.Context())
	must(t, err)
	later := now.Replacing(now)
	deleted := func(at time.Duration) error {
		return &registry.DeletedError{Deletion: registry.Deletion{Network: "n", Time: time.Now().Add(at)}}
	}
	for _, tt := range []struct {
		name   string
		stored registry.Network
		err    error
		want   bool
	}{
		{"it has it", now, nil, false},
		{"it has a later one", later, nil, false},
		{"it has an older one", older, nil, true},
		{"it has none", registry.Network{}, registry.ErrNetworkNotFound, true},
		{"it was deleted later", registry.Network{}, deleted(time.Hour), false},
		{"it was deleted before", registry.Network{}, deleted(-time.Hour), true},
		{"an older one was deleted, by a clock that is ahead", registry.Network{}, &registry.DeletedError{Deletion: registry.Deletion{
			Network: "n", Time: time.Now().Add(2 * time.Hour), Lineage: registry.Lineage{Revision: older.Revision}, CreateIndex: now.CreateIndex,
			ModifyIndex: older.ModifyIndex}}, true},
		{"it does not answer", registry.Network{}, registry.ErrUnavailable, false},
		{"its record cannot be used", registry.Network{}, registry.ErrInvalid, false},
	} {
		if got := r.Judge(tt.stored, tt.err) == belief.Lost; got != tt.want {
			t.Errorf("%s: lost %t", tt.name, got)
		}
	}
	r.definition.forget()
	if r.Judge(registry.Network{}, registry.ErrNetworkNotFound) == belief.Lost {
		t.Error("lost after it was forgotten")
	}
}
