package cleanup

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/files"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/switchover"
)

// A fileFinder finds the files of leno on a host.
type fileFinder struct {
	host *host
	list *leftovers
}

// findAll finds state files, peers files and subnet files, and the unfinished ones of a process that was killed.
func (f *fileFinder) findAll() {
	for _, t := range f.host.networks {
		if !f.host.isWanted(t.name) {
			continue
		}
		for _, file := range []struct{ path, what string }{
			{state.Path(f.host.config.DataDir, t.name), "state"},
			{state.PeersPath(f.host.config.DataDir, t.name), "peers"},
			{state.DeletionPath(f.host.config.DataDir, t.name), "deletion"},
		} {
			f.addFile(file.path, t.name, file.what, f.isStateOf(t.name))
			f.addFile(file.path+state.BadSuffix, t.name, "put aside", f.isStateOf(t.name))
			f.addUnfinished(file.path, t.name)
		}
		dir := filepath.Join(f.host.config.DataDir, t.name)
		other := switchover.DataDirB(dir)
		f.addKeys(dir, t.name)
		f.addKeys(other, t.name)
		f.addForeignDir(other, t.name, f.addDir(other))
		f.addForeignDir(dir, t.name, f.addDir(dir))
		for _, link := range backend.LinkNames(t.name) {
			f.addSocket(filepath.Join(f.host.o.WireGuardDir, link+".sock"), t.name)
		}
		for _, path := range t.files {
			if f.host.o.Network != "" && f.isOfOtherNetwork(path) {
				continue
			}
			f.addSubnetFile(path, t)
		}
	}
	f.addDir(filepath.Dir(state.PeersPath(f.host.config.DataDir, "any")))
	f.addDir(filepath.Dir(state.DeletionPath(f.host.config.DataDir, "any")))
	f.addFormerSubnets()
	if f.host.o.Network != "" {
		return
	}
	nodeID := state.NodeIDPath(f.host.config.DataDir)
	f.addFile(nodeID+state.BadSuffix, "", "put aside", func([]byte) bool { return f.host.isOwn })
	f.addUnfinished(nodeID, "")
	// Networks that have no other trace may have subnet files.
	lost, err := filepath.Glob(filepath.Join(f.host.o.RunDir, "*.env"))
	if err == nil {
		for _, path := range lost {
			f.addSubnetFile(path, networkTraces{})
		}
	}
	if path, ok := strings.CutPrefix(f.host.config.HTTP.Address, "unix://"); ok {
		f.addSocket(path, "")
	}
	if path := f.host.config.HTTP.Socket; path != "" {
		f.addSocket(path, "")
	}
}

// addFormerSubnets adds the file of former subnets, or the entry of the network that is cleaned up, and the list of
// configuration files.
func (f *fileFinder) addFormerSubnets() {
	path, list := state.FormerSubnetsPath(f.host.config.DataDir), state.ConfigFilesPath(f.host.config.DataDir)
	former := state.NewFormerSubnets(f.host.config.DataDir)
	subnets, err := former.Load()
	if f.host.o.Network == "" {
		f.addFile(path, "", "former subnets", func([]byte) bool { return f.host.isOwn || err == nil })
		f.addUnfinished(path, "")
		f.addFile(list, "", "list of configuration files", func([]byte) bool { return f.host.isOwn })
		f.addUnfinished(list, "")
		return
	}
	if subnet, ok := subnets[f.host.o.Network]; ok && err == nil {
		l := Leftover{Kind: File, Name: path, Network: f.host.o.Network, Detail: "former subnet " + subnet.String()}
		f.list.add(l, func(context.Context) error { return former.Drop(f.host.o.Network) })
	}
}

// isOfOtherNetwork reports whether a subnet file belongs to a network that is not cleaned up.
func (f *fileFinder) isOfOtherNetwork(path string) bool {
	isOther := func(network, file string) bool {
		return !f.host.isWanted(network) && file != "" && files.IsSame(path, file)
	}
	for _, n := range f.host.config.Networks {
		if isOther(n.Name, n.SubnetFile) {
			return true
		}
	}
	return slices.ContainsFunc(f.host.networks, func(t networkTraces) bool { return isOther(t.name, t.saved.SubnetFile) })
}

// addFile adds the file at path if its content is leno's, which ours reports.
func (f *fileFinder) addFile(path, network, what string, ours func(data []byte) bool) {
	if f.list.hasFile(path) {
		return
	}
	l := Leftover{Kind: File, Name: path, Network: network, Detail: what}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return
	case err != nil:
		f.list.addLeft(l, err)
		return
	case !info.Mode().IsRegular():
		f.list.addForeign(l, "it is no ordinary file")
		return
	}
	data, err := os.ReadFile(path)
	switch {
	case err != nil:
		f.list.addLeft(l, err)
	case !ours(data):
		f.list.addForeign(l, "its content is not leno's")
	default:
		f.list.add(l, func(context.Context) error { return os.Remove(path) })
	}
}

// addSubnetFile adds a subnet file and the unfinished ones beside it. Agents of all network namespaces share the
// directory RunDir: while another one runs, only a file that has the subnets of this host's state is this host's.
func (f *fileFinder) addSubnetFile(path string, t networkTraces) {
	l := Leftover{Kind: File, Name: path, Network: t.name, Detail: "subnet file"}
	if files.IsSame(filepath.Dir(path), f.host.o.RunDir) && !hasSubnets(path, t.saved) {
		if pid, found := f.host.o.AgentElsewhere(f.host.o.RunDir); found {
			if _, err := os.Lstat(path); err == nil && !f.list.isForeign(path) {
				f.list.addForeign(l, "an agent in the network namespace of process %d may have written it: stop that one first",
					pid)
			}
			return
		}
	}
	f.addFile(path, t.name, l.Detail, state.IsSubnetFile)
	f.addUnfinished(path, t.name)
}

// hasSubnets reports whether a subnet file has the subnets of a state.
func hasSubnets(path string, saved state.Network) bool {
	text, err := os.ReadFile(path)
	if err != nil || len(saved.Subnets) == 0 {
		return false
	}
	file, err := state.ParseSubnetFile(string(text))
	return err == nil && slices.Equal(file.Subnets(), saved.Subnets)
}

// addUnfinished adds the files that state.WriteFile had not renamed to path yet.
func (f *fileFinder) addUnfinished(path, network string) {
	for _, unfinished := range state.Unfinished(path) {
		f.addFile(unfinished, network, "half written", func([]byte) bool { return true }) // its name is leno's
	}
}

// addDir adds a directory of leno's if it will be empty. Otherwise it returns the names of the other files in it.
func (f *fileFinder) addDir(path string) (others []string) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil // there is no such directory
	}
	for _, e := range entries {
		if !f.list.hasFile(filepath.Join(path, e.Name())) {
			others = append(others, e.Name())
		}
	}
	if len(others) > 0 {
		return others
	}
	f.list.add(Leftover{Kind: File, Name: path, Detail: "empty directory"}, func(context.Context) error {
		err := os.Remove(path)
		if errors.Is(err, unix.EBUSY) {
			return os.ErrNotExist // a mount point belongs to the operator
		}
		return err
	})
	return nil
}

// addKeys adds the private key of a network of the wireguard backend, what is known of its use, and the unfinished
// files of a process that was killed.
func (f *fileFinder) addKeys(dir, network string) {
	for _, kind := range []struct {
		pattern, detail string
		isOurs          func([]byte) bool
	}{
		{"wireguard.key", "private key", isKey},
		{".wireguard.key-*", "private key", isKey},
		{"wireguard.used", "use of a key", isUse},
		{".wireguard.used-*", "use of a key", isUse},
	} {
		files, err := filepath.Glob(filepath.Join(dir, kind.pattern))
		if err != nil {
			continue // the network's name is no pattern
		}
		for _, path := range files {
			f.addFile(path, network, kind.detail, kind.isOurs)
		}
	}
}

// isUse reports whether a file has a public key and the number of a lease, or nothing yet.
func isUse(data []byte) bool {
	key, _, _ := strings.Cut(string(data), " ")
	return isKey([]byte(key))
}

// isKey reports whether a file has a key as `wg genkey` prints it, or nothing yet.
func isKey(data []byte) bool {
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(data)))
	return err == nil && (len(key) == 32 || len(key) == 0)
}

// addForeignDir reports a directory that has to stay, because it contains other files.
func (f *fileFinder) addForeignDir(path, network string, others []string) {
	if len(others) > 0 {
		f.list.addForeign(Leftover{Kind: File, Name: path, Network: network},
			"%d files in it are not leno's, the first %q", len(others), others[0])
	}
}

// addSocket adds the socket of an agent that was killed.
func (f *fileFinder) addSocket(path, network string) {
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSocket == 0 {
		return
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close() // a process listens
		return
	}
	l := Leftover{Kind: File, Name: path, Network: network, Detail: "socket"}
	f.list.add(l, func(context.Context) error { return os.Remove(path) })
}

// isStateOf returns a function that reports whether a file contains a network's state, written by any version of leno.
// A directory that was configured by mistake contains files of other programs, for example JSON with comments. So a
// broken file is leno's only if it names the network, or if the directory is leno's.
func (f *fileFinder) isStateOf(name string) func([]byte) bool {
	return func(data []byte) bool {
		var head struct {
			Version *int
			Network string
		}
		if !json.Valid(data) {
			return f.host.isOwn || bytes.Contains(data, []byte(`"network": "`+name+`"`))
		}
		return json.Unmarshal(data, &head) == nil && head.Version != nil && head.Network == name
	}
}

func isEmpty(data []byte) bool { return len(data) == 0 }

// findIdentity finds what is removed last: the host's identity and the state directory.
func (f *fileFinder) findIdentity() {
	if f.host.o.Network != "" {
		return
	}
	dir := f.host.config.DataDir
	if !f.host.o.KeepLease {
		f.addFile(state.NodeIDPath(dir), "", "this host's identity",
			func(data []byte) bool { return f.host.isOwn || isEmpty(data) })
	}
	f.addFile(state.LockPath(dir), "", "", isEmpty)
	if others := f.addDir(dir); !f.host.o.KeepLease {
		f.addForeignDir(dir, "", others)
	}
	dev := filepath.Join(f.host.o.RunDir, filepath.Base(config.DevDataDir))
	if _, err := os.Stat(state.LockPath(dev)); err == nil {
		f.list.add(Leftover{Kind: File, Name: dev, Detail: "state of a development agent"}, func(context.Context) error {
			unlock, err := state.LockDataDir(dev) // it may run in another network namespace
			if err != nil {
				return err
			}
			return errors.Join(os.RemoveAll(dev), unlock())
		})
	}
	f.addDir(f.host.o.RunDir)
}
