package state

import (
	"os"
	"reflect"
	"sync"

	"github.com/lenonet/leno/registry"
)

// A File is the state file of one network. It lets goroutines change it without losing each other's changes, and is
// safe for concurrent use.
type File struct {
	dataDir string
	network string
	mu      sync.Mutex // held during every change of the file
}

// NewFile returns the state file of a network.
func NewFile(dataDir, network string) *File { return &File{dataDir: dataDir, network: network} }

// Load reads the file. It returns the zero value if there is none, and the zero value and an error if the file cannot
// be read or used.
func (f *File) Load() (Network, error) { return Load(f.dataDir, f.network) }

// Update replaces the content of the file with the one that change returns, unless it is the same. It gives change the
// result of Load. change must not call other methods of f.
func (f *File) Update(change func(before Network, loadErr error) Network) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, err := f.Load()
	now := change(before, err)
	now.Version, now.Network = registry.Version, f.network
	if err == nil && reflect.DeepEqual(before, now) {
		return nil
	}
	return Save(f.dataDir, now)
}

// SetAside renames a file that cannot be used, for example to "n.json.bad".
func (f *File) SetAside() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	path := Path(f.dataDir, f.network)
	return os.Rename(path, path+BadSuffix)
}
