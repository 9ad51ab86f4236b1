package httpapi

import (
	"context"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// TestPutBack: a definition that the store has lost, and that this host has in force, keeps its revisions if an operator
// puts it back, and hosts that know nothing of it learn of the loss. A network that was deleted begins a new list.
func TestPutBack(t *testing.T) {
	const key = memory.Prefix + "/networks/n"
	ctx := context.Background()
	for _, tt := range []struct {
		name     string
		lose     func(h *host)
		backend  string
		same     bool // it is the revision that was lost
		replaces bool // it is a change of that
	}{
		{"lost", func(h *host) { h.store.Delete(key) }, `{"type":"recorder"}`, true, false},
		{"lost, and another one", func(h *host) { h.store.Delete(key) }, `{"type":"recorder","colour":"blue"}`, false, true},
		{"deleted", func(h *host) { must(t, h.registry.DeleteNetwork(ctx, "n")) }, `{"type":"recorder"}`, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, nil)
			h.serve("127.0.0.1:0")
			n, err := h.registry.Network(ctx, "n")
			must(t, err)
			known := n.Replacing(n)
			must(t, h.registry.PutNetwork(ctx, known))
			known, err = h.registry.Network(ctx, "n")
			must(t, err)
			h.n.set(func() { h.n.status.Definition, h.n.status.Defined = known, true })
			tt.lose(h)
			want := api.Network{Name: "n", Pools: []api.Pool{{Prefix: known.Plan[0].Prefix}}, Backend: []byte(tt.backend)}
			_, err = h.client.PutNetwork(ctx, want, false)
			must(t, err)
			now, err := h.registry.Network(ctx, "n")
			must(t, err)
			if same := now.Revision == known.Revision && len(now.Earlier) == len(known.Earlier); same != tt.same {
				t.Errorf("the same revision: %t", same)
			}
			if replaces := now.Replaced(known); replaces != tt.replaces {
				t.Errorf("a change of the one that was lost: %t", replaces)
			}
			if restored := !now.Restored.IsZero(); restored != (tt.same || tt.replaces) {
				t.Errorf("restored at %v", now.Restored)
			}
			if len(known.Earlier) != 1 || now.Revision == "" {
				t.Errorf("known %+v, now %+v", known, now)
			}
		})
	}
}
