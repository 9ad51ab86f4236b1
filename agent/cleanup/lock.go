package cleanup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
)

// lock makes sure that no agent uses what will be removed, and prevents one from starting. A dry run needs no lock. The
// leftovers of one network can be removed while an agent runs that takes no part in it.
func (c *cleaner) lock(ctx context.Context) (unlock func() error, err error) {
	unlock = func() error { return nil }
	if c.o.DryRun {
		return unlock, nil
	}
	isLocked := false
	if _, err := os.Stat(state.LockPath(c.config.DataDir)); err == nil {
		free, err := state.LockDataDir(c.config.DataDir)
		switch {
		case errors.Is(err, state.ErrLocked):
			isLocked = true
		case err != nil:
			return nil, err
		default:
			unlock = free
		}
	}
	self, answers := c.runningAgent(ctx)
	if !answers {
		host, err := state.LockHost()
		if err != nil {
			if c.o.Network != "" {
				err = fmt.Errorf("%w; to remove one network beside it, pass its configuration: it does not answer at %s",
					err, c.config.HTTP.Address)
			}
			return nil, errors.Join(err, unlock())
		}
		data := unlock
		unlock = func() error { return errors.Join(data(), host()) }
	}
	switch {
	case answers && slices.Contains(self.Networks, c.o.Network):
		err = fmt.Errorf("the agent that runs here (pid %d) takes part in network %s: "+
			"`leno lease release %s` makes it leave, or stop the agent first",
			self.PID, c.o.Network, c.o.Network)
	case answers && c.o.Network == "":
		err = fmt.Errorf("an agent runs here (pid %d, data_dir %s): stop it first", self.PID, self.DataDir)
	case !answers && isLocked:
		err = fmt.Errorf("an agent works on %s: stop it first", c.config.DataDir)
	default:
		return unlock, nil
	}
	return nil, errors.Join(err, unlock())
}

// runningAgent returns the answer of the agent at the configured address, if there is one. It may use another data_dir,
// but it uses the same kernel.
func (c *cleaner) runningAgent(ctx context.Context) (self api.Self, answers bool) {
	if c.config.HTTP.TLS.CertFile != "" {
		return api.Self{}, false // the lock has to be enough
	}
	client, err := api.New(api.Config{Address: c.config.HTTP.Address})
	if err != nil {
		return api.Self{}, false
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, retry.CallTimeout)
	defer cancel()
	self, err = client.Self(ctx)
	return self, err == nil && self.DataDir != ""
}
