package httpapi

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/hostgw"
	"github.com/lenonet/leno/backend/switchover"
	"github.com/lenonet/leno/backend/udp"
	"github.com/lenonet/leno/backend/vxlan"
	"github.com/lenonet/leno/backend/wireguard"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/internal/testkit/faulty"
	"github.com/lenonet/leno/registry"
)

// newSwitchable returns a host of network n, with the backends between which networks are switched. The network has the
// given backend, and in the store there is a lease of host b.
func newSwitchable(t *testing.T, kind, options string) (*host, *faulty.Registry) {
	t.Helper()
	h := newHost(t, nil)
	store := faulty.New(h.registry)
	h.registry, h.options.Registry = store, store
	h.options.Backends = map[string]backend.Type{
		"host-gw": hostgw.Type(), "udp": udp.Type(), "vxlan": vxlan.Type(), "wireguard": wireguard.Type()}
	n, err := h.registry.Network(t.Context(), "n")
	must(t, err)
	d, err := carriage.Of(agenttest.Carriage(t, kind, options)).Normalize(h.options.Backends)
	must(t, err)
	changed, err := carriage.Set(n.Replacing(n), d)
	must(t, err)
	must(t, h.registry.PutNetwork(t.Context(), changed))
	_, err = h.registry.Acquire(t.Context(), changed, registry.Claim{Node: "b", NodeID: "id-b", MTU: 1400, Backend: changed.Backend,
		PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.98")}, TTL: time.Minute})
	must(t, err)
	return h, store
}

// carriers describes the backends of a network's definition like "b back vxlan > udp epoch 5": the device of the
// current backend, and the direction if it is not forward.
func carriers(t *testing.T, n registry.Network) string {
	t.Helper()
	def := carriage.Of(n.Carriage())
	words := []string{"a"}
	if def.Current.IsOnDeviceB() {
		words[0] = "b"
	}
	if def.Direction != switchover.Forward {
		words = append(words, string(def.Direction))
	}
	words = append(words, def.Current.Type)
	if def.Next != nil {
		words = append(words, ">", def.Next.Type)
	}
	return fmt.Sprintf("%s epoch %d", strings.Join(words, " "), def.Current.Epoch)
}

// TestForce: force makes a change that is refused otherwise, and makes gradually what can be made gradually. What it
// stores is what the plan shows.
func TestForce(t *testing.T) {
	const toUDP = `{"epoch":{"number":5},"switch":{"to":{"type":"udp"}}}`
	for _, tt := range []struct {
		name    string
		options string // of the definition in the store, whose backend is vxlan
		wanted  string
		unread  bool   // the leases cannot be read
		refused string // without force
		want    string
		action  string // of the plan
	}{
		{"another backend", `{"epoch":{"number":5}}`, `{"type":"udp"}`, false, "", "b vxlan > udp epoch 5", api.ActionSwitch},
		{"another VNI and port", `{"epoch":{"number":5}}`, `{"type":"vxlan","vni":2,"port":8473}`, false, "",
			"b vxlan > vxlan epoch 5", api.ActionSwitch},
		{"an option that needs the same port", `{"epoch":{"number":5}}`, `{"type":"vxlan","gbp":true}`, false,
			"both need vxlan with gbp vni 1 on port 8472", "b vxlan epoch 5", api.ActionUpdate},
		{"a third backend", toUDP, `{"type":"host-gw"}`, false, "is that of neither", "a host-gw epoch 8", api.ActionUpdate},
		{"the definition of a switch", toUDP, `{"type":"udp"}`, false, "", "b vxlan > udp epoch 5", api.ActionNone},
		{"the one before a switch", toUDP, `{"type":"vxlan"}`, false, "", "b back vxlan > udp epoch 5", api.ActionSwitch},
		{"without the leases", `{"epoch":{"number":5}}`, `{"type":"vxlan","vni":2}`, true, "permission denied",
			"b vxlan epoch 5", ""},
		{"the one before a switch, without the leases", toUDP, `{"type":"vxlan"}`, true, "permission denied",
			"b vxlan epoch 5", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, store := newSwitchable(t, "vxlan", tt.options)
			h.serve("127.0.0.1:0")
			before, err := h.registry.Network(t.Context(), "n")
			must(t, err)
			h.n.set(func() { h.n.status.Definition = before })
			wanted := api.Network{Name: "n", Pools: []api.Pool{{Prefix: before.Plan[0].Prefix}}, Backend: []byte(tt.wanted),
				ModifyIndex: before.ModifyIndex}
			plan, err := h.client.PlanNetwork(t.Context(), wanted)
			must(t, err)
			if tt.unread {
				store.SetOne("WatchLeases", registry.ErrDenied)
			}
			if tt.refused != "" {
				_, err := h.client.PutNetwork(t.Context(), wanted, false)
				code := http.StatusConflict
				if tt.unread {
					code = http.StatusForbidden
				}
				agenttest.WantCode(t, "without force", err, code, tt.refused)
				now, err := h.registry.Network(t.Context(), "n")
				if must(t, err); now.ModifyIndex != before.ModifyIndex {
					t.Errorf("without force: stored %+v", now)
				}
			}
			_, err = h.client.PutNetwork(t.Context(), wanted, true)
			must(t, err)
			now, err := h.registry.Network(t.Context(), "n")
			must(t, err)
			if got := carriers(t, now); got != tt.want || !now.Replaced(before) {
				t.Errorf("stored %s, want %s", got, tt.want)
			}
			if tt.unread {
				return
			}
			if plan.Action != tt.action {
				t.Errorf("planned %s, want %s", plan.Action, tt.action)
			}
			var refusals []string
			for _, r := range plan.Refused {
				if !r.Force {
					t.Errorf("planned: %s cannot be forced", r.Reason)
				}
				refusals = append(refusals, r.Reason)
			}
			if all := strings.Join(refusals, "; "); (all == "") != (tt.refused == "") || !strings.Contains(all, tt.refused) {
				t.Errorf("planned: refused %q, want %q", all, tt.refused)
			}
		})
	}
}
