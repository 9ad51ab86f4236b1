package etcdtest

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errPortTaken says that another process uses one of the ports of a member.
var errPortTaken = errors.New("port is taken")

// member is one server of a cluster.
type member struct {
	name      string // "m0"
	data      string // its data directory
	log       string // path of the file with its output
	clientURL string
	peerURL   string

	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
	paused bool
	logged int64 // size of the log when the process was started
}

// newMembers replaces the members by new ones at free ports, with their data below dir.
func (s *Server) newMembers(dir string) error {
	ports, err := freePorts(2 * s.options.Members)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	scheme := "http"
	if s.options.TLS {
		scheme = "https"
	}
	s.members = nil
	for i := range s.options.Members {
		name := fmt.Sprintf("m%d", i)
		s.members = append(s.members, &member{
			name:      name,
			data:      filepath.Join(dir, name),
			log:       filepath.Join(dir, name+".log"),
			clientURL: fmt.Sprintf("%s://127.0.0.1:%d", scheme, ports[2*i]),
			peerURL:   fmt.Sprintf("http://127.0.0.1:%d", ports[2*i+1]),
		})
	}
	return nil
}

// freePorts returns n TCP ports that are free on loopback, all different.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// start runs the process and does not wait until it is ready.
func (m *member) start(program string, args []string) error {
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return err
	}
	m.logged = info.Size()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = filepath.Dir(m.log)
	for _, v := range os.Environ() { // etcd takes ETCD_NAME and so on for flags
		if !strings.HasPrefix(v, "ETCD_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	// When a test binary is killed, the kernel kills its servers too. The kernel considers the thread that started them
	// the parent, so that thread stays as long as they run.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, exited := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(exited)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	m.cmd, m.exited, m.paused = cmd, exited, false
	return nil
}

// awaitReady blocks until the member serves linearizable reads.
func (m *member) awaitReady(client *http.Client) error {
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if err = checkHealth(client, m.clientURL+"/health"); err == nil {
			return nil
		}
		select {
		case <-m.exited:
			output := m.output()
			if strings.Contains(output, "address already in use") {
				return fmt.Errorf("etcd member %s ended at once: %w:\n%s", m.name, errPortTaken, output)
			}
			return fmt.Errorf("etcd member %s ended at once:\n%s", m.name, output)
		case <-time.After(30 * time.Millisecond):
		}
	}
	return fmt.Errorf("etcd member %s is not ready after %v: %w\n%s", m.name, patience, err, m.output())
}

func checkHealth(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}

// output returns what the last process of the member has printed.
func (m *member) output() string {
	text, err := os.ReadFile(m.log)
	if err != nil {
		return err.Error()
	}
	return string(text[min(m.logged, int64(len(text))):])
}

// kill ends the process with SIGKILL, if it runs.
func (m *member) kill() {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill()
	<-m.exited
	m.cmd = nil
}

func (m *member) pause() error {
	if m.cmd == nil {
		return fmt.Errorf("pause etcd member %s: it does not run", m.name)
	}
	m.paused = true
	return Pause(m.cmd.Process)
}

// Pause stops a child process with SIGSTOP, and blocks until all of its threads have stopped. Until then, those that run
// already go on, which takes some time on a busy machine.
func Pause(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (m *member) resume() error {
	if m.cmd == nil {
		return fmt.Errorf("resume etcd member %s: it does not run", m.name)
	}
	m.paused = false
	return m.cmd.Process.Signal(syscall.SIGCONT)
}

func (m *member) isRunning() bool { return m.cmd != nil && !m.paused }
