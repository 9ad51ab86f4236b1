package httpapi

import (
	"context"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
)

// TestProbeOutlastsRequests: a probe may take longer than the server gives other requests, and is answered all the
// same.
func TestProbeOutlastsRequests(t *testing.T) {
	h := newHost(t, func(l *Limits) { l.RequestTime = 50 * time.Millisecond })
	h.n.probe = func(ctx context.Context, _ api.ProbeRequest) (api.Probe, error) {
		select {
		case <-ctx.Done():
			return api.Probe{}, ctx.Err()
		case <-time.After(300 * time.Millisecond):
			return api.Probe{Network: "n"}, nil
		}
	}
	h.serve("127.0.0.1:0")
	if out, err := h.client.ProbePeers(t.Context(), "n", api.ProbeRequest{}); err != nil || out.Network != "n" {
		t.Errorf("%+v, %v", out, err)
	}
}

// TestHosts: a reader that waits is woken when what is known of a host changes, also this host's own health, and not by
// times.
func TestHosts(t *testing.T) {
	h := serving(t, nil)
	seen := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h.n.set(func() { h.n.hosts = []api.Host{{Node: "b", State: api.Passing, Seen: seen}} })
	first, err := h.client.Hosts(t.Context(), "n")
	must(t, err)
	if len(first.Hosts) != 1 || first.Hosts[0].Node != "b" || first.Index == 0 {
		t.Fatalf("%+v", first)
	}
	h.n.set(func() { h.n.hosts = []api.Host{{Node: "b", State: api.Passing, Seen: seen.Add(time.Second)}} })
	same, err := h.client.Hosts(t.Context(), "n")
	must(t, err)
	if same.Index != first.Index || !same.Hosts[0].Seen.After(seen) {
		t.Errorf("%+v after %+v", same, first)
	}
	woken := make(chan api.HostList, 1)
	go func() {
		list, err := h.client.Hosts(t.Context(), "n", api.Read{Index: first.Index})
		if err != nil {
			t.Error(err)
		}
		woken <- list
	}()
	h.readers(1)
	h.n.mu.Lock()
	h.n.hosts = []api.Host{{Node: "b", State: api.HostFailed}}
	h.n.mu.Unlock()
	h.options.Health.Set("n", "paths", api.Warning, "packets are lost") // which is a change as well
	if list := <-woken; len(list.Hosts) != 1 || list.Hosts[0].State != api.HostFailed || list.Index <= first.Index {
		t.Errorf("%+v", list)
	}
	_, err = h.client.Hosts(t.Context(), "elsewhere")
	agenttest.WantCode(t, "hosts of another network", err, 404)
}
