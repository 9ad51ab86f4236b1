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

	"github.com/lenonet/leno/agent/files"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/switchover"
)

// findFiles finds state files, peers files and subnet files, and the unfinished ones of a process that was killed.
func (c *cleaner) findFiles() {
	for _, t := range c.networks {
		if !c.isWanted(t.name) {
			continue
		}
		for _, f := range []struct{ path, what string }{
			{state.Path(c.config.DataDir, t.name), "state"},
			{state.PeersPath(c.config.DataDir, t.name), "peers"},
			{state.DeletionPath(c.config.DataDir, t.name), "deletion"},
		} {
			c.addFile(f.path, t.name, f.what, c.isStateOf(t.name))
			c.addFile(f.path+state.BadSuffix, t.name, "put aside", c.isStateOf(t.name))
			c.addUnfinished(f.path, t.name)
		}
		dir := filepath.Join(c.config.DataDir, t.name)
		other := switchover.OtherDataDir(dir)
		c.addKeys(dir, t.name)
		c.addKeys(other, t.name)
		c.addForeignDir(other, t.name, c.addDir(other))
		c.addForeignDir(dir, t.name, c.addDir(dir))
		for _, link := range backend.LinkNames(t.name) {
			c.addSocket(filepath.Join(c.o.WireGuardDir, link+".sock"), t.name)
		}
		for _, path := range t.files {
			if c.o.Network != "" && c.isOfOtherNetwork(path) {
				continue
			}
			c.addSubnetFile(path, t)
		}
	}
	c.addDir(filepath.Dir(state.PeersPath(c.config.DataDir, "any")))
	c.addDir(filepath.Dir(state.DeletionPath(c.config.DataDir, "any")))
	c.addFormerSubnets()
	if c.o.Network != "" {
		return
	}
	c.addFile(state.NodeIDPath(c.config.DataDir)+state.BadSuffix, "", "put aside", func([]byte) bool { return c.isOwn })
	c.addUnfinished(state.NodeIDPath(c.config.DataDir), "")
	// Networks that have no other trace may have subnet files.
	lost, err := filepath.Glob(filepath.Join(c.o.RunDir, "*.env"))
	if err == nil {
		for _, path := range lost {
			c.addSubnetFile(path, networkTraces{})
		}
	}
	if path, ok := strings.CutPrefix(c.config.HTTP.Address, "unix://"); ok {
		c.addSocket(path, "")
	}
	if path := c.config.HTTP.Socket; path != "" {
		c.addSocket(path, "")
	}
}

// addFormerSubnets adds the file of former subnets, or the entry of the network that is cleaned up, and the list of
// configuration files.
func (c *cleaner) addFormerSubnets() {
	path, list := state.FormerSubnetsPath(c.config.DataDir), state.ConfigFilesPath(c.config.DataDir)
	former := state.NewFormerSubnets(c.config.DataDir)
	subnets, err := former.Load()
	if c.o.Network == "" {
		c.addFile(path, "", "former subnets", func([]byte) bool { return c.isOwn || err == nil })
		c.addUnfinished(path, "")
		c.addFile(list, "", "list of configuration files", func([]byte) bool { return c.isOwn })
		c.addUnfinished(list, "")
		return
	}
	if subnet, ok := subnets[c.o.Network]; ok && err == nil {
		l := Leftover{Kind: File, Name: path, Network: c.o.Network, Detail: "former subnet " + subnet.String()}
		c.add(l, func(context.Context) error { return former.Drop(c.o.Network) })
	}
}

// isOfOtherNetwork reports whether a subnet file belongs to a network that is not cleaned up.
func (c *cleaner) isOfOtherNetwork(path string) bool {
	isOther := func(network, file string) bool {
		return !c.isWanted(network) && file != "" && files.IsSame(path, file)
	}
	for _, n := range c.config.Networks {
		if isOther(n.Name, n.SubnetFile) {
			return true
		}
	}
	return slices.ContainsFunc(c.networks, func(t networkTraces) bool { return isOther(t.name, t.saved.SubnetFile) })
}

// addFile adds the file at path if its content is leno's, which ours reports.
func (c *cleaner) addFile(path, network, what string, ours func(data []byte) bool) {
	if c.has(path) {
		return
	}
	l := Leftover{Kind: File, Name: path, Network: network, Detail: what}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return
	case err != nil:
		c.addLeft(l, err)
		return
	case !info.Mode().IsRegular():
		c.addForeign(l, "it is no ordinary file")
		return
	}
	data, err := os.ReadFile(path)
	switch {
	case err != nil:
		c.addLeft(l, err)
	case !ours(data):
		c.addForeign(l, "its content is not leno's")
	default:
		c.add(l, func(context.Context) error { return os.Remove(path) })
	}
}

// addSubnetFile adds a subnet file and the unfinished ones beside it. Agents of all network namespaces share the
// directory RunDir: while another one runs, only a file that has the subnets of this host's state is this host's.
func (c *cleaner) addSubnetFile(path string, t networkTraces) {
	l := Leftover{Kind: File, Name: path, Network: t.name, Detail: "subnet file"}
	if files.IsSame(filepath.Dir(path), c.o.RunDir) && !hasSubnets(path, t.saved) {
		if pid, found := c.o.AgentElsewhere(c.o.RunDir); found {
			isReported := slices.ContainsFunc(c.report.Foreign, func(f Leftover) bool { return f.Name == path })
			if _, err := os.Lstat(path); err == nil && !isReported {
				c.addForeign(l, "an agent in the network namespace of process %d may have written it: stop that one first",
					pid)
			}
			return
		}
	}
	c.addFile(path, t.name, l.Detail, state.IsSubnetFile)
	c.addUnfinished(path, t.name)
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
func (c *cleaner) addUnfinished(path, network string) {
	for _, unfinished := range state.Unfinished(path) {
		c.addFile(unfinished, network, "half written", func([]byte) bool { return true }) // its name is leno's
	}
}

// addDir adds a directory of leno's if it will be empty. Otherwise it returns the names of the other files in it.
func (c *cleaner) addDir(path string) (others []string) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil // there is no such directory
	}
	for _, e := range entries {
		if !c.has(filepath.Join(path, e.Name())) {
			others = append(others, e.Name())
		}
	}
	if len(others) > 0 {
		return others
	}
	c.add(Leftover{Kind: File, Name: path, Detail: "empty directory"}, func(context.Context) error {
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
func (c *cleaner) addKeys(dir, network string) {
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
			c.addFile(path, network, kind.detail, kind.isOurs)
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
func (c *cleaner) addForeignDir(path, network string, others []string) {
	if len(others) > 0 {
		c.addForeign(Leftover{Kind: File, Name: path, Network: network},
			"%d files in it are not leno's, the first %q", len(others), others[0])
	}
}

// addSocket adds the socket of an agent that was killed.
func (c *cleaner) addSocket(path, network string) {
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSocket == 0 {
		return
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close() // a process listens
		return
	}
	l := Leftover{Kind: File, Name: path, Network: network, Detail: "socket"}
	c.add(l, func(context.Context) error { return os.Remove(path) })
}

// has reports whether the file at path will be removed.
func (c *cleaner) has(path string) bool {
	return slices.ContainsFunc(c.found, func(l Leftover) bool { return l.Kind == File && l.Name == path })
}

// isStateOf returns a function that reports whether a file contains a network's state, written by any version of leno.
// A directory that was configured by mistake contains files of other programs, for example JSON with comments. So a
// broken file is leno's only if it names the network, or if the directory is leno's.
func (c *cleaner) isStateOf(name string) func([]byte) bool {
	return func(data []byte) bool {
		var head struct {
			Version *int
			Network string
		}
		if !json.Valid(data) {
			return c.isOwn || bytes.Contains(data, []byte(`"network": "`+name+`"`))
		}
		return json.Unmarshal(data, &head) == nil && head.Version != nil && head.Network == name
	}
}

func isEmpty(data []byte) bool { return len(data) == 0 }
