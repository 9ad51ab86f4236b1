package report

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/events"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
)

// newReporter returns the reporter of network n, which logs nothing, and its board.
func newReporter(t *testing.T) (*Reporter, *health.Board) {
	t.Helper()
	r, board, _ := newLogged(t, nil)
	return r, board
}

func newLogged(t *testing.T, flows func() bool) (*Reporter, *health.Board, *bytes.Buffer) {
	t.Helper()
	text := &bytes.Buffer{}
	log := hclog.New(&hclog.LoggerOptions{Output: text, Level: hclog.Trace})
	board := health.New(time.Now, nil)
	return New(Options{
		Network:   "n",
		Log:       log,
		Health:    board,
		Events:    events.New(time.Now),
		Telemetry: telemetry.New(telemetry.Config{}, log, func(*telemetry.Reading) {}),
		Changed:   watch.New[struct{}](),
		Flows:     flows,
	}), board, text
}

func check(board *health.Board, name string) api.Check {
	all, _ := board.Report()
	for _, c := range all.Networks[0].Checks {
		if c.Name == name {
			return c
		}
	}
	return api.Check{}
}

// TestWaitSaysWhatItWaitsFor: the state is the reason, and the check fails less while packets flow. The log has the
// reason once a minute for each check.
func TestWaitSaysWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		flowing := false
		r, board, log := newLogged(t, func() bool { return flowing })
		if state := r.State(); state != health.Starting {
			t.Errorf("a new network says %q", state)
		}
		_, _, changed := r.o.Changed.Get()
		r.Wait(health.Lease, "no lease is free")
		select {
		case <-changed:
		default:
			t.Error("no reader of the API was woken")
		}
		if c := check(board, health.Lease); c.Status != api.Critical || c.Reason != "no lease is free" || r.State() != c.Reason {
			t.Errorf("%+v, state %q", c, r.State())
		}
		flowing = true
		r.Wait(health.Lease, "no lease is free yet")
		if c := check(board, health.Lease); c.Status != api.Warning {
			t.Errorf("packets flow: %+v", c)
		}
		lines := func() int { return strings.Count(log.String(), "network waits") }
		if lines() != 1 {
			t.Errorf("logged %d times", lines())
		}
		r.Wait(health.Underlay, "no device")
		if lines() != 2 {
			t.Errorf("another check: logged %d times", lines())
		}
		time.Sleep(time.Minute + time.Second)
		r.Wait(health.Underlay, "no device")
		if lines() != 3 {
			t.Errorf("after a minute: logged %d times", lines())
		}
	})
}

// TestWrittenNamesEveryFile: the check fails until the last file could be written, and the log has the fault once.
func TestWrittenNamesEveryFile(t *testing.T) {
	r, board, log := newLogged(t, nil)
	r.Written(LeaseFile, errors.New("no room"))
	r.Written(LeaseFile, errors.New("no room"))
	r.Written(PeersFile, errors.New("no right"))
	if c := check(board, health.DataDir); c.Status != api.Warning || !strings.Contains(c.Reason, "no room") || !strings.Contains(c.Reason, "no right") {
		t.Errorf("%+v", c)
	}
	r.Written(LeaseFile, nil)
	if c := check(board, health.DataDir); c.Status != api.Warning || strings.Contains(c.Reason, "no room") {
		t.Errorf("%+v", c)
	}
	r.Written(PeersFile, nil)
	if c := check(board, health.DataDir); c.Status != api.Passing {
		t.Errorf("%+v", c)
	}
	if begun := strings.Count(log.String(), "operation failed on this host, retrying"); begun != 1 {
		t.Errorf("logged %d times", begun)
	}
}

// TestWrittenByTwo: the files are written by two goroutines, and the check always shows the result of both.
func TestWrittenByTwo(t *testing.T) {
	r, board, _ := newLogged(t, nil)
	for i := range 5000 {
		r.Written(LeaseFile, errors.New("no room"))
		r.Written(PeersFile, nil)
		var both sync.WaitGroup
		both.Go(func() { r.Written(LeaseFile, nil) })
		both.Go(func() { r.Written(PeersFile, errors.New("no right")) })
		both.Wait()
		if c := check(board, health.DataDir); c.Status != api.Warning || strings.Contains(c.Reason, "no room") {
			t.Fatalf("attempt %d: %+v", i, c)
		}
	}
}
