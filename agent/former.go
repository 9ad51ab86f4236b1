package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
)

// formerSubnets are the subnets that this host gave up when a network's block was
// taken out of its configuration, in <data_dir>/former-subnets. A network that comes
// back asks for the same one. Safe for concurrent use.
type formerSubnets struct {
	path string
	mu   sync.Mutex // held around every change of the file
}

// maxFormerSubnets bounds the file; the networks that were left first go first.
const maxFormerSubnets = 64

// formerSubnetsFile is the file.
type formerSubnetsFile struct {
	Version  int                     `json:"version"`
	Networks map[string]formerSubnet `json:"networks"`
}

type formerSubnet struct {
	Subnet netip.Prefix `json:"subnet"`
	Left   time.Time    `json:"left"`
}

// formerSubnetsPath has no .json at its end, as the state files of networks have.
func formerSubnetsPath(dataDir string) string { return filepath.Join(dataDir, "former-subnets") }

func newFormerSubnets(dataDir string) *formerSubnets {
	return &formerSubnets{path: formerSubnetsPath(dataDir)}
}

// subnet is what this host had in a network, invalid for nothing.
func (f *formerSubnets) subnet(network string) netip.Prefix {
	f.mu.Lock()
	defer f.mu.Unlock()
	file, err := readFormerSubnets(f.path)
	if err != nil {
		return netip.Prefix{} // another subnet will do
	}
	return file.Networks[network].Subnet
}

// put remembers the subnet of a network that is being left.
func (f *formerSubnets) put(network string, subnet netip.Prefix) error {
	return f.change(func(networks map[string]formerSubnet) bool {
		networks[network] = formerSubnet{subnet, time.Now().UTC().Truncate(time.Second)}
		return true
	})
}

// drop forgets a network, of which this host has a lease again.
func (f *formerSubnets) drop(network string) error {
	return f.change(func(networks map[string]formerSubnet) bool {
		_, there := networks[network]
		delete(networks, network)
		return there
	})
}

// change writes the file when edit says that it changed something. A file that
// cannot be used is replaced.
func (f *formerSubnets) change(edit func(networks map[string]formerSubnet) bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	file, err := readFormerSubnets(f.path)
	if err != nil || file.Networks == nil {
		file.Networks = map[string]formerSubnet{}
	}
	if !edit(file.Networks) {
		return nil
	}
	if len(file.Networks) == 0 {
		return os.Remove(f.path)
	}
	oldest := slices.SortedFunc(maps.Keys(file.Networks), func(a, b string) int {
		return cmp.Or(file.Networks[a].Left.Compare(file.Networks[b].Left), cmp.Compare(a, b))
	})
	for _, name := range oldest[:max(0, len(oldest)-maxFormerSubnets)] {
		delete(file.Networks, name)
	}
	file.Version = registry.Version
	data, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	return state.WriteFile(f.path, append(data, '\n'), 0o600)
}

// readFormerSubnets reads the file; one of another version is an error.
func readFormerSubnets(path string) (file formerSubnetsFile, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return formerSubnetsFile{}, err
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return formerSubnetsFile{}, fmt.Errorf("%s is broken: %w", path, err)
	}
	if file.Version != registry.Version {
		return formerSubnetsFile{}, fmt.Errorf("%s is of version %d", path, file.Version)
	}
	return file, nil
}

// keepFormer remembers the subnet that this host has in a network, which its
// configuration does not want any more.
func (a *Agent) keepFormer(network string) {
	subnet := netip.Prefix{}
	if run, ok := a.runner(network); ok {
		if lease, held, _ := run.lease.Get(); held {
			subnet = lease.Subnet()
		}
	}
	if before, err := state.Load(a.current().DataDir, network); err == nil && !subnet.IsValid() && len(before.Subnets) > 0 && before.Subnets[0] != before.Revoked {
		subnet = before.Subnets[0]
	}
	if !subnet.IsValid() {
		return
	}
	if err := a.env.former.put(network, subnet); err != nil {
		a.log.Warn("subnet of a network that is left cannot be written down", "network", network, "subnet", subnet, "error", err)
	}
}
