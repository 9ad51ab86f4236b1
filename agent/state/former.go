package state

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

	"github.com/lenonet/leno/registry"
)

// maxFormerSubnets bounds the file of former subnets. The networks that were left first are dropped first.
const maxFormerSubnets = 64

// FormerSubnets stores the subnets that this host gave up because the blocks of their networks were removed from its
// configuration. If such a network comes back, the host asks for the same subnet. FormerSubnets is safe for concurrent
// use.
type FormerSubnets struct {
	path string
	mu   sync.Mutex // held around every change of the file
}

// formerSubnetsFile is the content of the file <data_dir>/former-subnets.
type formerSubnetsFile struct {
	Version  int                     `json:"version"`
	Networks map[string]formerSubnet `json:"networks"`
}

type formerSubnet struct {
	Subnet netip.Prefix `json:"subnet"`
	Left   time.Time    `json:"left"`
}

// FormerSubnetsPath returns the path of the file. It does not end in .json like the state files of networks.
func FormerSubnetsPath(dataDir string) string { return filepath.Join(dataDir, "former-subnets") }

// NewFormerSubnets returns the former subnets in a state directory.
func NewFormerSubnets(dataDir string) *FormerSubnets {
	return &FormerSubnets{path: FormerSubnetsPath(dataDir)}
}

// Load returns the former subnet of each network. The error is from reading the file, or says that it cannot be used.
func (f *FormerSubnets) Load() (map[string]netip.Prefix, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	file, err := f.read()
	subnets := map[string]netip.Prefix{}
	for name, former := range file.Networks {
		subnets[name] = former.Subnet
	}
	return subnets, err
}

// Subnet returns the former subnet in a network, or the zero value if there is none or the file cannot be used.
func (f *FormerSubnets) Subnet(network string) netip.Prefix {
	subnets, err := f.Load()
	if err != nil {
		return netip.Prefix{}
	}
	return subnets[network]
}

// Put stores the subnet of a network that is being left.
func (f *FormerSubnets) Put(network string, subnet netip.Prefix) error {
	return f.change(func(networks map[string]formerSubnet) bool {
		networks[network] = formerSubnet{subnet, time.Now().UTC().Truncate(time.Second)}
		return true
	})
}

// Drop removes the former subnet in a network.
func (f *FormerSubnets) Drop(network string) error {
	return f.change(func(networks map[string]formerSubnet) bool {
		_, exists := networks[network]
		delete(networks, network)
		return exists
	})
}

// change writes the file if edit returns true. A file that cannot be used is replaced.
func (f *FormerSubnets) change(edit func(networks map[string]formerSubnet) bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	file, err := f.read()
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
	return writeJSON(f.path, file)
}

func (f *FormerSubnets) read() (file formerSubnetsFile, err error) {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return formerSubnetsFile{}, err
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return formerSubnetsFile{}, fmt.Errorf("%s is broken: %w", f.path, err)
	}
	if file.Version != registry.Version {
		return formerSubnetsFile{}, fmt.Errorf("%s is of version %d", f.path, file.Version)
	}
	return file, nil
}
