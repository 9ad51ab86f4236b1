package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lenonet/leno/registry"
)

// A Deletion is the deletion of a network, as a host remembers it.
type Deletion struct {
	registry.Deletion
	Store string // as in Network
}

// deletionFile is the content of the file <data_dir>/deleted/<network>.json.
type deletionFile struct {
	Version int       `json:"version"`
	Network string    `json:"network"`
	Deleted time.Time `json:"deleted"`
	Store   string    `json:"store,omitzero"`
	registry.Lineage
}

// DeletionPath returns the path of the file that records the deletion of a network.
func DeletionPath(dataDir, network string) string {
	return filepath.Join(dataDir, "deleted", network+".json")
}

// LoadDeletion reads the deletion of a network. It returns nil if there is none.
func LoadDeletion(dataDir, network string) (*Deletion, error) {
	path := DeletionPath(dataDir, network)
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
		return nil, fmt.Errorf("%s has no deletion time", path)
	}
	d := registry.Deletion{Network: network, Time: file.Deleted, Lineage: file.Lineage}
	return &Deletion{d, file.Store}, nil
}

// SaveDeletion writes the deletion of a network, and removes the files of deletions that are too old to matter.
func SaveDeletion(dataDir string, d Deletion) error {
	file := deletionFile{registry.Version, d.Network, d.Time.UTC(), d.Store, d.Lineage}
	if err := writeJSON(DeletionPath(dataDir, d.Network), file); err != nil {
		return err
	}
	files, err := filepath.Glob(DeletionPath(dataDir, "*"))
	if err != nil {
		return nil // only for an invalid pattern
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		info, err := os.Stat(file)
		if err != nil || time.Since(info.ModTime()) < registry.DeletionKept { // by this host's own clock
			continue
		}
		if err := RemoveDeletion(dataDir, name); err != nil {
			return err
		}
	}
	return nil
}

// RemoveDeletion removes the file of a deletion, and the directory if it is empty then.
func RemoveDeletion(dataDir, network string) error {
	return removeWithDir(DeletionPath(dataDir, network))
}
