package agent

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
)

// patience is how long an agent that starts waits for something that another process holds. Most often that is the
// previous agent, which is about to end. A longer wait is an error, so that a supervisor that restarts the agent does
// so less often.
const patience = 5 * time.Second

// An otherProcess is another process of this host that may have what this agent needs.
type otherProcess struct {
	log      hclog.Logger
	patience time.Duration // how long to wait for a process that is about to end
}

// await calls try again and again while another process holds what try needs, for at most o.patience, and returns
// try's last error. what names the needed thing in the log, for example "http.address".
func (o *otherProcess) await(ctx context.Context, what string, try func() error) error {
	backoff, until := retry.NewBackoff(), time.Now().Add(o.patience)
	var faults health.ActiveFaults
	for {
		err := try()
		if err == nil || !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, state.ErrLocked) || time.Now().After(until) {
			return err
		}
		if faults.Begin(what) {
			o.log.Warn("another process holds what this agent needs, waiting for it to end", "setting", what, "error", err)
		}
		if backoff.Wait(ctx) != nil {
			return err
		}
	}
}
