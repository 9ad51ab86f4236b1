package cleanup

import (
	"cmp"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/registry"
)

// networkTraces is what files tell about one network on this host.
type networkTraces struct {
	name  string
	saved state.Network  // zero if no state file can be read
	pools []netip.Prefix // nil if no file contains them
	files []string       // paths at which a subnet file may be
}

// A host is this host as its configuration and leno's files describe it.
type host struct {
	config   config.Config
	o        Options
	nodeID   string // "" if it is not known
	isOwn    bool   // the data_dir is leno's, because it has a node id
	networks []networkTraces
}

// readHost reads the host's node id, and the traces of each network that the files or the configuration name.
func readHost(c config.Config, o Options) *host {
	h := &host{config: c, o: o}
	dir := c.DataDir
	if data, err := os.ReadFile(state.NodeIDPath(dir)); err == nil {
		if id := strings.TrimSpace(string(data)); state.IsNodeID(id) {
			h.nodeID, h.isOwn = id, true
		}
	}
	var names []string
	for _, pattern := range []string{state.Path(dir, "*"), state.PeersPath(dir, "*"), state.DeletionPath(dir, "*")} {
		for _, suffix := range []string{"", state.BadSuffix} {
			files, err := filepath.Glob(pattern + suffix)
			if err != nil {
				continue // only for an invalid pattern
			}
			for _, file := range files {
				names = append(names, strings.TrimSuffix(filepath.Base(file), ".json"+suffix))
			}
		}
	}
	for _, n := range c.Networks {
		names = append(names, n.Name)
	}
	names = append(names, o.Network)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if registry.CheckNetworkName(name) == nil {
			h.networks = append(h.networks, h.tracesOf(name))
		}
	}
	return h
}

// tracesOf reads the traces of one network. The pools of the datapath come first, then those of the remembered
// definition, then those of the configuration.
func (h *host) tracesOf(name string) networkTraces {
	t := networkTraces{name: name, files: []string{filepath.Join(h.o.RunDir, name+".env")}}
	if before, err := state.Load(h.config.DataDir, name); err == nil && before.Network != "" {
		t.saved, t.pools = before, before.Reach()
		h.nodeID = cmp.Or(h.nodeID, before.NodeID)
		t.files = append(t.files, before.SubnetFile)
	}
	if file, err := state.LoadPeers(h.config.DataDir, name); err == nil && len(t.pools) == 0 {
		if n, err := registry.ParseNetwork(name, file.Definition); err == nil {
			t.pools = n.Plan.Prefixes()
		}
	}
	for _, local := range h.config.Networks {
		if local.Name != name {
			continue
		}
		t.files = append(t.files, local.SubnetFile)
		if n, err := definition.FromBlock(local); err == nil && len(t.pools) == 0 {
			t.pools = n.Plan.Prefixes()
		}
	}
	t.files = slices.DeleteFunc(t.files, func(path string) bool { return path == "" })
	slices.Sort(t.files)
	t.files = slices.Compact(t.files)
	return t
}

// isWanted reports whether the leftovers of a network are to be removed.
func (h *host) isWanted(network string) bool { return h.o.Network == "" || h.o.Network == network }

// networkOf returns the network in whose pools dst is, or "" if none is known.
func (h *host) networkOf(dst netip.Prefix) string {
	for _, t := range h.networks {
		if (kernel.Owner{Pools: t.pools}).Owns(kernel.RouteKey{Dst: dst}, kernel.Route{}) {
			return t.name
		}
	}
	return ""
}
