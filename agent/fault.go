package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
)

// failing writes a check that an error fails, with what to do about it.
func (r *runner) failing(check, status string, area advice.Area, err error) {
	reason := advice.Reason(area, err)
	r.check(check, status, reason)
	r.faults.Failing(r.log, check, reason)
}

// mended logs the end of a fault, if there was one. The caller writes the check.
func (r *runner) mended(check string) { r.faults.Mended(r.log, check) }

// writtenDown writes the check of what this host keeps for its next process: of
// what was written, or could not be. Nothing waits for it, packets least of all.
func (r *runner) writtenDown(what string, err error) {
	r.mu.Lock()
	if err != nil {
		r.unwritten[what] = err
	} else {
		delete(r.unwritten, what)
	}
	var errs []error
	for _, what := range []string{wroteLease, wrotePeers} {
		errs = append(errs, r.unwritten[what])
	}
	all := errors.Join(errs...)
	r.mu.Unlock()
	if all != nil {
		r.failing(health.DataDir, api.Warning, advice.DataDir, all)
		return
	}
	r.mended(health.DataDir)
	r.check(health.DataDir, api.Passing, "what this host has is written down")
}

// What is written down.
const (
	wroteLease = "lease"
	wrotePeers = "peers"
)

// patience is how long an agent that starts waits for what another process has:
// one that is about to end, most often the agent before. After that it is an
// error: a supervisor that starts the agent again then does so less often.
const patience = 5 * time.Second

// listen opens the API's address.
func (a *Agent) listen(ctx context.Context, c config.HTTP) (net.Listener, error) {
	var l net.Listener
	err := a.awaitOther(ctx, "http.address", func() (err error) {
		l, err = a.http.Listen(ctx, c)
		return err
	})
	if todo := advice.To(advice.Listener, err); err != nil && todo != "" {
		err = fmt.Errorf("%w; %s", err, todo)
	}
	return l, err
}

// awaitOther tries as long as another process has what is tried, up to patience.
func (a *Agent) awaitOther(ctx context.Context, what string, try func() error) error {
	backoff, until := retry.NewBackoff(), time.Now().Add(a.patience)
	var faults health.ActiveFaults
	for {
		err := try()
		if err == nil || !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, state.ErrLocked) || time.Now().After(until) {
			return err
		}
		if faults.Begin(what) {
			a.log.Warn("another process has what this agent needs, waiting for it to end", "setting", what, "error", err)
		}
		if backoff.Wait(ctx) != nil {
			return err
		}
	}
}

// openDataDir blocks until the state directory can be used, or another agent keeps
// it or the host, and returns this host's id in it, "" when it has none. Who this
// host is must not be guessed, and packets keep flowing.
func (a *Agent) openDataDir(ctx context.Context, dir string) (id string, unlock func() error, err error) {
	var host, free func() error
	if err := a.awaitOther(ctx, "this host", func() (err error) {
		host, err = a.o.LockHost()
		return err
	}); err != nil {
		return "", nil, err
	}
	err = a.untilWritten(ctx, func() error {
		err := a.awaitOther(ctx, "data_dir", func() (err error) {
			free, err = state.LockDataDir(dir)
			return err
		})
		if err != nil {
			return err
		}
		if id, err = state.LoadNodeID(dir, a.log); err != nil {
			err = errors.Join(err, free())
		}
		return err
	})
	if err != nil {
		return "", nil, errors.Join(err, host())
	}
	return id, func() error { return errors.Join(free(), host()) }, nil
}

// untilWritten blocks until write, which uses the state directory, has worked. An
// error is ctx's end, or that another agent has the directory.
func (a *Agent) untilWritten(ctx context.Context, write func() error) error {
	backoff := retry.NewBackoff()
	var faults health.ActiveFaults
	for {
		err := write()
		switch {
		case err == nil:
			a.env.health.Clear("", health.DataDir)
			faults.Mended(a.log, health.DataDir)
			return nil
		case errors.Is(err, state.ErrLocked):
			return err
		}
		reason := advice.Reason(advice.DataDir, err)
		a.env.health.Set("", health.DataDir, api.Critical, reason)
		faults.Failing(a.log, health.DataDir, reason)
		if err := backoff.Wait(ctx); err != nil {
			return err
		}
	}
}
