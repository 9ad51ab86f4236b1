package network

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestRestoreDeletion checks what a host does about the deletion of a network that the store has lost.
func TestRestoreDeletion(t *testing.T) {
	deletion := registry.Deletion{Network: "n", Time: time.Now().Add(-time.Hour).Truncate(time.Second)}
	isDeleted := func(err error) bool {
		deleted := &registry.DeletedError{}
		return errors.As(err, &deleted) && deleted.Time.Equal(deletion.Time)
	}
	for _, tt := range []struct {
		name    string
		prepare func(h *host)
		right   func(n registry.Network, err error) bool // what restoreDeletion returns
		stored  bool                                     // the store has the deletion then
	}{
		{"nothing is left", func(*host) {}, func(_ registry.Network, err error) bool { return isDeleted(err) }, true},
		{"an operator has defined the network",
			func(h *host) { h.put("10.6.0.0/22", "recorder") },
			func(n registry.Network, err error) bool {
				return err == nil && n.Plan.Prefixes()[0].String() == "10.6.0.0/22"
			}, false},
		{"this host has a session from before",
			func(h *host) {
				h.put("10.5.0.0/22", "recorder")
				h.acquire()
				h.store.Delete(networkKey)
			},
			func(_ registry.Network, err error) bool { return isDeleted(err) }, true},
		{"another host takes part",
			func(h *host) {
				h.put("10.5.0.0/22", "recorder")
				newHost(h.t, h.store, "b").acquire()
				h.store.Delete(networkKey)
			},
			func(_ registry.Network, err error) bool {
				return errors.Is(err, errDefinitionLost) && strings.Contains(err.Error(), "waiting for b")
			}, false},
		{"it may not be written",
			func(h *host) { h.registry.SetOne("PutDeletion", errors.New("permission denied")) },
			func(_ registry.Network, err error) bool {
				return isDeleted(err) && strings.Contains(err.Error(), "cannot put it back: permission denied")
			}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, memory.New(), "a")
			tt.prepare(h)
			n, err := h.runner().definition.restoreDeletion(t.Context(), &registry.DeletedError{Deletion: deletion})
			if !tt.right(n, err) {
				t.Errorf("%+v, %v", n, err)
			}
			if _, err := h.store.Client().Network(t.Context(), "n"); isDeleted(err) != tt.stored {
				t.Errorf("the store has %v", err)
			}
		})
	}
}
