package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/registry"
)

// identity is who this host is to all others. It does not change while the
// agent runs.
type identity struct {
	node   string // node name
	nodeID string // UUID kept in the state directory
}

// errLocked says that another agent has the state directory.
var errLocked = errors.New("in use by another agent")

// lockDataDir makes the directory and takes its lock, so that two agents never
// share an identity and its sessions. The lock goes with the process, however
// it ends.
func lockDataDir(dir string) (unlock func() error, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("data_dir: %w", err)
	}
	path := lockPath(dir)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if errors.Is(err, unix.EROFS) {
		// A host whose file system became read-only knows who it is all the same.
		if had, openErr := os.Open(path); openErr == nil {
			f, err = had, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("data_dir: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		err = errors.Join(fmt.Errorf("data_dir %s: %w: %w", dir, errLocked, err), f.Close())
		return nil, err
	}
	return f.Close, nil
}

func lockPath(dir string) string { return filepath.Join(dir, "lock") }

// nodeName is the configured name, else the store's name of this host, else
// the host name. Asking the store may fail while it is away: guessing another
// name then would change who we are, so the error is returned.
func nodeName(ctx context.Context, configured string, reg registry.Registry) (string, error) {
	if configured != "" {
		return configured, nil
	}
	if namer, ok := reg.(registry.NodeNamer); ok {
		name, err := namer.NodeName(ctx)
		if err != nil {
			return "", fmt.Errorf("node name: %w", err)
		}
		if name != "" {
			return name, nil
		}
	}
	return os.Hostname()
}
