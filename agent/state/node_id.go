package state

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-uuid"
)

// NodeIDPath returns the path of the file with the host's node id.
func NodeIDPath(dataDir string) string { return filepath.Join(dataDir, "node-id") }

// IsNodeID reports whether id is a UUID, for example "6f1c9d1e-5c3e-4d0b-8a55-0f6f5a6f3d2a".
func IsNodeID(id string) bool {
	_, err := uuid.ParseUUID(id)
	return err == nil
}

// LoadNodeID returns the node id in the state directory, or "" if there is none. If the file of the id is missing,
// broken or empty after a crash, the id in a network's state file counts, and is written to the file. A broken file is
// renamed.
func LoadNodeID(dataDir string, log hclog.Logger) (string, error) {
	path := NodeIDPath(dataDir)
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	id := strings.TrimSpace(string(data))
	if IsNodeID(id) {
		return id, nil
	}
	if id != "" {
		log.Warn("node id is not a UUID, its file is moved to .bad", "path", path)
		if err := os.Rename(path, path+BadSuffix); err != nil {
			return "", err
		}
	}
	for _, name := range Networks(dataDir) {
		s, err := Load(dataDir, name)
		if err == nil && IsNodeID(s.NodeID) {
			log.Warn("node id was lost, using the one in a state file", "node_id", s.NodeID, "network", name)
			return s.NodeID, saveNodeID(dataDir, s.NodeID)
		}
	}
	return "", nil
}

// AdoptNodeID writes the node id to the state directory and returns it. If id is "", it generates one.
func AdoptNodeID(dataDir, id string) (string, error) {
	if id == "" {
		generated, err := uuid.GenerateUUID()
		if err != nil {
			return "", err
		}
		id = generated
	}
	return id, saveNodeID(dataDir, id)
}

func saveNodeID(dataDir, id string) error {
	return WriteFile(NodeIDPath(dataDir), []byte(id+"\n"), 0o644)
}
