package peers

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

// TestLoad: the files of an earlier process are used as a whole, or not at all if they contradict each other.
func TestLoad(t *testing.T) {
	n := testNetwork(t)
	own, b := agenttest.Lease("a", 1, "sa", 1), agenttest.Lease("b", 2, "sb", 20)
	before := state.Network{
		Version:    1,
		Network:    "n",
		Subnets:    own.Subnets,
		Definition: 7,
		Pools:      n.Plan.Prefixes(),
		Carriage:   n.Carriage(),
	}
	for _, tt := range []struct {
		name   string
		change func(s *state.Network, f *state.Peers)
		peers  int
		err    string // "" if none is expected
	}{
		{"as written", func(*state.Network, *state.Peers) {}, 1, ""},
		{"a record that cannot be used", func(_ *state.Network, f *state.Peers) {
			f.Leases[0].Record = []byte(`{"version":1}`)
		}, 0, ""},
		{"a record of another slot", func(_ *state.Network, f *state.Peers) { f.Leases[0].Key = "10.5.3.0-24" }, 0, ""},
		{"of another network", func(_ *state.Network, f *state.Peers) { f.Network = "m" }, 0, "network"},
		{"of another version", func(_ *state.Network, f *state.Peers) { f.Version = 9 }, 0, "version"},
		{"without a definition", func(_ *state.Network, f *state.Peers) { f.Definition = nil }, 0, "definition"},
		{"a definition that cannot be used", func(_ *state.Network, f *state.Peers) {
			f.Definition = []byte(`{"version":1,"name":"n"}`)
		}, 0, "definition"},
		{"of another definition", func(_ *state.Network, f *state.Peers) { f.Created = 8 }, 0, "another definition"},
		{"of another backend", func(s *state.Network, _ *state.Peers) {
			s.Backend = agenttest.Backend(t, "udp", "")
		}, 0, "another definition"},
		{"of other pools", func(s *state.Network, _ *state.Peers) { s.Pools = s.Pools[:0] }, 0, "another definition"},
		{"a subnet outside of the plan", func(s *state.Network, _ *state.Peers) {
			s.Subnets = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")}
		}, 0, "subnet"},
		{"a subnet more", func(s *state.Network, _ *state.Peers) {
			s.Subnets = append(slices.Clone(s.Subnets), netip.MustParsePrefix("10.5.2.0/24"))
		}, 0, "not those of slot 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, loadCache(dir, n, time.Minute).save(&View{Network: n, Own: own, Leases: []registry.Lease{own, b}}))
			file, err := state.LoadPeers(dir, "n")
			must(t, err)
			now := before
			tt.change(&now, &file)
			data, err := json.Marshal(file)
			must(t, err)
			must(t, os.WriteFile(state.PeersPath(dir, "n"), data, 0o600))
			found, err := Load(dir, now, own.NodeID)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("%v does not say %q", err, tt.err)
				}
				return
			}
			must(t, err)
			if len(found.Leases) != tt.peers || found.Own.Slot != 1 || found.Own.NodeID != own.NodeID ||
				found.Network.CreateIndex != 7 ||
				!found.Network.Backend.Equal(n.Backend) || !slices.Equal(found.Network.Plan, n.Plan) {
				t.Errorf("%+v", found)
			}
		})
	}
	if _, err := Load(t.TempDir(), before, own.NodeID); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
}
