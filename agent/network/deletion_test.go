package network

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// deletionInStore returns the store's record of the deletion of network n, nil if there is none.
func (m *member) deletionInStore() *registry.Deletion {
	_, err := m.store.Client().Network(context.Background(), "n")
	if deleted := (*registry.DeletedError)(nil); errors.As(err, &deleted) {
		return &deleted.Deletion
	}
	return nil
}

// checkEvents returns the events of the network's checks, without what follows the first semicolon or digit.
func (m *member) checkEvents() (out []string) {
	all, _, _ := m.deps.Reports.Events.After(0, "n")
	for _, e := range all {
		if e.Kind == api.EventCheck {
			end := max(strings.IndexAny(e.Message+";", ";0123456789"), 0)
			out = append(out, e.Severity+" "+strings.TrimSpace(e.Message[:end]))
		}
	}
	return out
}

// TestEventsOfAStart: a host that starts adds no event for a check that only had no result yet, and adds one for a
// network that was deleted before, and for its recovery.
func TestEventsOfAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a").start()
		a.ready()
		if got := a.checkEvents(); len(got) > 0 {
			t.Errorf("a network that can be used: %q", got)
		}
		a.stop()
		must(t, a.store.Client().DeleteNetwork(t.Context(), "n"))
		b := newMember(t, a.store, "b").start()
		b.check(health.Network, api.Critical, "was deleted at")
		b.put("10.5.0.0/22", "recorder")
		b.ready()
		want := []string{"critical network: the network was deleted at", "info network recovered: defined"}
		if got := b.checkEvents(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestDeletedNetworkStaysDeleted: a host that knows that a network was deleted does not define it again when the store
// has lost the record of the deletion. It puts the record back.
func TestDeletedNetworkStaysDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a").start()
		a.ready()
		must(t, a.store.Client().DeleteNetwork(t.Context(), "n"))
		a.check(health.Network, api.Critical, "was deleted at", "leno network apply")
		first := a.deletionInStore()
		putBack := func(when string) {
			t.Helper()
			agenttest.Eventually(t, func() error {
				switch d := a.deletionInStore(); {
				case d == nil:
					return errors.New(when + ": the record of the deletion is not in the store")
				case !d.Time.Equal(first.Time):
					return errors.New(when + ": another deletion")
				}
				return nil
			})
			a.check(health.Network, api.Critical, "was deleted at", "leno network apply")
		}
		empty(a.store)
		putBack("while it runs")
		a.stop()
		empty(a.store)
		a.start()
		putBack("after a restart")

		n, err := definition.FromBlock(a.config.Networks[0])
		must(t, err)
		must(t, a.store.Client().PutNetwork(t.Context(), n))
		a.ready()
		if _, err := os.Stat(state.DeletionPath(a.config.DataDir, "n")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the deletion is still remembered: %v", err)
		}
		a.stop()
		empty(a.store)
		a.start().ready()
	})
}

// TestRememberedDeletion covers what an agent does about a configured network whose deletion an earlier process wrote
// down.
func TestRememberedDeletion(t *testing.T) {
	apply := func(h *member) {
		n, err := definition.FromBlock(h.config.Networks[0])
		must(h.t, err)
		must(h.t, h.store.Client().PutNetwork(context.Background(), n))
	}
	hourAgo := func() string { return time.Now().Add(-time.Hour).UTC().Format(time.RFC3339) }
	for _, tt := range []struct {
		name    string
		file    string // DELETED stands for an hour ago
		prepare func(h *member)
		local   func(c *config.Network)
		defined bool   // whether the network is defined and the host takes part
		says    string // what the check says otherwise
		logs    string // what a line of the log says
		record  bool   // whether the store has the record of the deletion, if the network is not defined
	}{
		{"not remembered", "", func(h *member) {
			apply(h)
			must(h.t, h.store.Client().DeleteNetwork(context.Background(), "n"))
		}, nil, false, "leno network apply", "", true},
		{"lost by the store", `{"version":1,"network":"n","deleted":"DELETED"}`, nil, nil, false, "was deleted at", "", true},
		{"lost, and the block has no pools", `{"version":1,"network":"n","deleted":"DELETED"}`, nil,
			func(c *config.Network) { c.Pools, c.Backend = nil, nil }, false, "was deleted at", "", true},
		{"lost, without the right to put it back", `{"version":1,"network":"n","deleted":"DELETED"}`,
			func(h *member) { h.registry.SetOne("PutDeletion", registry.ErrDenied) }, nil, false, "cannot put it back", "", false},
		{"defined again", `{"version":1,"network":"n","deleted":"DELETED"}`, apply, nil, true, "", "", false},
		{"defined just before the record is put back", `{"version":1,"network":"n","deleted":"DELETED"}`, func(h *member) {
			once := sync.OnceFunc(func() { apply(h) })
			h.registry.SetBefore(func(call string) {
				if call == "PutDeletion" {
					once()
				}
			})
		}, nil, true, "", "", false},
		{"lost, by a clock that is behind", `{"version":1,"network":"n","deleted":"1999-01-01T00:00:00Z"}`, nil, nil, false,
			"was deleted at", "", true},
		{"broken", `{"version":1,`, nil, nil, true, "", "/deleted/n.json", false},
		{"of another version", `{"version":9,"network":"n","deleted":"DELETED"}`, nil, nil, true, "", "version 9", false},
		{"of another network", `{"version":1,"network":"m","deleted":"DELETED"}`, nil, nil, true, "", `network \"m\"`, false},
		{"without a time", `{"version":1,"network":"n"}`, nil, nil, true, "", "/deleted/n.json", false},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			h := newMember(t, memory.New(), "a")
			if tt.file != "" {
				must(t, state.WriteFile(state.DeletionPath(h.config.DataDir, "n"), []byte(strings.Replace(tt.file, "DELETED", hourAgo(), 1)), 0o600))
			}
			if tt.local != nil {
				tt.local(&h.config.Networks[0])
			}
			if tt.prepare != nil {
				tt.prepare(h)
			}
			h.start()
			if tt.defined {
				h.ready()
				if _, err := os.Stat(state.DeletionPath(h.config.DataDir, "n")); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the deletion is still remembered: %v", err)
				}
			} else {
				h.check(health.Network, api.Critical, tt.says)
				if d := h.deletionInStore(); (d != nil) != tt.record {
					t.Errorf("the store has %+v", d)
				}
			}
			if tt.logs != "" && len(h.said.With(tt.logs)) == 0 {
				t.Errorf("the log does not name %s", tt.logs)
			}
		})
	}
}

// TestOlderDeletionRemembered: a deletion that one host remembers does not end a network that was defined after it,
// when the store loses both.
func TestOlderDeletionRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		a, b := newMember(t, store, "a"), newMember(t, store, "b")
		must(t, state.WriteFile(state.DeletionPath(b.config.DataDir, "n"), []byte(`{"version":1,"network":"n","deleted":"`+
			time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)+`"}`), 0o600))
		a.config.Networks[0].Backend = &config.Backend{Type: "other"} // distinguishes its definition from the one that b would make
		a.start()
		a.ready()
		subnet := a.subnet()
		b.registry.Set(registry.ErrUnavailable) // b does not hear of the network
		b.start()
		empty(store)
		b.registry.Set(nil)
		b.ready()
		a.ready()
		if n := a.inStore(); n.Backend.Type != "other" || a.subnet() != subnet {
			t.Errorf("the store has %+v, a %s, before %s", n, a.subnet(), subnet)
		}
	})
}
