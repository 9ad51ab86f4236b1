package state

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/internal/testkit/waiting"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestHostIsLocked: one agent a network namespace, whatever its state directory.
func TestHostIsLocked(t *testing.T) {
	here, elsewhere := nstest.New(t), nstest.New(t)
	lock := func(ns *nstest.NS) (unlock func() error, err error) {
		ns.Do(func() { unlock, err = LockHost() })
		return unlock, err
	}
	unlock, err := lock(here)
	must(t, err)
	if _, err := lock(here); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint("pid ", os.Getpid())) {
		t.Errorf("a second one: %v", err)
	}
	other, err := lock(elsewhere)
	must(t, err)
	must(t, other())
	must(t, unlock())
	unlock, err = lock(here)
	must(t, err)
	must(t, unlock())
}

// TestLockOfManyQuestions: those who ask whose lock it is, and leave, do not fill the queue of the lock's socket.
func TestLockOfManyQuestions(t *testing.T) {
	nstest.New(t).Do(func() {
		must(t, os.WriteFile("/proc/sys/net/core/somaxconn", []byte("4"), 0o644)) // of this namespace
		unlock, err := LockHost()
		must(t, err)
		for range 20 {
			waiting.Eventually(t, func() error {
				answered, err := dialHost()
				if err == nil && int(answered.Pid) != os.Getpid() {
					err = fmt.Errorf("process %d has answered", answered.Pid)
				}
				return err
			})
		}
		must(t, unlock())
	})
}

// TestLockOfADyingAgent: a lock that is given up a moment later, as that of an agent that was killed while it started a
// program, is waited for.
func TestLockOfADyingAgent(t *testing.T) {
	ns, dir := nstest.New(t), t.TempDir()
	for name, lock := range map[string]func() (func() error, error){
		"host":     LockHost,
		"data_dir": func() (func() error, error) { return LockDataDir(dir) },
	} {
		t.Run(name, func(t *testing.T) {
			ns.Do(func() {
				dying, err := lock()
				must(t, err)
				gone := make(chan error, 1)
				time.AfterFunc(5*lockPause, func() { gone <- dying() })
				unlock, err := lock()
				must(t, err)
				must(t, <-gone)
				must(t, unlock())
			})
		})
	}
}

func TestMayRunAgents(t *testing.T) {
	for _, tt := range []struct {
		owner Owner
		want  bool
	}{
		{Owner{UID: 0}, true},
		{Owner{UID: uint32(os.Geteuid())}, true},
		{Owner{UID: 1000}, false},
		{Owner{UID: 1000, PID: os.Getpid()}, false}, // the process is root's
		{Owner{UID: 1000, PID: 1 << 30}, false},
	} {
		if got := tt.owner.MayRunAgents(); got != tt.want {
			t.Errorf("%+v: %v", tt.owner, got)
		}
	}
}

// TestLockOfAnotherUser: a process of another user that has the right to change the network may be an agent. The right in
// a user namespace of its own is none.
func TestLockOfAnotherUser(t *testing.T) {
	const variable = "LENO_TEST_LOCK_HOST"
	if os.Getenv(variable) != "" {
		unlock, err := LockHost()
		must(t, err)
		fmt.Println("locked")
		_, err = io.Copy(io.Discard, os.Stdin)
		must(t, errors.Join(err, unlock()))
		return
	}
	const user = 1000
	for _, tt := range []struct {
		name string
		as   syscall.SysProcAttr
		want bool
	}{
		{"with the right", syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}, AmbientCaps: []uintptr{unix.CAP_NET_ADMIN}}, true},
		{"with another right", syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}, AmbientCaps: []uintptr{unix.CAP_NET_RAW}}, false},
		{"in a user namespace", syscall.SysProcAttr{
			Credential:  &syscall.Credential{Uid: user, Gid: user},
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: user, HostID: user, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: user, HostID: user, Size: 1}},
			AmbientCaps: []uintptr{unix.CAP_NET_ADMIN},
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nstest.New(t).Do(func() {
				cmd := exec.Command("/proc/self/exe", "-test.run=^"+strings.Split(t.Name(), "/")[0]+"$")
				cmd.Env = append(os.Environ(), variable+"=1")
				cmd.SysProcAttr = &tt.as
				in, err := cmd.StdinPipe()
				must(t, err)
				out, err := cmd.StdoutPipe()
				must(t, errors.Join(err, cmd.Start()))
				defer func() { must(t, errors.Join(in.Close(), cmd.Wait())) }()
				if line, err := bufio.NewReader(out).ReadString('\n'); line != "locked\n" {
					t.Fatalf("%q, %v", line, err)
				}
				unlock, err := LockHost()
				if errors.Is(err, ErrLocked) != tt.want || tt.want && !strings.Contains(err.Error(), fmt.Sprint("pid ", cmd.Process.Pid)) {
					t.Errorf("%v", err)
				}
				if err == nil {
					must(t, unlock())
				}
			})
		})
	}
}

// bindAs binds the name of the host's lock as a user does, and listens or not.
func bindAs(t *testing.T, uid int, listens bool) (release func()) {
	t.Helper()
	must(t, unix.Setfsuid(uid)) // of this thread, which the namespace has locked
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, errors.Join(err, unix.Setfsuid(0)))
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: hostSocket}))
	if listens {
		must(t, unix.Listen(fd, 0))
	}
	return func() { must(t, unix.Close(fd)) }
}

// TestLockOfAStranger: a user who may not run an agent cannot keep others from it, whether he answers or not.
func TestLockOfAStranger(t *testing.T) {
	for _, tt := range []struct {
		name    string
		uid     int
		listens bool
		locked  bool
	}{
		{"bound by a user", 65534, false, false},
		{"listening user", 65534, true, false},
		{"bound by root", 0, false, true},
		{"listening root", 0, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := nstest.New(t)
			ns.Do(func() {
				release := bindAs(t, tt.uid, tt.listens)
				defer release()
				unlock, err := LockHost()
				if errors.Is(err, ErrLocked) != tt.locked {
					t.Errorf("%v", err)
				}
				if err == nil {
					must(t, unlock())
				}
			})
		})
	}
}

// TestLockFileIsPrivate: a user who can read a file can lock it.
func TestLockFileIsPrivate(t *testing.T) {
	dir := t.TempDir()
	unlock, err := LockDataDir(dir)
	must(t, err)
	must(t, unlock())
	info, err := os.Stat(LockPath(dir))
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
}
