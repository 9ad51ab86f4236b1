package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// writtenAt waits until the state file of a network has path as its subnet file. The agent removes a former
// subnet file elsewhere right after that.
func (h *host) writtenAt(network, path string) {
	h.t.Helper()
	eventually(h.t, func() error {
		s, err := state.Load(h.config.DataDir, network)
		if err == nil && s.SubnetFile != path {
			err = fmt.Errorf("the state file of %s has %s", network, s.SubnetFile)
		}
		return err
	})
}

// has waits until the file at path names the subnet of a network.
func (h *host) has(path, network string) {
	h.t.Helper()
	eventually(h.t, func() error {
		r, ok := h.agent.networks.get(network)
		if !ok {
			return errors.New("no runner")
		}
		lease, held := r.Lease()
		if got := state.SubnetInFile(path); !held || got != lease.Subnet() {
			return fmt.Errorf("%s has %s, network %s has %s", path, got, network, lease.Subnet())
		}
		return nil
	})
}

// TestSubnetFilesChangePlaces: when a host leaves a network, a file that has become another network's is not removed.
func TestSubnetFilesChangePlaces(t *testing.T) {
	for _, way := range []string{"reload", "restart"} {
		subtest(t, way, func(t *testing.T) {
			a := newHost(t, memory.New(), "a")
			a.config.Networks = append(a.config.Networks, a.second())
			first, second := a.config.Networks[0].SubnetFile, a.config.Networks[1].SubnetFile
			c := a.config
			take := func(change func(c *config.Config)) {
				t.Helper()
				c.Networks = slices.Clone(c.Networks)
				change(&c)
				if way == "reload" {
					must(t, a.agent.Reload(context.Background(), c))
				} else {
					must(t, a.stop())
					a.config = c
					a.start()
				}
				a.ready()
			}
			a.start().ready()
			a.writtenAt("n", first)
			a.writtenAt("m", second)

			take(func(c *config.Config) { c.Networks[0].SubnetFile, c.Networks[1].SubnetFile = second, first })
			a.writtenAt("n", second)
			a.writtenAt("m", first)
			a.has(second, "n")
			a.has(first, "m")

			// The host leaves network m, and the file of n moves to where that of m was.
			take(func(c *config.Config) { c.Networks[0].SubnetFile, c.Networks = first, c.Networks[:1] })
			a.writtenAt("n", first)
			eventually(t, func() error {
				if exists(second) || exists(state.Path(a.config.DataDir, "m")) {
					return errors.New("something of the other network stays")
				}
				return nil
			})
			a.has(first, "n")
			if lines := a.said.With("written again"); way == "restart" && len(lines) > 0 {
				t.Errorf("%q", lines)
			}
		})
	}
}

// TestReloadKeepsAnotherProgramsFile: a reload that corrects subnet_file leaves the file that another program has written
// to the old path.
func TestReloadKeepsAnotherProgramsFile(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		a.registry.Set(registry.ErrUnavailable) // there is no lease, so the agent has not written its own file
		c, theirs := a.config, a.config.Networks[0].SubnetFile
		must(t, os.WriteFile(theirs, []byte("FLANNEL_NETWORK=10.9.0.0/16\nFLANNEL_SUBNET=10.9.3.1/24\n"), 0o644))
		a.start()
		a.check(health.Network, api.Critical, "")
		c.Networks = slices.Clone(c.Networks)
		c.Networks[0].SubnetFile += ".ours"
		must(t, a.agent.Reload(context.Background(), c))
		if !exists(theirs) {
			t.Error("another program's file was removed")
		}
		a.registry.Set(nil)
		a.has(c.Networks[0].SubnetFile, "n")
	})
}

// TestSubnetFileMovesWithoutTheStore: a reload that changes subnet_file moves the file at once, although the agent
// cannot write another one before the store is back.
func TestSubnetFileMovesWithoutTheStore(t *testing.T) {
	for _, way := range []string{"running", "restarted", "in the way"} {
		subtest(t, way, func(t *testing.T) {
			a := newHost(t, memory.New(), "a").start()
			a.ready()
			before := a.config.Networks[0].SubnetFile
			a.writtenAt("n", before)
			c := a.config
			c.Networks = slices.Clone(c.Networks)
			c.Networks[0].SubnetFile += ".moved"
			after := c.Networks[0].SubnetFile
			text, err := os.ReadFile(before)
			must(t, err)
			a.registry.Set(registry.ErrUnavailable)
			switch way {
			case "restarted":
				must(t, a.stop())
				a.start()
				eventually(t, func() error {
					if _, ok := a.agent.networks.get("n"); !ok {
						return errors.New("no runner")
					}
					return nil
				})
			case "in the way":
				must(t, os.MkdirAll(filepath.Join(after, "x"), 0o755))
			}
			must(t, a.agent.Reload(context.Background(), c))
			now, err := os.ReadFile(after)
			if moved := err == nil && bytes.Equal(now, text); moved != (way != "in the way") {
				t.Errorf("the new subnet file has %q, %v; before it had %q", now, err, text)
			}
			if stays := exists(before); stays != (way == "in the way") {
				t.Errorf("the old subnet file is there: %t", stays)
			}
			a.registry.Set(nil)
			if way == "in the way" { // the old file stays until there is a new one
				a.check(health.SubnetFile, api.Critical, after)
				a.check(health.Lease, api.Passing)
				if !exists(before) {
					t.Error("there is no subnet file any more")
				}
				must(t, os.RemoveAll(after))
			}
			a.has(after, "n")
			a.writtenAt("n", after)
			eventually(t, func() error {
				if exists(before) {
					return errors.New("the old subnet file stays")
				}
				return nil
			})
		})
	}
}
