package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestPutBack: a definition that the store has lost, and that this host has in force, keeps its revisions if an operator
// puts it back, and hosts that know nothing of it learn of the loss. A network that is defined after its deletion
// replaces the deleted one, and is not a restored one.
func TestPutBack(t *testing.T) {
	const key = memory.Prefix + "/networks/n"
	ctx := context.Background()
	for _, tt := range []struct {
		name     string
		lose     func(h *host)
		backend  string
		same     bool // it is the revision that was lost
		replaces bool // it replaces that
	}{
		{"lost", func(h *host) { h.store.Delete(key) }, `{"type":"recorder"}`, true, false},
		{"lost, and another one", func(h *host) { h.store.Delete(key) }, `{"type":"recorder","colour":"blue"}`, false, true},
		{"deleted", func(h *host) { must(t, h.registry.DeleteNetwork(ctx, "n")) }, `{"type":"recorder"}`, false, true},
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
				t.Errorf("a change of the one before: %t", replaces)
			}
			if restored := !now.Restored.IsZero(); restored != (tt.name != "deleted") {
				t.Errorf("restored at %v", now.Restored)
			}
			if len(known.Earlier) != 1 || now.Revision == "" {
				t.Errorf("known %+v, now %+v", known, now)
			}
		})
	}
}

// TestPutBackChanged: what differs from the definition that the store has lost is changed like in any other network.
// The hosts that exist count, also if the store has lost their leases.
func TestPutBackChanged(t *testing.T) {
	const (
		one  = `{"epoch":{"number":5}}`
		both = `{"epoch":{"number":5},"switch":{"to":{"type":"udp"}}}`
	)
	for _, tt := range []struct {
		name    string
		options string // of the definition that is lost, whose backend is vxlan
		wanted  string
		max     string // the last subnet of the wanted range
		known   string // which leases are known: "" for all of them, own, none, or unread
		refused int    // the code of the error without force, 0 for none
		says    string
		want    string
	}{
		{"another backend", one, `{"type":"udp"}`, "", "", 0, "", "b vxlan > udp epoch 5"},
		{"another backend, and no lease is known", one, `{"type":"udp"}`, "", "none", 0, "", "b vxlan > udp epoch 5"},
		{"another option", one, `{"type":"vxlan","direct_routing":true}`, "", "", 0, "", "b vxlan epoch 5"},
		{"another range during a switch", both, `{"type":"udp"}`, "10.5.2.0", "", 0, "", "b vxlan > udp epoch 5"},
		{"the one before a switch", both, `{"type":"vxlan"}`, "", "", 0, "", "b back vxlan > udp epoch 5"},
		{"a third backend", both, `{"type":"host-gw"}`, "", "", http.StatusConflict, "is that of neither", "a host-gw epoch 8"},
		{"a range without another host", one, `{"type":"vxlan"}`, "10.5.1.0", "", http.StatusConflict,
			"b (10.5.2.0/24) would lose the subnet", "b vxlan epoch 5"},
		{"a range without this host", one, `{"type":"vxlan"}`, "10.5.0.0", "own", http.StatusConflict,
			"a (10.5.1.0/24) would lose the subnet", "b vxlan epoch 5"},
		{"another backend, and the leases were not read", one, `{"type":"udp"}`, "", "unread", http.StatusServiceUnavailable,
			"not read yet", "b udp epoch 7"},
		{"the same, and the leases were not read", both, `{"type":"udp"}`, "", "unread", 0, "", "b vxlan > udp epoch 5"},
		{"deleted", both, `{"type":"udp"}`, "", "", 0, "", "a udp epoch 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, _ := newSwitchable(t, "vxlan", tt.options)
			h.serve("127.0.0.1:0")
			known, err := h.registry.Network(t.Context(), "n")
			must(t, err)
			h.n.set(func() { h.n.status.Definition = known })
			deleted := tt.name == "deleted"
			if deleted {
				must(t, h.registry.DeleteNetwork(t.Context(), "n"))
			} else {
				h.store.Delete(memory.Prefix + "/networks/n")
			}
			for _, key := range h.store.Keys(memory.Prefix + "/leases/n") {
				h.store.Delete(key)
			}
			switch tt.known {
			case "none":
				h.n.set(func() { h.n.status.Lease = registry.Lease{} })
				fallthrough
			case "own":
				h.n.leases.Set(registry.LeaseSet{})
			case "unread":
				h.n.leases.Clear()
			}
			pool := api.Pool{Prefix: known.Plan[0].Prefix}
			if tt.max != "" {
				pool.Min, pool.Max = pool.Prefix.Addr(), netip.MustParseAddr(tt.max)
			}
			wanted := api.Network{Name: "n", Pools: []api.Pool{pool}, Backend: []byte(tt.wanted)}
			if tt.known != "unread" || tt.refused == 0 {
				plan, err := h.client.PlanNetwork(t.Context(), wanted)
				must(t, err)
				if plan.Action != api.ActionCreate || plan.ModifyIndex != 0 || len(plan.Changes) < 4 || (len(plan.Refused) > 0) != (tt.refused > 0) {
					t.Errorf("planned %+v", plan)
				}
			}
			outdated := wanted
			outdated.ModifyIndex = known.ModifyIndex
			_, err = h.client.PutNetwork(t.Context(), outdated, true)
			agenttest.WantCode(t, "of the version that was lost", err, http.StatusConflict)
			_, err = h.client.PutNetwork(t.Context(), wanted, false)
			if tt.refused == 0 {
				must(t, err)
			} else {
				agenttest.WantCode(t, "without force", err, tt.refused, strings.Fields(tt.says)...)
				if keys := h.store.Keys(memory.Prefix + "/networks/"); len(keys) > 0 {
					t.Errorf("without force: stored %q", keys)
				}
				_, err = h.client.PutNetwork(t.Context(), wanted, true)
				must(t, err)
			}
			now, err := h.registry.Network(t.Context(), "n")
			must(t, err)
			if got := carriers(t, now); got != tt.want {
				t.Errorf("stored %s, want %s", got, tt.want)
			}
			if now.Restored.IsZero() != deleted || now.Replaced(known) == (now.Revision == known.Revision) {
				t.Errorf("stored %+v, known %+v", now, known)
			}
			if tt.max != "" && now.Plan[0].Max != pool.Max {
				t.Errorf("stored the range up to %s", now.Plan[0].Max)
			}
		})
	}
}

// TestSetBack: in a store that was set back, what an operator changes is the definition that hosts have in force, and not
// the older one, which they do not follow. The same holds for an older deletion.
func TestSetBack(t *testing.T) {
	wanted := func(kind, encryption string) func(context.Context, *host) error {
		return func(ctx context.Context, h *host) error {
			n, err := h.registry.Network(ctx, "n")
			if err != nil {
				n = h.n.Status().Definition
			}
			body := api.Network{Name: "n", Pools: []api.Pool{{Prefix: n.Plan[0].Prefix}}, Backend: []byte(kind), Encryption: encryption}
			plan, err := h.client.PlanNetwork(ctx, body)
			if err != nil || plan.Action != api.ActionCreate || (len(plan.Refused) > 0) != (encryption == "") {
				return fmt.Errorf("planned %+v, %w", plan, err)
			}
			body.ModifyIndex = plan.ModifyIndex
			_, err = h.client.PutNetwork(ctx, body, encryption == "")
			return err
		}
	}
	for _, tt := range []struct {
		name       string
		older      func(h *host) // what the store has instead
		change     func(context.Context, *host) error
		want       string
		encryption string
		same       bool // it is the revision that was in force
	}{
		{"an older version, and the one in force", nil, wanted(`{"type":"wireguard"}`, "required"),
			"b wireguard epoch 1", "required", true},
		{"an older version, and another backend", nil, wanted(`{"type":"udp"}`, ""), "b wireguard > udp epoch 1", "", false},
		{"an older version, and new keys", nil, func(ctx context.Context, h *host) error {
			_, err := h.client.ChangeSwitch(ctx, "n", api.RotateKeys)
			return err
		}, "b wireguard > wireguard epoch 1", "required", false},
		{"an older deletion", func(h *host) {
			h.store.Delete(memory.Prefix + "/networks/n")
			must(t, h.registry.PutDeletion(t.Context(), registry.Deletion{Network: "n", Time: time.Now().Add(-48 * time.Hour)}))
		}, wanted(`{"type":"udp"}`, ""), "b wireguard > udp epoch 1", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, _ := newSwitchable(t, "vxlan", `{}`)
			h.serve("127.0.0.1:0")
			older := h.store.Backup()
			before, err := h.registry.Network(t.Context(), "n")
			must(t, err)
			known := before.Replacing(before)
			known.Encryption, known.Epoch.Number = registry.EncryptionRequired, 1
			options, err := h.options.Backends["wireguard"].Normalize([]byte(`{}`))
			must(t, err)
			known.Backend, err = registry.NewBackend("wireguard", options)
			must(t, err)
			must(t, h.registry.PutNetwork(t.Context(), known))
			known, err = h.registry.Network(t.Context(), "n")
			must(t, err)
			h.n.set(func() { h.n.status.Definition, h.n.used = known, time.Now() })
			if tt.older != nil {
				tt.older(h)
			} else {
				h.store.Restore(older)
			}
			must(t, tt.change(t.Context(), h))
			now, err := h.registry.Network(t.Context(), "n")
			must(t, err)
			if got := carriers(t, now); got != tt.want || now.Encryption != tt.encryption {
				t.Errorf("stored %s, encryption %q; want %s, %q", got, now.Encryption, tt.want, tt.encryption)
			}
			if same := now.Revision == known.Revision; now.Restored.IsZero() || same != tt.same || now.Replaced(known) == same {
				t.Errorf("stored %+v, known %+v", now, known)
			}
		})
	}
}
