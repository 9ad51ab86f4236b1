package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
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

// errLocked says that another agent has the state directory, or the host.
var errLocked = errors.New("in use by another agent")

// hostSocket is bound by the agent of a network namespace: an abstract name, which
// each namespace has for itself and which goes with its process (unix(7)).
const hostSocket = "@leno-agent"

// lockHost makes this the only agent of its network namespace. Another one with a
// state directory of its own would share devices, routes and rules with it, and
// take them away. The name is anybody's to bind, so only who may run an agent
// counts: root, and the user that this one runs as.
func lockHost() (unlock func() error, err error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: hostSocket, Net: "unix"})
	if err == nil {
		return l.Close, nil
	}
	none := func() error { return nil }
	if !errors.Is(err, unix.EADDRINUSE) {
		return none, nil // a host without such sockets has to do without the lock
	}
	owner, err := hostOwner()
	switch {
	case err != nil: // it has just ended, or will not say
		return nil, fmt.Errorf("this host is %w: %w", errLocked, err)
	case !mayRunAgents(owner.Uid, os.Geteuid()):
		return none, nil
	}
	return nil, fmt.Errorf("this host is %w, pid %d: stop that one, or run this one in a network namespace of its own", errLocked, owner.Pid)
}

// mayRunAgents says whether a user may, as far as the user of this process knows.
func mayRunAgents(uid uint32, own int) bool { return uid == 0 || int(uid) == own }

// hostOwner is the process that bound the name.
func hostOwner() (*unix.Ucred, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: hostSocket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var owner *unix.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) { owner, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return owner, errors.Join(err, asked)
}

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
