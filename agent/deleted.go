package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
)

// A host that has seen the deletion of a network writes it down. A store that has lost
// everything has lost the record of the deletion too, and the block of a host would
// define the network again.

// deletionPath is where the deletion of a network is written down.
func deletionPath(dataDir, network string) string {
	return filepath.Join(dataDir, "deleted", network+".json")
}

// deletionFile is the file.
type deletionFile struct {
	Version int       `json:"version"`
	Network string    `json:"network"`
	Deleted time.Time `json:"deleted"`
}

// readDeletion reads the file, nil when there is none.
func readDeletion(dataDir, network string) (*registry.Deletion, error) {
	path := deletionPath(dataDir, network)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var file deletionFile
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("%s is broken: %w", path, err)
	}
	switch {
	case file.Version != registry.Version || file.Network != network:
		return nil, fmt.Errorf("%s is of version %d and network %q", path, file.Version, file.Network)
	case file.Deleted.IsZero():
		return nil, fmt.Errorf("%s is broken: it has no time", path)
	}
	return &registry.Deletion{Network: network, Time: file.Deleted}, nil
}

// writeDeletion writes the file, and removes those of other networks that are too old to
// be of use.
func writeDeletion(dataDir string, d registry.Deletion) error {
	data, err := json.MarshalIndent(deletionFile{registry.Version, d.Network, d.Time.UTC()}, "", "  ")
	if err != nil {
		return err
	}
	if err := state.WriteFile(deletionPath(dataDir, d.Network), append(data, '\n'), 0o600); err != nil {
		return err
	}
	files, err := filepath.Glob(deletionPath(dataDir, "*"))
	if err != nil {
		return nil // only of a pattern that is wrong
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		old, err := readDeletion(dataDir, name)
		if err != nil || old == nil || name == d.Network || time.Since(old.Time) < registry.DeletionKept {
			continue
		}
		if err := removeDeletion(dataDir, name); err != nil {
			return err
		}
	}
	return nil
}

// removeDeletion removes the file, and the directory when it was the last in it.
func removeDeletion(dataDir, network string) error {
	path := deletionPath(dataDir, network)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Remove(filepath.Dir(path)); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

// recallDeletion reads what an earlier process wrote down.
func (r *runner) recallDeletion() {
	d, err := readDeletion(r.config.DataDir, r.local.Name)
	if err != nil {
		r.log.Warn("starting without what is remembered of the network's deletion", "error", err)
	}
	r.deletion = d
}

// rememberDeletion notes that the network was deleted.
func (r *runner) rememberDeletion(d registry.Deletion) {
	if r.deletion != nil && r.deletion.Time.Equal(d.Time) {
		return
	}
	r.deletion = &d
	if err := writeDeletion(r.config.DataDir, d); err != nil {
		r.log.Warn("the network's deletion cannot be written down: if the store loses the record of it, "+
			"this host may define the network again", "error", err)
	}
}

// forgetDeletion notes that the network is defined.
func (r *runner) forgetDeletion() {
	r.deletion = nil
	if err := removeDeletion(r.config.DataDir, r.local.Name); err != nil {
		r.log.Warn("the network is defined again, and the file that says that it was deleted cannot be removed", "error", err)
	}
}

// lostDeletion returns the deletion that this host remembers of a network of which the
// store has no record, nil when there is none: it remembers the network from a later time,
// or the deletion is so old that its record may be gone in the ordinary way.
func (r *runner) lostDeletion() *registry.DeletedError {
	switch {
	case r.deletion == nil || time.Since(r.deletion.Time) >= registry.DeletionKept:
		return nil
	case r.known != nil && !r.deletion.Ends(r.known.network, r.known.used):
		return nil
	}
	return &registry.DeletedError{Deletion: *r.deletion}
}

// restoreDeletion puts the record of a deletion back into a store that has lost it,
// unless hosts that take part in the network know better. The error is what the store has
// then, the deletion as a rule.
func (r *runner) restoreDeletion(ctx context.Context, lost *registry.DeletedError) (registry.Network, error) {
	if err := r.definedElsewhere(ctx); err != nil {
		return registry.Network{}, err
	}
	switch err := r.env.registry.PutDeletion(ctx, lost.Deletion); {
	case err == nil:
		r.log.Warn("the store had lost the record of the network's deletion, put back", "deleted", lost.Time.UTC().Format(time.RFC3339))
	case !errors.Is(err, registry.ErrConflict): // another host was first, or someone has defined it
		return registry.Network{}, fmt.Errorf("%w; the store has lost the record of that, and this agent cannot put it back: %w", lost, err)
	}
	return r.env.registry.Network(ctx, r.local.Name)
}
