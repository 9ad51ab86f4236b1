package examine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// cniDirs are the usual directories of CNI configurations: Nomad's default, and that of other runtimes.
func cniDirs() []string { return []string{"/opt/cni/config", "/etc/cni/net.d"} }

var usesLeno = regexp.MustCompile(`"type"\s*:\s*"leno(-cni)?"`)

// missingCNI returns the directories if no CNI configuration in them uses leno, although the agent is a task of Nomad.
// It returns none if that is not known, or if containers were attached with a configuration in another place.
func missingCNI(getenv func(string) string, dirs []string, records string) []string {
	task := getenv("NOMAD_TASK_DIR")
	if task == "" || task == "/local" { // the latter is in the chroot of the driver exec, without the host's files
		return nil
	}
	if attached, err := os.ReadDir(records); len(attached) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, dir := range dirs {
		files, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		for _, f := range files {
			if text, err := os.ReadFile(filepath.Join(dir, f.Name())); err != nil || usesLeno.Match(text) {
				return nil
			}
		}
	}
	return dirs
}
