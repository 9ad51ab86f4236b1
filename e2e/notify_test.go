package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/lenonet/leno/e2e/lab"
)

// supervisor is systemd's end of sd_notify(3): it keeps every line it is sent.
type supervisor struct {
	w    *world
	path string

	mu    sync.Mutex
	lines []string
}

func newSupervisor(w *world) *supervisor {
	w.t.Helper()
	s := &supervisor{w: w, path: filepath.Join(w.Dir, "notify")}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.path, Net: "unixgram"})
	w.must(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for buf := make([]byte, 64<<10); ; {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.lines = append(s.lines, strings.Split(string(buf[:n]), "\n")...)
			s.mu.Unlock()
		}
	}()
	w.t.Cleanup(func() {
		_ = conn.Close() // ends the goroutine
		<-done
	})
	return s
}

func (s *supervisor) said() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lines)
}

// await waits for a line with the prefix and the words among those from one on,
// and returns the number of the next.
func (s *supervisor) await(from int, prefix, words string) (next int) {
	s.w.t.Helper()
	s.w.eventually(fmt.Sprintf("%s…%s to be said", prefix, words), func(context.Context) error {
		said := s.said()
		for i := from; i < len(said); i++ {
			if strings.HasPrefix(said[i], prefix) && strings.Contains(said[i], words) {
				next = i + 1
				return nil
			}
		}
		return fmt.Errorf("%q", said[from:])
	})
	return next
}

// TestNotify listens as systemd does: the agent says what it waits for, READY
// only when every network is, and brackets reloads, refused ones too.
func TestNotify(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 1})
	h, s := w.Hosts[0], newSupervisor(w)
	w.must(w.Consul.Stop(w.ctx))
	config := h.Config(shortLease, h.Network("default", plan("vxlan")))
	w.must(os.WriteFile(h.ConfigFile(), []byte(config), 0o600))
	agent, err := h.Start("env", "NOTIFY_SOCKET="+s.path, binary, "agent", "-config-file="+h.ConfigFile())
	w.must(err)

	s.await(0, "STATUS=", "waiting for the store")
	if slices.Contains(s.said(), "READY=1") {
		t.Error("ready without Consul")
	}
	w.must(w.Consul.Start(w.ctx))
	next := s.await(0, "READY=1", "")
	if body, err := os.ReadFile(h.SubnetFile("default")); err != nil || !strings.Contains(string(body), "LENO_SUBNET=") {
		t.Errorf("ready without the subnet file: %s, %v", body, err)
	}
	next = s.await(next, "STATUS=", "all checks are passing")

	for _, reload := range []struct{ name, config, log string }{
		{"the same", config, "configuration reloaded"},
		{"one that is not valid", "nonsense", "reload refused"},
	} {
		w.must(os.WriteFile(h.ConfigFile(), []byte(reload.config), 0o600))
		w.must(agent.Signal(syscall.SIGHUP))
		next = s.await(next, "RELOADING=1", "")
		next = s.await(next, "MONOTONIC_USEC=", "")
		next = s.await(next, "READY=1", "")
		if !strings.Contains(agent.Output(), reload.log) {
			t.Errorf("reload of %s: the log does not say %q", reload.name, reload.log)
		}
	}

	w.must(agent.Signal(syscall.SIGTERM))
	s.await(next, "STOPPING=1", "")
	w.must(agent.Wait(w.ctx))
}
