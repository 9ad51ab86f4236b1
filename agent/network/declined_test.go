package network

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/memory"
)

// flannelStore is a store in which definitions without a revision were written by flannel's operator.
type flannelStore struct{ registry.Registry }

func (s flannelStore) Network(ctx context.Context, name string) (registry.Network, error) {
	n, err := s.Registry.Network(ctx, name)
	n.Foreign = err == nil && n.Revision == ""
	return n, err
}

// TestFlannelConfigurationEdited: what flannel's operator changes is declined until it is confirmed with `leno network
// apply` or written back. Check and status name the difference and the command. A host that is started declines it as
// well, unless it knows no definition.
func TestFlannelConfigurationEdited(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(t *testing.T, n *registry.Network)
		want string // in the reason of the check, "" if the edit is no change
	}{
		{"the same again", func(*testing.T, *registry.Network) {}, ""},
		{"without leno's options", func(t *testing.T, n *registry.Network) {
			n.Backend = agenttest.Backend(t, "recorder", `{}`)
		}, ""},
		{"another pool", func(t *testing.T, n *registry.Network) { n.Plan = agenttest.Plan(t, "10.6.0.0/22") },
			"ipv4.prefix: 10.5.0.0/22 becomes 10.6.0.0/22"},
		{"another subnet length", func(_ *testing.T, n *registry.Network) {
			n.Plan = registry.Plan{{Prefix: n.Plan[0].Prefix, SubnetLen: 25}}
		}, "ipv4.subnet_len: 24 becomes 25"},
		{"another backend", func(t *testing.T, n *registry.Network) { n.Backend = agenttest.Backend(t, "other", "") },
			"backend.type: recorder becomes other"},
		{"another option", func(t *testing.T, n *registry.Network) {
			n.Backend = agenttest.Backend(t, "recorder", `{"vni":2}`)
		}, "backend.vni: none becomes 2"},
	} {
		for _, end := range []string{"confirmed", "written back"} {
			t.Run(tt.name+", "+end, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testEdited(t, tt.edit, tt.want, end == "confirmed") })
			})
		}
	}
}

func testEdited(t *testing.T, edit func(*testing.T, *registry.Network), want string, confirm bool) {
	h := newHost(t, memory.New(), "a")
	must(t, h.store.Client().PutNetwork(t.Context(), registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22"),
		Backend: agenttest.Backend(t, "recorder", `{"checksum_offload":"off"}`)}))
	h.deps.Store.Registry = flannelStore{h.registry}
	h.config.Networks[0].Pools = nil
	r := h.runner()
	d := r.definition
	n, err := d.find(t.Context())
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go h.follow(ctx)
	ended := make(chan error, 1)
	go func() { ended <- d.watch(ctx, n) }()
	write := func(change func(*registry.Network)) {
		now := h.inStore()
		change(&now)
		must(t, h.store.Client().PutNetwork(t.Context(), now))
		time.Sleep(time.Minute)
		synctest.Wait()
	}
	write(func(n *registry.Network) { edit(t, n) })
	if len(ended) > 0 {
		t.Fatalf("the edit takes effect: %v", <-ended)
	}
	reason, notes := h.reason(health.Network), strings.Join(r.Status().Local.Notes, "\n")
	if want == "" {
		if r.Judge(h.inStore(), nil) == belief.Declined || strings.Contains(reason, "flannel") || notes != "" {
			t.Errorf("check: %q, notes: %q", reason, notes)
		}
		return
	}
	stored, err := h.deps.Store.Registry.Network(ctx, "n")
	must(t, err)
	if r.Judge(stored, nil) != belief.Declined || !strings.Contains(reason, want) || !strings.Contains(reason, "leno network apply") || notes != reason {
		t.Errorf("check: %q, notes: %q, want %q", reason, notes, want)
	}
	started := h.runner().definition
	started.known = &belief.Definition{Network: n, Used: time.Now()}
	if got, err := started.find(ctx); err != nil || got.Plan[0] != n.Plan[0] || !got.Backend.Equal(n.Backend) {
		t.Errorf("a host that is started has %+v, %v", got, err)
	}
	if confirm {
		write(func(now *registry.Network) { *now = now.Replacing(n) })
		if err := <-ended; !errors.Is(err, errDefinitionChanged) {
			t.Errorf("after it was confirmed: %v", err)
		}
		if _, err := d.find(ctx); err != nil || len(r.Status().Local.Notes) > 0 {
			t.Errorf("after it was confirmed: %v, %v", r.Status().Local.Notes, err)
		}
		return
	}
	write(func(now *registry.Network) { now.Plan, now.Backend = n.Plan, n.Backend })
	if reason := h.reason(health.Network); reason != "defined" || len(r.Status().Local.Notes) > 0 || len(ended) > 0 {
		t.Errorf("after it was written back: %q, %v", reason, r.Status().Local.Notes)
	}
}
