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

// patience is how long an agent that starts waits for something that another process holds. Most often that is the
// previous agent, which is about to end. A longer wait is an error, so that a supervisor that restarts the agent does
// so less often.
const patience = 5 * time.Second

// listen opens the listener of the API.
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

// awaitOther calls try again and again while another process holds what try needs, for at most a.patience, and returns
// try's last error. what names the needed thing in the log, for example "http.address".
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

// openDataDir blocks until the state directory can be used, and returns this host's id from it, or "" if it has none.
// It returns an error if another agent holds the directory or the host. It does not go on without the directory,
// because this host's identity must not be guessed and packets keep flowing anyway.
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

// untilWritten blocks until write, which uses the state directory, has succeeded. The error is ctx's, or says that
// another agent holds the directory.
func (a *Agent) untilWritten(ctx context.Context, write func() error) error {
	backoff := retry.NewBackoff()
	var faults health.ActiveFaults
	for {
		err := write()
		switch {
		case err == nil:
			a.env.Reports.Health.Clear("", health.DataDir)
			faults.Mended(a.log, health.DataDir)
			return nil
		case errors.Is(err, state.ErrLocked):
			return err
		}
		reason := advice.Reason(advice.DataDir, err)
		a.env.Reports.Health.Set("", health.DataDir, api.Critical, reason)
		faults.Failing(a.log, health.DataDir, reason)
		if err := backoff.Wait(ctx); err != nil {
			return err
		}
	}
}
