package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Records are stored below the data directory:
//
//	addresses/NETWORK/10.5.34.2            host-local's store, one file per address
//	attachments/NAME/CONTAINER:INTERFACE   a record, for each attachment by the configuration NAME
//	bridges/NETWORK/DEVICE                 recordedGateways, for each device that has gateways
//	accept_ra/DEVICE                       what it was before the plugin, while that runs
//
// The data directory is below /run by default: after a boot there are no containers, and their
// records are gone too.

// addressDir returns the dataDir of host-local.
func addressDir(dataDir string) string { return filepath.Join(dataDir, "addresses") }

// attachmentDir returns the directory of a configuration's records; with name "", that of all records.
func attachmentDir(dataDir, name string) string { return filepath.Join(dataDir, "attachments", name) }

// gatewayDir returns the directory of the files NETWORK/DEVICE, one for each device that was given
// gateways of a network.
func gatewayDir(dataDir string) string { return filepath.Join(dataDir, "bridges") }

// acceptRADir returns the directory of the files with accept_ra of each bridge that a plugin is working on.
func acceptRADir(dataDir string) string { return filepath.Join(dataDir, "accept_ra") }

// Records are executed with the rights of the runtime, which is root. Any user who can write below
// dataDir, or replace it, therefore has these rights too.

// makeDataDir creates the directory if it does not exist.
func makeDataDir(dir string) error {
	if err := checkDataDir(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("dataDir: %w", err)
	}
	return checkDataDir(dir)
}

// checkDataDir returns an error if other users can change the directory's content. It checks the
// part of the path that exists.
func checkDataDir(dir string) error {
	if !filepath.IsAbs(dir) { // the directories above it are unknown
		return fmt.Errorf("dataDir: %q is not an absolute path", dir)
	}
	dir = filepath.Clean(dir)
	existing := dir
	for {
		_, err := os.Lstat(existing)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("dataDir: %w", err)
		}
		existing = filepath.Dir(existing)
	}
	real, err := filepath.EvalSymlinks(existing)
	if err != nil {
		return fmt.Errorf("dataDir: %w", err)
	}
	for _, path := range []string{existing, real} {
		for at := path; ; at = filepath.Dir(at) {
			info, err := os.Lstat(at)
			if err != nil {
				return fmt.Errorf("dataDir: %w", err)
			}
			if err := checkPlace(at, info, at == real && existing == dir); err != nil {
				return fmt.Errorf("dataDir %s: %w; use one that, like its parents, only root can change", dir, err)
			}
			if at == "/" {
				break
			}
		}
	}
	return nil
}

// checkPlace returns an error if other users can replace the entries of a directory. In a
// directory with the sticky bit they can only add entries; that is refused only for dataDir
// itself, which last marks.
func checkPlace(path string, info fs.FileInfo, last bool) error {
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	switch {
	case owner != 0 && owner != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d", path, owner)
	case info.Mode()&fs.ModeSymlink != 0:
		return nil
	case last && !info.IsDir():
		return fmt.Errorf("%s is not a directory", path)
	case info.Mode().Perm()&0o022 != 0 && (last || info.Mode()&fs.ModeSticky == 0):
		return fmt.Errorf("others than user %d can write in %s", owner, path)
	}
	return nil
}
