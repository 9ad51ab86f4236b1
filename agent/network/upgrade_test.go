package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// TestOlderStateFiles: the files of earlier versions say less. After an upgrade, a host goes on with them as they are:
// with the same id, subnet, session and record.
func TestOlderStateFiles(t *testing.T) {
	for _, tt := range []struct {
		name        string
		state, file []string // members that earlier versions did not write, of the state file and of the peers' file
	}{
		{"before the node id was in it", []string{"node_id"}, nil},
		{"before the time of renewal was", []string{"node_id", "renewed"}, []string{"definition"}},
		{"before the versions of records were", []string{"node_id", "renewed", "lease_index", "network_index"}, []string{"definition"}},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			a, b, subnet, applied := pair(t)
			record := func() registry.Lease {
				out, _, err := a.store.Client().WatchLease(t.Context(), a.inStore(), subnet, 0)
				must(t, err)
				return out
			}
			before := record()
			without(t, state.Path(a.config.DataDir, "n"), tt.state)
			without(t, state.PeersPath(a.config.DataDir, "n"), tt.file)
			a.remains = datapath.KernelState{Routes: 1, Device: true, Up: true, Carrier: true, Addrs: []netip.Addr{subnet.Addr()}}
			wakes, passes := b.kernel.tries(), len(a.kernel.applied())
			a.start().ready()
			a.applies(applied)
			if now := record(); now.ModifyIndex != before.ModifyIndex || now.Session != before.Session || b.kernel.tries() != wakes {
				t.Errorf("the record was written: %+v, before %+v", now, before)
			}
			for _, pass := range a.kernel.applied()[passes:] {
				if got := stateText(pass); got != applied {
					t.Errorf("applied %q after the restart", got)
				}
			}
			s, err := state.Load(a.config.DataDir, "n")
			must(t, err)
			if s.NodeID != before.NodeID || s.Renewed.IsZero() || s.Lease == 0 || s.Definition == 0 {
				t.Errorf("the state file is as old as it was: %+v", s)
			}
		})
	}
}

// without removes members from a file.
func without(t *testing.T, path string, members []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	var file map[string]json.RawMessage
	must(t, json.Unmarshal(data, &file))
	for _, name := range members {
		if _, ok := file[name]; !ok {
			t.Errorf("%s has no %s", path, name)
		}
		delete(file, name)
	}
	data, err = json.Marshal(file)
	must(t, err)
	must(t, os.WriteFile(path, data, 0o600))
}

// TestHealthBeforeTheDatapath: a host that holds its lease is not healthy before its first containers can be started.
func TestHealthBeforeTheDatapath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newMember(t, memory.New(), "a")
		seen := make(chan api.Health, 1)
		a.kernel.setHook(func(backend.State) {
			now, _ := a.deps.Reports.Health.Report()
			select {
			case seen <- now:
			default: // not the first pass
			}
		})
		a.start()
		if h := <-seen; h.Status != api.Critical || len(h.Networks) != 1 || h.Networks[0].Ready {
			t.Errorf("health at the first pass over the datapath: %+v", h)
		}
		a.ready()
		agenttest.Eventually(t, func() error {
			if got := a.status(); got != api.Passing {
				return fmt.Errorf("the status is %s", got)
			}
			return nil
		})
	})
}

// TestSubnetFileElsewhere: a host that starts with another subnet_file removes the former file, if that is a subnet file.
// Another spelling of the path moves nothing.
func TestSubnetFileElsewhere(t *testing.T) {
	for _, tt := range []struct {
		name  string
		text  string // replaces what the host wrote
		next  func(t *testing.T, old string) string
		stays bool
	}{
		{"elsewhere", "", func(_ *testing.T, old string) string { return old + ".new" }, false},
		{"another program's", "PATH=/bin\n", func(_ *testing.T, old string) string { return old + ".new" }, true},
		{"under another name", "", func(t *testing.T, old string) string {
			link := filepath.Join(t.TempDir(), "link")
			must(t, os.Symlink(filepath.Dir(old), link))
			return filepath.Join(link, filepath.Base(old))
		}, true},
	} {
		simulated(t, tt.name, func(t *testing.T) {
			a := newMember(t, memory.New(), "a")
			old := a.config.Networks[0].SubnetFile
			a.start().ready()
			a.stop()
			if tt.text != "" {
				must(t, os.WriteFile(old, []byte(tt.text), 0o644))
			}
			path := tt.next(t, old)
			a.config.Networks = slices.Clone(a.config.Networks)
			a.config.Networks[0].SubnetFile = path
			a.start().ready()
			agenttest.Eventually(t, func() error {
				s, err := state.Load(a.config.DataDir, "n")
				if err == nil && s.SubnetFile != path {
					err = fmt.Errorf("the state file has %s", s.SubnetFile)
				}
				return err
			})
			agenttest.Eventually(t, func() error {
				if !exists(path) {
					return errors.New("no new one")
				}
				if exists(old) != tt.stays {
					return fmt.Errorf("the old one is there: %t", exists(old))
				}
				return nil
			})
			if lines := a.said.With("written again"); len(lines) > 0 {
				t.Errorf("%q", lines)
			}
			a.stop()
		})
	}
}

// TestReservation follows a host with a reservation, by name or by node id, through restarts of all kinds, to the end of
// the reservation.
func TestReservation(t *testing.T) {
	for _, by := range []string{"name", "node id"} {
		simulated(t, by, func(t *testing.T) {
			store := memory.New()
			b := newMember(t, store, "b").start()
			b.ready()
			a := newMember(t, store, "a")
			kept := registry.Reservation{Subnet: free(b), Node: "a"}
			if by == "node id" {
				kept.Node, kept.NodeID = "", "id-a"
			}
			kept, err := registry.CheckReservation(b.inStore(), kept)
			must(t, err)
			must(t, store.Client().AddReservation(t.Context(), b.inStore(), kept, false))
			for _, restart := range []struct {
				name   string
				before func()
			}{
				{"first start", func() {}},
				{"restart", func() {}},
				{"away for long", func() {
					lease, _ := a.run.Lease()
					store.EndSession(lease.Session)
				}},
				{"revoked while stopped", func() { must(t, store.Client().Revoke(t.Context(), "n", kept.Subnet)) }},
				{"state and subnet file lost", func() {
					must(t, os.Remove(state.Path(a.config.DataDir, "n")))
					must(t, os.Remove(a.config.Networks[0].SubnetFile))
				}},
			} {
				restart.before()
				a.start().ready()
				if got := a.subnet(); got != kept.Subnet {
					t.Fatalf("%s: subnet %s, want %s", restart.name, got, kept.Subnet)
				}
				a.applies(a.with(b))
				a.stop()
			}

			// Without the reservation, the host keeps its subnet, and its packets flow on.
			a.start().ready()
			before := a.kernel.states()
			must(t, store.Client().RemoveReservation(t.Context(), "n", kept.Subnet))
			renewals := func() int { return a.registry.Count("own Renew") }
			seen, tries := renewals(), a.kernel.tries()
			a.kick()
			a.more("renewals", seen+1, renewals)
			a.more("applies", tries, a.kernel.tries)
			if got := a.subnet(); got != kept.Subnet || len(a.kernel.states()) != len(before) {
				t.Errorf("subnet %s; applied %q", got, a.kernel.states()[len(before):])
			}
			for _, state := range a.kernel.states() {
				if !strings.HasPrefix(state, kept.Subnet.String()+" ") {
					t.Errorf("applied %q, which has another subnet", state)
				}
			}
			a.check(health.Lease, api.Passing)
		})
	}
}
