package state

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked means that another agent uses the state directory or the host.
var ErrLocked = errors.New("in use by another agent")

// hostSocket is the abstract socket that the agent of a network namespace binds. Each namespace has its own, and the
// kernel removes it with the process (unix(7)).
const hostSocket = "@leno-agent"

const (
	// lockPatience is how long a lock may still be held by an agent that was killed: a program that it was just
	// starting has a copy of its descriptors until the program runs.
	lockPatience = time.Second
	lockPause    = 20 * time.Millisecond
)

// patiently tries again while another process holds the lock, until lockPatience is over.
func patiently(lock func() (unlock func() error, err error)) (unlock func() error, err error) {
	for end := time.Now().Add(lockPatience); ; time.Sleep(lockPause) {
		if unlock, err = lock(); !errors.Is(err, ErrLocked) || time.Now().After(end) {
			return unlock, err
		}
	}
}

// LockHost makes this process the only agent of its network namespace. Another agent with its own state directory would
// share devices, routes and rules with it, and remove them. Any user can bind the socket, so LockHost respects it only
// if its owner may run an agent. The error wraps ErrLocked.
func LockHost() (unlock func() error, err error) { return patiently(lockHost) }

func lockHost() (unlock func() error, err error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: hostSocket, Net: "unix"})
	if err == nil {
		go refuse(l)
		return l.Close, nil
	}
	none := func() error { return nil }
	if !errors.Is(err, unix.EADDRINUSE) {
		return none, nil // a host without such sockets has no lock
	}
	owner, err := HostOwner()
	switch {
	case err != nil: // the owner has just ended
		return nil, fmt.Errorf("this host is %w: %w", ErrLocked, err)
	case !owner.MayRunAgents():
		return none, nil
	}
	return nil, fmt.Errorf("this host is %w%s: stop that one, or run this one in a network namespace of its own",
		ErrLocked, owner.process())
}

// refuse ends every connection to the lock until the lock is given up. Without it, those that dialHost has closed would
// stay in the socket's queue, and once that is full, dialHost fails.
func refuse(l *net.UnixListener) {
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			_ = conn.Close() // nothing was sent
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(lockPause) // no descriptor is free
		}
	}
}

// An Owner holds the lock of LockHost.
type Owner struct {
	UID uint32 // the user who made the socket
	PID int    // 0 if it is not known
}

// MayRunAgents reports whether the owner may run an agent: it is root, the user of this process, or a process with the
// right to change the network, such as one of the packages' user.
func (o Owner) MayRunAgents() bool {
	return o.UID == 0 || int(o.UID) == os.Geteuid() || o.PID != 0 && mayChangeNetwork(o)
}

// mayChangeNetwork reports whether the owner's process has CAP_NET_ADMIN. Every user has it in a user namespace of his
// own, so it counts only in the one of this process. If the process has ended, another user's may have its number.
func mayChangeNetwork(o Owner) bool {
	dir := filepath.Join("/proc", strconv.Itoa(o.PID))
	own, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		return false
	}
	if theirs, err := os.Readlink(filepath.Join(dir, "ns/user")); err != nil || theirs != own {
		return false
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return false
	}
	var isUser, isAble bool
	for line := range strings.Lines(string(status)) {
		switch words := strings.Fields(line); {
		case len(words) < 2:
		case words[0] == "Uid:":
			isUser = words[1] == strconv.FormatUint(uint64(o.UID), 10)
		case words[0] == "CapEff:":
			rights, err := strconv.ParseUint(words[1], 16, 64)
			isAble = err == nil && rights&(1<<unix.CAP_NET_ADMIN) != 0
		}
	}
	return isUser && isAble
}

// process returns ", pid 42" or "".
func (o Owner) process() string {
	if o.PID == 0 {
		return ""
	}
	return fmt.Sprintf(", pid %d", o.PID)
}

// HostOwner returns who holds the lock of LockHost. The kernel tells whose socket it is: any user could bind it and not
// answer. The error wraps fs.ErrNotExist if it is not held.
func HostOwner() (Owner, error) {
	uid, err := socketOwner(hostSocket)
	answered, dialErr := dialHost()
	switch {
	case errors.Is(err, unix.ENOENT): // this kernel does not show sockets
		if dialErr != nil {
			return Owner{}, dialErr
		}
		return Owner{answered.Uid, int(answered.Pid)}, nil
	case err != nil:
		return Owner{}, err
	case dialErr == nil && answered.Uid == uid:
		return Owner{uid, int(answered.Pid)}, nil
	}
	return Owner{UID: uid}, nil
}

// dialHost returns the credentials of the process that listens.
func dialHost() (*unix.Ucred, error) {
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

// LockDataDir creates the state directory and locks it, so that two agents never share an identity and its sessions.
// The kernel releases the lock when the process ends. The error wraps ErrLocked.
func LockDataDir(dir string) (unlock func() error, err error) {
	return patiently(func() (func() error, error) { return lockDataDir(dir) })
}

func lockDataDir(dir string) (unlock func() error, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("data_dir: %w", err)
	}
	path := LockPath(dir)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) // a user who can open it can lock it
	if errors.Is(err, unix.EROFS) {
		// On a file system that became read-only, the host's identity can still be read.
		if had, openErr := os.Open(path); openErr == nil {
			f, err = had, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("data_dir: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		err = errors.Join(fmt.Errorf("data_dir %s: %w: %w", dir, ErrLocked, err), f.Close())
		return nil, err
	}
	return f.Close, nil
}

// LockPath returns the path of the lock file in a state directory.
func LockPath(dir string) string { return filepath.Join(dir, "lock") }
