package etcdtest

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/lenonet/leno/internal/testkit/ports"
	"github.com/lenonet/leno/internal/testkit/process"
)

// member is one server of a cluster.
type member struct {
	name      string // "m0"
	data      string // its data directory
	log       string // path of the file with its output
	clientURL string
	peerURL   string

	process *process.Process // nil while it does not run
	paused  bool
}

// newMembers creates the members at free ports.
func (s *Server) newMembers() error {
	free, err := ports.Free(2 * s.options.Members)
	if err != nil {
		return err
	}
	scheme := "http"
	if s.options.TLS {
		scheme = "https"
	}
	for i := range s.options.Members {
		name := fmt.Sprintf("m%d", i)
		s.members = append(s.members, &member{
			name:      name,
			data:      filepath.Join(s.dir, name),
			log:       filepath.Join(s.dir, name+".log"),
			clientURL: fmt.Sprintf("%s://127.0.0.1:%d", scheme, free[2*i]),
			peerURL:   fmt.Sprintf("http://127.0.0.1:%d", free[2*i+1]),
		})
	}
	return nil
}

// start runs the process and does not wait until it is ready.
func (m *member) start(program string, args []string) (err error) {
	cmd := exec.Command(program, args...)
	cmd.Dir = filepath.Dir(m.log)
	for _, v := range os.Environ() { // etcd takes ETCD_NAME and so on for flags
		if !strings.HasPrefix(v, "ETCD_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	m.paused = false
	m.process, err = process.Start(cmd, m.log)
	return err
}

// awaitReady blocks until the member serves linearizable reads.
func (m *member) awaitReady(client *http.Client) error {
	return m.process.WaitFor(context.Background(), "etcd member "+m.name, func(context.Context) error {
		return checkHealth(client, m.clientURL+"/health")
	})
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

// kill ends the process with SIGKILL, if it runs.
func (m *member) kill() {
	if m.process != nil {
		m.process.Kill()
		m.process = nil
	}
}

func (m *member) pause() error {
	if m.process == nil {
		return fmt.Errorf("pause etcd member %s: it does not run", m.name)
	}
	m.paused = true
	return m.process.Pause()
}

func (m *member) resume() error {
	if m.process == nil {
		return fmt.Errorf("resume etcd member %s: it does not run", m.name)
	}
	m.paused = false
	return m.process.Resume()
}

func (m *member) isRunning() bool { return m.process != nil && !m.paused }
