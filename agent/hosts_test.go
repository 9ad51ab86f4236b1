package agent

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/internal/testkit/faulty"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// gossiping is a store whose agents know of each other.
type gossiping struct {
	*faulty.Registry
	mu      sync.Mutex
	members []registry.Member
}

func (g *gossiping) Abilities() registry.Abilities {
	can := g.Registry.Abilities()
	can.Members = g.Members
	return can
}

func (g *gossiping) Members(context.Context) ([]registry.Member, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.members, nil
}

// set makes the only member of an address have a status.
func (g *gossiping) set(addr netip.Addr, status string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members = []registry.Member{{Node: "consul-b", Addr: addr, Status: status}}
}

// TestHosts: a host that the store's agents report as failed is shown so in the list of hosts and of peers, although its
// lease is held and packets reach it. A reader that waits is told.
func TestHosts(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a, b := newHost(t, store, "a"), newHost(t, store, "b").start()
		known := &gossiping{Registry: a.registry}
		a.catalog, a.config.ProbeInterval = known, 5*time.Second
		a.start().ready()
		a.applies(a.subnet().String() + " <- b@" + b.subnet().String())
		addr := b.place.Addrs[0]
		var index uint64
		shows := func(want string) {
			t.Helper()
			agenttest.Eventually(t, func() error {
				list, err := a.client.Hosts(t.Context(), "n", api.Read{Index: index})
				if err != nil {
					return err
				}
				var got []string
				for _, h := range list.Hosts {
					text := fmt.Sprintf("%s %s", h.Node, h.State)
					if h.Member != "" {
						text += " " + h.Member
					}
					if h.Path != nil {
						text += " " + h.Path.State
					}
					got = append(got, text)
				}
				index = list.Index
				if text := strings.Join(got, ", "); text != want {
					return fmt.Errorf("%s, want %s", text, want)
				}
				return nil
			})
		}
		shows("b unknown reached, a passing")
		known.set(addr, registry.MemberFailed)
		shows("b failed failed reached, a passing")
		peers, err := a.client.Peers(t.Context(), "n")
		must(t, err)
		if p := peers.Peers[0]; p.Member != registry.MemberFailed || !p.Held || p.Path.State != api.PathReached {
			t.Errorf("%+v", p)
		}
		known.set(addr, registry.MemberAlive)
		shows("b unknown alive reached, a passing")
		known.set(netip.MustParseAddr("198.51.100.1"), registry.MemberFailed) // no host of the network
		shows("b unknown reached, a passing")
		must(t, a.client.ReleaseLease(t.Context(), "n"))
		list, err := a.client.Hosts(t.Context(), "n", api.Read{})
		must(t, err)
		if len(list.Hosts) != 1 || list.Hosts[0].Node != "b" {
			t.Errorf("after the release: %+v", list.Hosts)
		}
	})
}
