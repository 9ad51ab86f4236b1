package host

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
	"github.com/lenonet/leno/e2e/world"
)

// A supervisor is systemd's end of sd_notify(3). It keeps every line that it receives.
type supervisor struct {
	w    *testWorld
	path string

	mu    sync.Mutex
	lines []string
}

func newSupervisor(w *testWorld) *supervisor {
	w.T.Helper()
	s := &supervisor{w: w, path: filepath.Join(w.Dir, "notify")}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.path, Net: "unixgram"})
	w.Must(err)
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
	w.T.Cleanup(func() {
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

// await blocks until there is a line with the prefix and the words, starting at number from, and
// returns the number of the next line.
func (s *supervisor) await(from int, prefix, words string) (next int) {
	s.w.T.Helper()
	s.w.Eventually(fmt.Sprintf("%s…%s to be said", prefix, words), func(context.Context) error {
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

// TestNotify receives the agent's messages to systemd: the agent reports what it waits for, sends
// READY only when every network is ready, and marks the start and end of reloads, including refused
// ones.
func TestNotify(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 1})
	h, s := w.Hosts[0], newSupervisor(w)
	w.Must(w.Consul.Stop(w.Ctx))
	config := h.Config(world.ShortLease, h.Network("default", world.Plan("vxlan")))
	w.Must(os.WriteFile(h.ConfigFile(), []byte(config), 0o600))
	agent, err := h.Start("env", "NOTIFY_SOCKET="+s.path, world.Leno(), "agent", "-config-file="+h.ConfigFile())
	w.Must(err)

	s.await(0, "STATUS=", "waiting for the store")
	if slices.Contains(s.said(), "READY=1") {
		t.Error("ready without Consul")
	}
	w.Must(w.Consul.Start(w.Ctx))
	next := s.await(0, "READY=1", "")
	if body, err := os.ReadFile(h.SubnetFile("default")); err != nil || !strings.Contains(string(body), "LENO_SUBNET=") {
		t.Errorf("ready without the subnet file: %s, %v", body, err)
	}
	next = s.await(next, "STATUS=", "all checks are passing")

	for _, reload := range []struct{ name, config, log string }{
		{"the same", config, "configuration reloaded"},
		{"one that is not valid", "nonsense", "reload refused"},
	} {
		w.Must(os.WriteFile(h.ConfigFile(), []byte(reload.config), 0o600))
		w.Must(agent.Signal(syscall.SIGHUP))
		next = s.await(next, "RELOADING=1", "")
		next = s.await(next, "MONOTONIC_USEC=", "")
		next = s.await(next, "READY=1", "")
		w.Eventually("reload of "+reload.name+": the log to say "+reload.log, func(context.Context) error {
			if !strings.Contains(agent.Output(), reload.log) {
				return fmt.Errorf("it does not")
			}
			return nil
		})
	}

	w.Must(agent.Signal(syscall.SIGTERM))
	s.await(next, "STOPPING=1", "")
	w.Must(agent.Wait(w.Ctx))
}
