package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestReloadOfWhatWasCutOff: a configuration that lacks something that no program leaves out on purpose is refused
// until it is confirmed. The refusal names what is missing.
func TestReloadOfWhatWasCutOff(t *testing.T) {
	ctx := context.Background()
	for _, tt := range []struct {
		name   string
		before func(c *config.Config)
		change func(c *config.Config)
		wants  []string // words of the refusal; none if the configuration is taken over
		left   int      // the number of networks after it is taken over
	}{
		{"a file that is empty", nil, func(c *config.Config) { c.Empty, c.Networks = c.Files[1:], c.Networks[:1] }, []string{"b.hcl is empty", "leno reload -force"}, 1},
		{"a file that was empty", func(c *config.Config) { c.Empty = c.Files[1:] }, func(c *config.Config) { c.Networks = c.Networks[:1] }, nil, 1},
		{"a file that is new, and empty", nil, func(c *config.Config) { c.Files, c.Empty = append(c.Files, "c.hcl"), []string{"c.hcl"} }, nil, 2},
		{"a file that is gone", nil, func(c *config.Config) { c.Files, c.Networks = c.Files[:1], c.Networks[:1] }, nil, 1},
		{"the last networks", nil, func(c *config.Config) { c.Networks = nil }, []string{"would leave m, n", "leno reload -force"}, 0},
		{"everything", nil, func(c *config.Config) { c.Empty, c.Networks = c.Files, nil }, []string{"a.hcl is empty", "b.hcl is empty", "would leave m, n"}, 0},
		{"the last networks, watched", func(c *config.Config) { c.Networks, c.WatchNetworks, c.AllowedNetworks = nil, true, []string{"*"} },
			func(c *config.Config) { c.WatchNetworks = false }, []string{"would leave n"}, 0},
		{"all blocks, and the networks are watched", nil, func(c *config.Config) { c.Networks, c.WatchNetworks, c.AllowedNetworks = nil, true, []string{"*"} }, nil, 2},
	} {
		subtest(t, tt.name, func(t *testing.T) {
			store := memory.New()
			a := newHost(t, store, "a")
			n, err := definition.FromBlock(a.config.Networks[0])
			must(t, err)
			must(t, store.Client().PutNetwork(ctx, n))
			a.config.Networks = append(a.config.Networks, a.second())
			a.config.Files = []string{"a.hcl", "b.hcl"}
			if tt.before != nil {
				tt.before(&a.config)
			}
			c := a.config
			c.Files, c.Networks = slices.Clone(c.Files), slices.Clone(c.Networks)
			tt.change(&c)
			a.refresh = func() (config.Config, error) { return c, nil }
			a.start()
			a.subnet()
			a.ready()
			before := a.agent.self().Networks
			_, err = a.client.Reload(ctx, false)
			if len(tt.wants) > 0 {
				agenttest.WantCode(t, tt.name, err, http.StatusConflict, append(tt.wants, "nothing was changed")...)
				got, now := a.agent.self().Networks, a.agent.settings.get()
				if !slices.Equal(got, before) || !slices.Equal(now.Files, a.config.Files) || len(now.Empty) != len(a.config.Empty) {
					t.Errorf("networks %q, files %q", got, now.Files)
				}
				_, err = a.client.Reload(ctx, true)
			}
			must(t, err)
			if got := a.agent.self().Networks; len(got) != tt.left {
				t.Errorf("networks %q, want %d", got, tt.left)
			}
		})
	}
}

// wide gives the host's network so many subnets that the host does not get the same one twice by chance.
func (h *host) wide() *host {
	h.config.Networks[0].Pools = []config.Pool{{Prefix: netip.MustParsePrefix("10.5.0.0/16"), SubnetLen: 30}}
	return h
}

// TestFormerSubnet: a host whose network comes back into its configuration gets its former subnet.
func TestFormerSubnet(t *testing.T) {
	ctx := context.Background()
	for _, way := range []string{"reloads", "restarts"} {
		subtest(t, way, func(t *testing.T) {
			a := newHost(t, memory.New(), "a").wide()
			with := a.config
			a.start().ready()
			subnet := a.subnet()
			without := with
			without.Networks = []config.Network{a.second()}
			take := func(c config.Config) {
				t.Helper()
				if way == "restarts" {
					must(t, a.stop())
					a.config = c
					a.start()
				} else {
					must(t, a.agent.Reload(ctx, c))
				}
				a.ready()
			}
			take(without)
			eventually(t, func() error {
				if _, _, there := a.store.Get(leaseKey(subnet)); there || exists(state.Path(a.config.DataDir, "n")) {
					return errors.New("it was not left")
				}
				if got := a.agent.env.Former.Subnet("n"); got != subnet {
					return fmt.Errorf("%s is remembered", got)
				}
				return nil
			})
			take(with)
			if got := a.subnet(); got != subnet {
				t.Errorf("subnet %s, was %s", got, subnet)
			}
			eventually(t, func() error {
				if got := a.agent.env.Former.Subnet("n"); got.IsValid() {
					return fmt.Errorf("%s is remembered still", got)
				}
				return nil
			})
		})
	}
}

// TestStartWithoutNetworks: an agent whose configuration names no network leaves the networks of an earlier process as
// they are, and says so, until an operator puts them back or confirms that they are to be left.
func TestStartWithoutNetworks(t *testing.T) {
	ctx := context.Background()
	for _, way := range []string{"put back", "confirmed"} {
		subtest(t, way, func(t *testing.T) {
			a := newHost(t, memory.New(), "a").wide()
			with := a.config
			c := with
			a.refresh = func() (config.Config, error) { return c, nil }
			a.start().ready()
			subnet, file := a.subnet(), with.Networks[0].SubnetFile
			must(t, a.stop())
			applied, rules := len(a.recorder.tries()), len(a.wall.names())

			a.config.Networks = nil
			c = a.config
			a.start()
			a.check(health.Network, api.Critical, "takes part in n", "leno reload -force")
			eventually(t, func() error { // by then the agent has had the time to leave
				if a.agent.self().NodeName == "" || len(a.said.With("what it does not name stays as it is")) == 0 {
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

			if way == "put back" {
				c = with
				must(t, errOf(a.client.Reload(ctx, false)))
				a.ready()
				if got := a.subnet(); got != subnet {
					t.Errorf("subnet %s, was %s", got, subnet)
				}
				return
			}
			must(t, errOf(a.client.Reload(ctx, true)))
			a.check(health.Network, api.Warning, "no network is configured")
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
