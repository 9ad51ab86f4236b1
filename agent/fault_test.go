package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry/memory"
)

// begun returns how many lines say that a fault has begun, and over how many say that it has ended.
func (h *host) begun(check string) int {
	return len(h.said.With("operation failed on this host", "check="+check))
}

func (h *host) over(check string) int {
	return len(h.said.With("operation works again", "check="+check))
}

// TestDataDirIsWaitedFor: an agent whose state directory cannot be used says so over its API and goes on as soon as it
// can. It logs one line at the beginning and one at the end, however often it has tried. Until then, it takes over
// configurations.
func TestDataDirIsWaitedFor(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a := newHost(t, memory.New(), "a")
		dir := a.config.DataDir
		must(t, os.WriteFile(dir, nil, 0o600))
		a.start()
		a.check(health.DataDir, api.Critical, "not a directory")
		c := a.config
		c.Networks = append(slices.Clone(c.Networks), a.second())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		must(t, a.agent.Reload(ctx, c))
		if got := a.agent.self().Networks; len(got) != 0 {
			t.Errorf("networks %v without a state directory", got)
		}
		// The obstacle changes, so that another attempt can be seen.
		must(t, os.Remove(dir))
		must(t, os.MkdirAll(filepath.Join(dir, "lock"), 0o755))
		a.check(health.DataDir, api.Critical, "is a directory")
		must(t, os.Remove(filepath.Join(dir, "lock")))
		// For a host without an id, the last step is to write one down.
		must(t, os.MkdirAll(filepath.Join(dir, "node-id"), 0o755))
		a.check(health.DataDir, api.Critical, filepath.Join(dir, "node-id"))
		if report, _ := a.agent.env.Reports.Health.Report(); report.Checks[0].Name != health.DataDir {
			t.Errorf("the first check is %+v: what waits for the state directory must come after it", report.Checks[0])
		}
		if a.agent.Ready() {
			t.Error("ready without a node id")
		}
		must(t, os.Remove(filepath.Join(dir, "node-id")))
		a.ready()
		a.check(health.DataDir, api.Passing)
		if got := a.agent.self().Networks; len(got) != 2 {
			t.Errorf("networks %v, want those of the new configuration", got)
		}
		if begun, over := a.begun(health.DataDir), a.over(health.DataDir); begun != 1 || over != 1 {
			t.Errorf("%d lines about the beginning, %d about the end", begun, over)
		}
	})
}

// TestSecondAgentOfAHost: a second agent waits for the first one to end, then gives up, and has learnt and touched
// nothing.
func TestSecondAgentOfAHost(t *testing.T) {
	simulated(t, func(t *testing.T) {
		a, locked := newHost(t, memory.New(), "a"), fmt.Errorf("this host is %w, pid 7", state.ErrLocked)
		a.patience = patience
		a.lockHost = func() (func() error, error) { return nil, locked }
		began := time.Now()
		a.start()
		<-a.exited
		if took := time.Since(began); took < patience || took > patience+10*time.Second {
			t.Errorf("gave up after %s", took)
		}
		if !errors.Is(a.err, state.ErrLocked) || exists(state.NodeIDPath(a.config.DataDir)) || len(a.recorder.tries()) > 0 || len(a.wall.names()) > 0 {
			t.Errorf("ended with %v", a.err)
		}
		if len(a.said.With("another process holds", "pid 7")) != 1 {
			t.Error("nothing was logged")
		}
	})
}

// TestStartWaitsForTheAgentBefore: it is no error that the former process still holds something while that process may
// be about to end. It is one if the process goes on.
func TestStartWaitsForTheAgentBefore(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a").real()
	a.patience = time.Minute
	other, err := net.Listen("unix", strings.TrimPrefix(a.config.HTTP.Address, "unix://"))
	must(t, err)
	unlock, err := state.LockDataDir(a.config.DataDir)
	must(t, err)
	a.start()
	for _, setting := range []string{"http.address", "data_dir"} {
		eventually(t, func() error {
			if len(a.said.With("another process holds", "setting="+setting)) != 1 {
				return fmt.Errorf("nothing was logged about %s", setting)
			}
			return nil
		})
		if setting == "http.address" {
			must(t, other.Close())
		}
	}
	must(t, unlock())
	a.ready()

	b := newHost(t, a.store, "b").real()
	b.config.HTTP = a.config.HTTP
	b.lockHost = func() (func() error, error) { return nil, fmt.Errorf("this host is %w, pid 7", state.ErrLocked) }
	b.start()
	if err := b.wait(); !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "http.address") || !strings.Contains(err.Error(), "pid 7") {
		t.Errorf("two agents on one address: %v", err)
	}
	c := newHost(t, a.store, "c").real()
	c.config.DataDir = a.config.DataDir
	c.start()
	if err := c.wait(); err == nil || !strings.Contains(err.Error(), a.config.DataDir) {
		t.Errorf("two agents on one data_dir: %v", err)
	}
}
