package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ConfigFilesPath returns the path of the list of configuration files.
func ConfigFilesPath(dataDir string) string { return filepath.Join(dataDir, "config-files") }

// LoadConfigFiles returns the paths of the configuration files that had options when an agent last took a configuration
// over. It returns none if the list cannot be read.
func LoadConfigFiles(dataDir string) []string {
	text, err := os.ReadFile(ConfigFilesPath(dataDir))
	if err != nil {
		return nil
	}
	return strings.Split(string(text), "\n")
}

// SaveConfigFiles writes the list, one absolute path a line, unless it is the same as before.
func SaveConfigFiles(dataDir string, files []string) error {
	var list strings.Builder
	for _, file := range files {
		list.WriteString(file + "\n")
	}
	path := ConfigFilesPath(dataDir)
	text, err := os.ReadFile(path)
	if err == nil && string(text) == list.String() || errors.Is(err, fs.ErrNotExist) && list.Len() == 0 {
		return nil
	}
	return WriteFile(path, []byte(list.String()), 0o600)
}
