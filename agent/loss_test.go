package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestCheckLoss: a configuration that lacks something that no program leaves out on purpose is refused. The refusal names
// what is missing.
func TestCheckLoss(t *testing.T) {
	n, m := config.Network{Name: "n"}, config.Network{Name: "m"}
	watch := func(c *config.Config) { c.Networks, c.WatchNetworks, c.AllowedNetworks = nil, true, []string{"*"} }
	for _, tt := range []struct {
		name   string
		before func(c *config.Config)
		change func(c *config.Config)
		wants  []string // words of the refusal; none if the configuration is taken over
	}{
		{"a file that is empty", nil, func(c *config.Config) { c.Empty, c.Networks = c.Files[1:], c.Networks[:1] }, []string{"b.hcl is empty", "leno reload -force"}},
		{"a file that was empty", func(c *config.Config) { c.Empty = c.Files[1:] }, func(c *config.Config) { c.Networks = c.Networks[:1] }, nil},
		{"a file that is new, and empty", nil, func(c *config.Config) { c.Files, c.Empty = append(c.Files, "c.hcl"), []string{"c.hcl"} }, nil},
		{"a file that is gone", nil, func(c *config.Config) { c.Files, c.Networks = c.Files[:1], c.Networks[:1] }, nil},
		{"the last networks", nil, func(c *config.Config) { c.Networks = nil }, []string{"would leave m, n", "leno reload -force"}},
		{"everything", nil, func(c *config.Config) { c.Empty, c.Networks = c.Files, nil }, []string{"a.hcl is empty", "b.hcl is empty", "would leave m, n"}},
		{"the last networks, watched", watch, func(c *config.Config) { c.WatchNetworks = false }, []string{"would leave n"}},
		{"all blocks, and the networks are watched", nil, watch, nil},
		{"all blocks, and other networks are watched", nil, func(c *config.Config) { watch(c); c.AllowedNetworks = []string{"zzz"} }, []string{"would leave m, n"}},
		{"the patterns, by one that fits no network", watch, func(c *config.Config) { c.AllowedNetworks = []string{"zzz"} }, []string{"would leave n"}},
		{"some patterns", watch, func(c *config.Config) { c.AllowedNetworks = []string{"zzz", "n"} }, nil},
		{"some patterns, and a block is new", watch, func(c *config.Config) { c.AllowedNetworks, c.Networks = nil, []config.Network{m} }, nil},
	} {
		old := config.Config{Files: []string{"a.hcl", "b.hcl"}, Networks: []config.Network{n, m}}
		names := []string{"m", "n"}
		if tt.before != nil {
			tt.before(&old)
		}
		if old.WatchNetworks {
			names = []string{"n"}
		}
		now := old
		now.Files, now.Networks = slices.Clone(now.Files), slices.Clone(now.Networks)
		tt.change(&now)
		err := checkLoss(old, now, names)
		if (err != nil) != (len(tt.wants) > 0) {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		for _, want := range tt.wants {
			if !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "nothing was changed: ") {
				t.Errorf("%s: %v, want %q", tt.name, err, want)
			}
		}
	}
}

// wide gives the host's network so many subnets that the host does not get the same one twice by chance.
func (h *host) wide() *host {
	h.config.Networks[0].Pools = []config.Pool{{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 30}}
	return h
}

// TestStartWithoutNetworks: an agent whose configuration names no network, or only patterns that no network of the host
// matches, leaves the networks of an earlier process as they are, and says so, until an operator puts them back or
// confirms that they are to be left.
func TestStartWithoutNetworks(t *testing.T) {
	ctx := context.Background()
	for _, way := range []string{"put back", "confirmed", "pattern corrected", "pattern confirmed"} {
		subtest(t, way, func(t *testing.T) {
			watched := strings.HasPrefix(way, "pattern")
			a := newHost(t, memory.New(), "a").wide()
			with := a.config
			c := with
			a.refresh = func() (config.Config, error) { return c, nil }
			a.start().ready()
			subnet, file := a.subnet(), with.Networks[0].SubnetFile
			must(t, a.stop())
			applied, rules := len(a.recorder.tries()), len(a.wall.names())

			a.config.Networks, a.config.WatchNetworks, a.config.AllowedNetworks = nil, watched, []string{"zzz"}
			c = a.config
			a.start()
			a.check(health.Network, api.Critical, "takes part in n", "leno reload -force")
			eventually(t, func() error { // by then the agent has had the time to leave
				if a.agent.self().NodeName == "" || len(a.said.With("networks that it does not name are kept")) == 0 {
					return errors.New("not there yet")
				}
				return nil
			})
			if report, _ := a.agent.env.Reports.Health.Report(); report.Ready || report.Status != api.Critical {
				t.Errorf("%+v", report)
			}
			must(t, errOf(a.client.Reload(ctx, false))) // changes nothing
			if _, _, there := a.store.Get(leaseKey(subnet)); !there || !exists(file) || !exists(state.Path(a.config.DataDir, "n")) ||
				len(a.recorder.tries()) != applied || len(a.wall.names()) != rules {
				t.Fatalf("it was left: %q, rules %q", a.recorder.tries()[applied:], a.wall.names()[rules:])
			}

			if way == "put back" || way == "pattern corrected" {
				if c = with; watched {
					c.Networks, c.WatchNetworks, c.AllowedNetworks = nil, true, []string{"n"}
				}
				must(t, errOf(a.client.Reload(ctx, false)))
				a.ready()
				if got := a.subnet(); got != subnet {
					t.Errorf("subnet %s, was %s", got, subnet)
				}
				return
			}
			must(t, errOf(a.client.Reload(ctx, true)))
			if !watched {
				a.check(health.Network, api.Warning, "no network is configured")
			}
			a.applies("zero")
			if _, _, there := a.store.Get(leaseKey(subnet)); there || exists(file) || exists(state.Path(a.config.DataDir, "n")) {
				t.Error("something was left behind")
			}
			c = with
			must(t, errOf(a.client.Reload(ctx, false)))
			a.ready()
			if got := a.subnet(); got != subnet {
				t.Errorf("subnet %s, was %s", got, subnet)
			}
		})
	}
}

// TestConfirmedWithoutAName: an operator confirms that networks are to be left before the host knows its name, without
// which it cannot leave them. It leaves them once it does.
func TestConfirmedWithoutAName(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		file := a.config.Networks[0].SubnetFile
		a.refresh = func() (config.Config, error) { return a.config, nil }
		a.start().ready()
		subnet := a.subnet()
		must(t, a.stop())
		a.config.NodeName, a.config.Networks, a.catalog = "", nil, &namelessStore{a.registry, "a"}
		a.registry.SetOne("NodeName", registry.ErrUnavailable)
		a.start()
		a.check(health.Network, api.Critical, "takes part in n", "leno reload -force")
		must(t, errOf(a.client.Reload(t.Context(), true)))
		a.check(health.Network, api.Warning, "no network is configured")
		must(t, errOf(a.client.Reload(t.Context(), false))) // as after a rotation of the logs
		if !exists(file) {
			t.Error("it was left without a name")
		}
		a.registry.SetOne("NodeName", nil)
		a.applies("zero")
		eventually(t, func() error {
			if _, _, there := a.store.Get(leaseKey(subnet)); there || exists(file) || exists(state.Path(a.config.DataDir, "n")) {
				return errors.New("something is left behind")
			}
			return nil
		})
	})
}

// TestStartWithAnEmptyFile: a network whose file is empty at a start stays as it is, next to the networks that run,
// until an operator removes the file or confirms that the network is to be left.
func TestStartWithAnEmptyFile(t *testing.T) {
	ctx := context.Background()
	for _, way := range []string{"put back", "confirmed", "removed", "restarted"} {
		subtest(t, way, func(t *testing.T) {
			a := newHost(t, memory.New(), "a").wide()
			a.config.Networks = append(a.config.Networks, a.second())
			a.config.Files, a.config.Empty = []string{"leno.hcl", "n.hcl", "m.hcl"}, []string{"leno.hcl"}
			with := a.config
			c := with
			a.refresh = func() (config.Config, error) { return c, nil }
			a.start().ready()
			file := with.Networks[1].SubnetFile
			list, err := a.client.Leases(ctx, "m")
			must(t, err)
			key := memory.Prefix + "/leases/m/" + registry.SubnetKey(list.Leases[0].Subnet)
			must(t, a.stop())

			a.config.Networks, a.config.Empty = with.Networks[:1], []string{"leno.hcl", "m.hcl"}
			c = a.config
			a.start()
			a.check(health.Network, api.Critical, "m.hcl is empty", "takes part in m", "leno reload -force")
			eventually(t, func() error {
				n, err := a.client.Network(ctx, "n")
				if err == nil && (n.Local == nil || n.Local.State != "running") {
					err = fmt.Errorf("%+v", n.Local)
				}
				return err
			})
			must(t, errOf(a.client.Reload(ctx, false)))
			stays := func() bool {
				_, _, there := a.store.Get(key)
				return there && exists(file) && exists(state.Path(a.config.DataDir, "m"))
			}
			if !stays() {
				t.Fatal("the network was left")
			}
			if names := a.wall.names(); !strings.Contains(names[len(names)-1], "m") {
				t.Errorf("its rules are not kept: %q", names)
			}
			switch way {
			case "put back":
				c = with
				must(t, errOf(a.client.Reload(ctx, false)))
				a.ready()
				if !stays() {
					t.Error("the network was left")
				}
				return
			case "confirmed":
				must(t, errOf(a.client.Reload(ctx, true)))
			case "removed":
				c.Files, c.Empty = c.Files[:2], c.Empty[:1]
				must(t, errOf(a.client.Reload(ctx, false)))
			case "restarted": // without the file
				must(t, a.stop())
				a.config.Files, a.config.Empty = c.Files[:2], c.Empty[:1]
				a.start()
				eventually(t, func() error {
					if _, _, there := a.store.Get(key); there || exists(file) || exists(state.Path(a.config.DataDir, "m")) {
						return errors.New("it was not left")
					}
					return nil
				})
			}
			if _, _, there := a.store.Get(key); there || exists(file) || exists(state.Path(a.config.DataDir, "m")) {
				t.Error("something was left behind")
			}
			a.ready()
		})
	}
}
