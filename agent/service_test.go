package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/internal/testkit/faulty"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// serviceStore is a store with a service catalogue. name is the name that the store's own agent gives this host, "" if
// it gives none.
type serviceStore struct {
	*faulty.Registry
	registry.Catalog
	name string

	mu        sync.Mutex
	service   registry.Service
	verdicts  []registry.Verdict
	withdrawn []string
}

func (c *serviceStore) Abilities() registry.Abilities {
	can := c.Registry.Abilities()
	can.NodeName, can.Catalog = c.NodeName, c
	return can
}

func (c *serviceStore) NodeName(ctx context.Context) (string, error) {
	return c.name, c.Call(ctx, "NodeName", func(context.Context) error { return nil })
}

func (c *serviceStore) Announce(_ context.Context, s registry.Service, v registry.Verdict) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.service, c.verdicts = s, append(c.verdicts, v)
	return nil
}

func (c *serviceStore) Duplicates(context.Context, registry.Service, string) ([]registry.Service, error) {
	return nil, nil
}

func (c *serviceStore) Withdraw(_ context.Context, s registry.Service) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.withdrawn = append(c.withdrawn, s.ID)
	return nil
}

func (c *serviceStore) last() (registry.Service, registry.Verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.verdicts) == 0 {
		return c.service, registry.Verdict{}
	}
	return c.service, c.verdicts[len(c.verdicts)-1]
}

// TestAnnounce: the store's catalogue describes the agent and its health, and no longer once the agent was stopped.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a").real()
	c := &serviceStore{Registry: a.registry, name: "here"}
	a.catalog = c
	a.config.Consul.Service = "leno"
	a.config.HTTP.Address = "127.0.0.1:0"
	a.start()
	verdict := func(status, says string) {
		t.Helper()
		eventually(t, func() error {
			if _, v := c.last(); v.Status != status || !strings.Contains(v.Output, says) {
				return fmt.Errorf("verdict %+v", v)
			}
			return nil
		})
	}
	status := func() string { report, _ := a.agent.env.Reports.Health.Report(); return report.Status }
	a.ready()
	a.check(health.Snapshot, api.Passing)
	verdict(status(), "")
	eventually(t, func() error { // including what the host got after its first announcement
		if s, _ := c.last(); len(s.Tags) == 0 {
			return fmt.Errorf("no tags: %+v", s)
		}
		return nil
	})
	s, _ := c.last()
	if s.Epoch != "" || s.Name != "leno" || s.ID != "leno-a" || s.Address != a.place.Addrs[0] || s.Port == 0 || fmt.Sprint(s.Tags) != "[n]" {
		t.Errorf("%+v", s)
	}
	if want := fmt.Sprintf("http://127.0.0.1:%d/healthz?format=text", s.Port); s.HealthURL != want {
		t.Errorf("health at %q, want %q", s.HealthURL, want)
	}
	subnet := a.subnet().String()
	want := map[string]string{"version": "test", "node": "a", "node_id": s.Meta["node_id"], "network": "n", "subnet": subnet, "backend": "recorder",
		"subnet_n": subnet, "backend_n": "recorder"}
	if diff := cmp.Diff(want, s.Meta); diff != "" || s.Meta["node_id"] == "" {
		t.Errorf("meta (-want +got):\n%s", diff)
	}
	a.recorder.setFail(errors.New("no such device"))
	a.kick()
	verdict(api.Critical, "n device: no such device")

	// The service is announced again after the store was set back, because its catalogue was, too, even if the agent's own
	// lease is unchanged.
	lease, _ := mustRunner(t, a).Lease()
	a.recorder.setFail(nil)
	a.store.Restore(a.store.Backup())
	a.rival("b", netip.Prefix{}) // wakes the watches
	eventually(t, func() error {
		if now, _ := c.last(); now.Epoch == s.Epoch {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
	if now, _ := mustRunner(t, a).Lease(); now.ModifyIndex != lease.ModifyIndex {
		t.Errorf("the lease was written again: %+v", now)
	}
	must(t, a.stop())
	if diff := cmp.Diff([]string{"leno-a"}, c.withdrawn); diff != "" {
		t.Errorf("withdrawn (-want +got):\n%s", diff)
	}
}

// TestFault: a fault ends the agent once, here that the host lost its subnet while no agent ran. The service stays in the
// catalogue.
func TestFault(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a, _, subnet, _ := pair(t)
		c := &serviceStore{Registry: a.registry, name: "here"}
		a.catalog, a.config.Consul.Service = c, "leno"
		a.config.Lease.OnLost = config.OnLostExit
		a.remains = waiting(subnet)
		must(t, a.store.Client().Revoke(t.Context(), "n", subnet))
		a.start()
		var lost *lease.LostError
		if err := a.wait(); !errors.As(err, &lost) || lost.Old != subnet.String() || lost.New == lost.Old {
			t.Fatalf("%v", err)
		}
		if len(c.withdrawn) > 0 {
			t.Errorf("withdrawn is %q", c.withdrawn)
		}
		a.start().ready()
		if now := a.subnet(); now == subnet {
			t.Errorf("still on %s", now)
		}
	})
}

// rival acquires a lease of network n for another host, which has no agent.
func (h *host) rival(name string, prefer netip.Prefix) registry.Lease {
	h.t.Helper()
	client, like := h.store.Client(), agenttest.Lease(name, 0, "", 0)
	n, err := client.Network(context.Background(), "n")
	must(h.t, err)
	lease, err := client.Acquire(context.Background(), n, registry.Claim{Node: name, NodeID: like.NodeID, PublicIPs: like.PublicIPs,
		MTU: 1450, Backend: like.Backend, Prefer: prefer, TTL: time.Hour, Hold: time.Hour})
	must(h.t, err)
	return lease
}
