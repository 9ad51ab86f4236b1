package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const namespaceDir = "/run/netns" // where ip-netns(8) keeps them

// A Namespace is one network namespace of the lab. Its methods may be called concurrently.
type Namespace struct {
	Name string // as `ip netns exec` expects it

	lab    *Lab
	client *http.Client

	// An HTTP client may still dial when the lab is closed: it dials in the background, also for
	// requests that were cancelled.
	mu     sync.RWMutex
	file   *os.File
	closed bool

	// Processes are started on one thread that lives until the namespace is closed: the kernel ends
	// a child with a parent-death signal when the thread that forked it ends, not when the process
	// does.
	starts chan func()
	ended  chan struct{}
}

// namespace creates a namespace with the given role.
func (l *Lab) namespace(ctx context.Context, role string) (*Namespace, error) {
	name := prefix(l.ID) + role
	l.note("ip netns add " + name)
	if _, err := run(ctx, "", "ip", "netns", "add", name); err != nil {
		return nil, err
	}
	n, err := l.OpenNamespace(name, filepath.Join(namespaceDir, name))
	if err != nil {
		return nil, err
	}
	// Duplicate address detection would make every address, including the link-local one of a
	// router, unusable for a second.
	for _, scope := range []string{"all", "default"} {
		if err := n.sysctl("net/ipv6/conf/"+scope+"/accept_dad", "0"); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// OpenNamespace opens a namespace that another program created, such as a container runtime, by the
// path of its file. The name is used in logs only. Close releases the namespace and leaves it in
// place.
func (l *Lab) OpenNamespace(name, path string) (*Namespace, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	n := &Namespace{Name: name, lab: l, file: file, starts: make(chan func()), ended: make(chan struct{})}
	// Compression would cost both sides more than it saves.
	n.client = &http.Client{Transport: &http.Transport{DialContext: n.DialContext, DisableCompression: true}}
	entered := make(chan error)
	go onOwnThread(func() {
		defer close(n.ended)
		err := n.enter()
		// Programs that it starts inherit the priority. If that is refused, they run as well, only later.
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, programNice)
		entered <- err
		if err != nil {
			return
		}
		for start := range n.starts {
			start()
		}
	})
	if err := <-entered; err != nil {
		<-n.ended
		file.Close()
		return nil, err
	}
	l.mu.Lock()
	l.namespaces = append(l.namespaces, n)
	l.mu.Unlock()
	return n, nil
}

// close releases the namespace, which stays.
func (n *Namespace) close() {
	n.client.CloseIdleConnections()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	close(n.starts)
	<-n.ended
	n.file.Close()
}

// enter moves the calling thread into the namespace.
func (n *Namespace) enter() error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return fmt.Errorf("enter namespace %s: %w", n.Name, os.ErrClosed)
	}
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter namespace %s: %w", n.Name, err)
	}
	return nil
}

// onOwnThread runs f on a thread that ends with it. It never uses the process's first thread,
// because other programs take that thread's namespaces for those of the process.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onOwnThread(f)
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}

// Do runs f on a thread inside the namespace. What f opens belongs to the namespace; goroutines
// that it starts run outside.
func (n *Namespace) Do(f func() error) (err error) {
	onOwnThread(func() {
		if err = n.enter(); err == nil {
			err = f()
		}
	})
	return err
}

// DialContext connects from inside the namespace. The address must be literal, because a name would
// be resolved outside.
func (n *Namespace) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = n.Do(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// HTTP returns a client whose connections start inside the namespace.
func (n *Namespace) HTTP() *http.Client { return n.client }

// programNice is the priority of the programs on hosts. A host in practice has processors of its own: its agent, which
// may forward every packet, does not wait behind compilers. tools/test runs all test binaries with it, too.
const programNice = -10

// start starts a command inside the namespace.
func (n *Namespace) start(cmd *exec.Cmd) error {
	n.prepare(cmd)
	var started error
	err := n.onThread(func() { started = cmd.Start() })
	return errors.Join(err, started)
}

// prepare sets how a command runs on the namespace's thread.
func (n *Namespace) prepare(cmd *exec.Cmd) {
	// A terminal's ^C and hang-up are for this process only. Only programs that outlive it have a session of their own: the
	// kernel shares processors between sessions first (sched(7), autogroup), and one program would count as much as all
	// other tests together.
	if n.lab.opts.Detach {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	} else {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	}
	n.lab.note(fmt.Sprintf("ip netns exec %s %s", n.Name, strings.Join(cmd.Args, " ")))
}

// onThread calls a function on the namespace's thread, and returns an error if the namespace is closed.
func (n *Namespace) onThread(start func()) error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return fmt.Errorf("start in namespace %s: %w", n.Name, os.ErrClosed)
	}
	done := make(chan struct{})
	n.starts <- func() {
		defer close(done)
		start()
	}
	<-done
	return nil
}

// Exec runs a program inside the namespace and returns its standard output, even with an error. The
// error then contains the program's standard error.
func (n *Namespace) Exec(ctx context.Context, command ...string) (string, error) {
	stdout, _, err := n.exec(ctx, command...)
	return stdout, err
}

func (n *Namespace) exec(ctx context.Context, command ...string) (string, string, error) {
	cmd := program(ctx, command...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := n.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%s: %s: %w: %s", n.Name, strings.Join(command, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), stderr.String(), err
}

// Received returns how many bytes a device of the namespace has received.
func (n *Namespace) Received(ctx context.Context, device string) (int64, error) {
	output, err := n.Exec(ctx, "ip", "-json", "-statistics", "link", "show", "dev", device)
	if err != nil {
		return 0, err
	}
	var links []struct {
		Statistics struct {
			Received struct{ Bytes int64 } `json:"rx"`
		} `json:"stats64"`
	}
	if err := json.Unmarshal([]byte(output), &links); err != nil || len(links) != 1 {
		return 0, fmt.Errorf("%s: read the counters of %s: %d devices: %w", n.Name, device, len(links), err)
	}
	return links[0].Statistics.Received.Bytes, nil
}

// Pids returns the sorted ids of the processes in this network namespace.
func (n *Namespace) Pids(ctx context.Context) ([]int, error) { return pids(ctx, n.Name) }

// ip runs lines of ip(8) in one batch, up to the first that fails.
func (n *Namespace) ip(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		n.lab.note(fmt.Sprintf("ip -n %s %s", n.Name, line))
	}
	_, err := run(ctx, strings.Join(lines, "\n"), "ip", "-n", n.Name, "-batch", "-")
	return err
}

// sysctl sets a value below /proc/sys. Most of them belong to the namespace.
func (n *Namespace) sysctl(knob, value string) error {
	n.lab.note(fmt.Sprintf("ip netns exec %s sysctl -w %s=%s", n.Name, knob, value))
	return n.Do(func() error {
		return os.WriteFile(filepath.Join("/proc/sys", knob), []byte(value), 0o644)
	})
}

// run runs a program outside the lab.
func run(ctx context.Context, stdin string, command ...string) (string, error) {
	cmd := program(ctx, command...)
	cmd.Stdin = strings.NewReader(stdin)
	output, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		err = fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	return string(output), err
}

// program returns a command that ends with ctx. Its environment lacks the variables that configure
// Consul and leno, so that a lab does not depend on its surroundings. GORACE makes a program with
// the race detector end without waiting a second.
func program(ctx context.Context, command ...string) *exec.Cmd {
	path, err := exec.LookPath(command[0])
	if err != nil { // the PATH of an ordinary user has no sbin
		if path, err = exec.LookPath(filepath.Join("/usr/sbin", command[0])); err != nil {
			path = command[0]
		}
	}
	cmd := exec.CommandContext(ctx, path, command[1:]...)
	cmd.WaitDelay = 5 * time.Second
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "CONSUL_") && !strings.HasPrefix(entry, "LENO_") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Env = append(cmd.Env, strings.TrimSpace("GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE")))
	return cmd
}
