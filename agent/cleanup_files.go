package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
)

// runDir is where subnet files are unless a network says otherwise.
func runDir() string { return filepath.Dir(config.WatchedNetwork("any").SubnetFile) }

// trace is what the files tell of one network on this host.
type trace struct {
	name  string
	saved state.Network  // zero when no state file can be read
	pools []netip.Prefix // nil when nothing tells them
	files []string       // subnet files, as far as they are known
}

// knowFiles reads what the files tell: who this host is, and of which networks it
// was a part.
func (s *sweep) knowFiles() {
	if data, err := os.ReadFile(state.NodeIDPath(s.config.DataDir)); err == nil && state.IsNodeID(strings.TrimSpace(string(data))) {
		s.nodeID, s.proven = strings.TrimSpace(string(data)), true
	}
	var names []string
	for _, pattern := range []string{state.Path(s.config.DataDir, "*"), state.PeersPath(s.config.DataDir, "*"), state.DeletionPath(s.config.DataDir, "*")} {
		for _, suffix := range []string{"", state.BadSuffix} {
			files, err := filepath.Glob(pattern + suffix)
			if err != nil {
				continue // only of a pattern that is wrong
			}
			for _, file := range files {
				names = append(names, strings.TrimSuffix(filepath.Base(file), ".json"+suffix))
			}
		}
	}
	for _, n := range s.config.Networks {
		names = append(names, n.Name)
	}
	names = append(names, s.o.Network)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if registry.CheckNetworkName(name) == nil {
			s.networks = append(s.networks, s.traceOf(name))
		}
	}
}

// traceOf reads of one network what can be read; the best that tells its pools is
// what the datapath was built for.
func (s *sweep) traceOf(name string) trace {
	t := trace{name: name, files: []string{config.WatchedNetwork(name).SubnetFile}}
	if before, err := state.Load(s.config.DataDir, name); err == nil && before.Network != "" {
		t.saved, t.pools = before, before.Pools
		s.nodeID = cmp.Or(s.nodeID, before.NodeID)
		t.files = append(t.files, before.SubnetFile)
	}
	if file, err := state.LoadPeers(s.config.DataDir, name); err == nil && len(t.pools) == 0 {
		if n, err := registry.ParseNetwork(name, file.Definition); err == nil {
			t.pools = n.Plan.Prefixes()
		}
	}
	for _, local := range s.config.Networks {
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

// findFiles finds state, peers and subnet files, and what of them a process that
// was killed had begun.
func (s *sweep) findFiles() {
	for _, t := range s.networks {
		if !s.wants(t.name) {
			continue
		}
		for _, f := range []struct{ path, what string }{
			{state.Path(s.config.DataDir, t.name), "state"},
			{state.PeersPath(s.config.DataDir, t.name), "peers"},
			{state.DeletionPath(s.config.DataDir, t.name), "deletion"},
		} {
			s.addFile(f.path, t.name, f.what, s.ofNetwork(t.name))
			s.addFile(f.path+state.BadSuffix, t.name, "put aside", s.ofNetwork(t.name))
			s.addBegun(f.path, t.name)
		}
		dir := filepath.Join(s.config.DataDir, t.name)
		s.keeps(dir, t.name, s.addDir(dir))
		for _, path := range t.files {
			if s.o.Network != "" && s.isOthers(path) {
				continue
			}
			s.addFile(path, t.name, "subnet file", state.IsSubnetFile)
			s.addBegun(path, t.name)
		}
	}
	s.addDir(filepath.Dir(state.PeersPath(s.config.DataDir, "any")))
	s.addDir(filepath.Dir(state.DeletionPath(s.config.DataDir, "any")))
	s.addFormer()
	if s.o.Network != "" {
		return
	}
	s.addFile(state.NodeIDPath(s.config.DataDir)+state.BadSuffix, "", "put aside", func([]byte) bool { return s.proven })
	s.addBegun(state.NodeIDPath(s.config.DataDir), "")
	// Those of networks of which nothing else is known any more.
	lost, err := filepath.Glob(filepath.Join(runDir(), "*.env"))
	if err == nil {
		for _, path := range lost {
			s.addFile(path, "", "subnet file", state.IsSubnetFile)
		}
	}
	if path, ok := strings.CutPrefix(s.config.HTTP.Address, "unix://"); ok {
		s.addSocket(path)
	}
}

// addFormer is for what this host had in networks that it left, or in the one that is
// cleaned up.
func (s *sweep) addFormer() {
	path := state.FormerSubnetsPath(s.config.DataDir)
	former := state.NewFormerSubnets(s.config.DataDir)
	subnets, err := former.Load()
	if s.o.Network == "" {
		s.addFile(path, "", "former subnets", func([]byte) bool { return s.proven || err == nil })
		s.addBegun(path, "")
		s.addFile(state.ConfigFilesPath(s.config.DataDir), "", "list of configuration files", func([]byte) bool { return s.proven })
		s.addBegun(state.ConfigFilesPath(s.config.DataDir), "")
		return
	}
	if subnet, ok := subnets[s.o.Network]; ok && err == nil {
		s.add(Remnant{Kind: RemnantFile, Name: path, Network: s.o.Network, Detail: "former subnet " + subnet.String()}, func(context.Context) error {
			return former.Drop(s.o.Network)
		})
	}
}

// isOthers says whether a subnet file is that of a network which is to stay.
func (s *sweep) isOthers(path string) bool {
	same := func(other string) bool { return other != "" && config.SamePath(path, other) }
	return slices.ContainsFunc(s.config.Networks, func(n config.Network) bool { return !s.wants(n.Name) && same(n.SubnetFile) }) ||
		slices.ContainsFunc(s.networks, func(t trace) bool { return !s.wants(t.name) && same(t.saved.SubnetFile) })
}

// addFile is for a file that is ours if its content is.
func (s *sweep) addFile(path, network, what string, ours func(data []byte) bool) {
	if s.has(path) {
		return
	}
	r := Remnant{Kind: RemnantFile, Name: path, Network: network, Detail: what}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return
	case err != nil:
		s.left(r, err)
		return
	case !info.Mode().IsRegular():
		s.foreign(r, "it is no ordinary file")
		return
	}
	data, err := os.ReadFile(path)
	switch {
	case err != nil:
		s.left(r, err)
	case !ours(data):
		s.foreign(r, "its content is not leno's")
	default:
		s.add(r, func(context.Context) error { return os.Remove(path) })
	}
}

// addBegun is for what writeFileAtomic had not renamed yet.
func (s *sweep) addBegun(path, network string) {
	for _, begun := range state.Unfinished(path) {
		s.addFile(begun, network, "half written", anything)
	}
}

// addDir is for a directory that is ours by its name, and goes when nothing is in
// it any more. It returns what else is.
func (s *sweep) addDir(path string) (others []string) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil // it is not there
	}
	for _, e := range entries {
		if !s.has(filepath.Join(path, e.Name())) {
			others = append(others, e.Name())
		}
	}
	if len(others) > 0 {
		return others
	}
	s.add(Remnant{Kind: RemnantFile, Name: path, Detail: "empty directory"}, func(context.Context) error {
		err := os.Remove(path)
		if errors.Is(err, unix.EBUSY) {
			return os.ErrNotExist // something is mounted here: it is the operator's
		}
		return err
	})
	return nil
}

// keeps tells of a directory that has to stay for what else is in it.
func (s *sweep) keeps(path, network string, others []string) {
	if len(others) > 0 {
		s.foreign(Remnant{Kind: RemnantFile, Name: path, Network: network}, "%d files in it are not leno's, the first %q", len(others), others[0])
	}
}

// addSocket is for the socket of an agent that was killed.
func (s *sweep) addSocket(path string) {
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSocket == 0 {
		return
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close() // somebody listens: whoever it is
		return
	}
	s.add(Remnant{Kind: RemnantFile, Name: path, Detail: "socket"}, func(context.Context) error { return os.Remove(path) })
}

// has says whether the file is to be removed already.
func (s *sweep) has(path string) bool {
	return slices.ContainsFunc(s.found, func(r Remnant) bool { return r.Kind == RemnantFile && r.Name == path })
}

// ofNetwork says whether a file is the network's state: of any version, or broken
// past reading. A directory that was named by mistake has files of others, which
// are JSON with comments, say: what cannot be read is leno's where leno has been, or
// where it says so itself.
func (s *sweep) ofNetwork(name string) func([]byte) bool {
	return func(data []byte) bool {
		var head struct {
			Version *int
			Network string
		}
		if !json.Valid(data) {
			return s.proven || bytes.Contains(data, []byte(`"network": "`+name+`"`))
		}
		return json.Unmarshal(data, &head) == nil && head.Version != nil && head.Network == name
	}
}

// anything is for files that are leno's by their names.
func anything([]byte) bool { return true }

func isEmpty(data []byte) bool { return len(data) == 0 }
