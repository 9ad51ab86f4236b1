package cleanup

import (
	"cmp"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
)

// networkTraces is what files tell about one network on this host.
type networkTraces struct {
	name  string
	saved state.Network  // zero if no state file can be read
	pools []netip.Prefix // nil if no file contains them
	files []string       // paths at which a subnet file may be
}

// readTraces reads the host's node id, and the traces of each network that the files or the configuration name.
func (c *cleaner) readTraces() {
	dir := c.config.DataDir
	if data, err := os.ReadFile(state.NodeIDPath(dir)); err == nil {
		if id := strings.TrimSpace(string(data)); state.IsNodeID(id) {
			c.nodeID, c.isOwn = id, true
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
	for _, n := range c.config.Networks {
		names = append(names, n.Name)
	}
	names = append(names, c.o.Network)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if registry.CheckNetworkName(name) == nil {
			c.networks = append(c.networks, c.tracesOf(name))
		}
	}
}

// tracesOf reads the traces of one network. The pools of the datapath come first, then those of the remembered
// definition, then those of the configuration.
func (c *cleaner) tracesOf(name string) networkTraces {
	t := networkTraces{name: name, files: []string{filepath.Join(c.o.RunDir, name+".env")}}
	if before, err := state.Load(c.config.DataDir, name); err == nil && before.Network != "" {
		t.saved, t.pools = before, before.Pools
		c.nodeID = cmp.Or(c.nodeID, before.NodeID)
		t.files = append(t.files, before.SubnetFile)
	}
	if file, err := state.LoadPeers(c.config.DataDir, name); err == nil && len(t.pools) == 0 {
		if n, err := registry.ParseNetwork(name, file.Definition); err == nil {
			t.pools = n.Plan.Prefixes()
		}
	}
	for _, local := range c.config.Networks {
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
