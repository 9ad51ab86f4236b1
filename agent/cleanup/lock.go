package cleanup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
)

// lock makes sure that no agent uses what will be removed, and prevents one from starting. A dry run needs no lock. The
// leftovers of one network can be removed while an agent runs that takes no part in it.
func lock(ctx context.Context, c config.Config, o Options) (unlock func() error, err error) {
	unlock = func() error { return nil }
	if o.DryRun {
		return unlock, nil
	}
	isLocked := false
	if _, err := os.Stat(state.LockPath(c.DataDir)); err == nil {
		free, err := state.LockDataDir(c.DataDir)
		switch {
		case errors.Is(err, state.ErrLocked):
			isLocked = true
		case err != nil:
			return nil, err
		default:
			unlock = free
		}
	}
	self, answers := runningAgent(ctx, c.HTTP)
	if !answers {
		host, err := state.LockHost()
		if err != nil {
			if o.Network != "" {
				err = fmt.Errorf("%w; to remove one network beside it, pass its configuration: it does not answer at %s",
					err, c.HTTP.Address)
			}
			return nil, errors.Join(err, unlock())
		}
		data := unlock
		unlock = func() error { return errors.Join(data(), host()) }
	}
	switch {
	case answers && slices.Contains(self.Networks, o.Network):
		err = fmt.Errorf("the agent that runs here (pid %d) takes part in network %s: "+
			"`leno lease release %s` makes it leave, or stop the agent first",
			self.PID, o.Network, o.Network)
	case answers && o.Network == "":
		err = fmt.Errorf("an agent runs here (pid %d, data_dir %s): stop it first", self.PID, self.DataDir)
	case !answers && isLocked:
		err = fmt.Errorf("an agent works on %s: stop it first", c.DataDir)
	default:
		return unlock, nil
	}
	return nil, errors.Join(err, unlock())
}

// runningAgent returns the answer of the agent at the configured address, if there is one. It may use another data_dir,
// but it uses the same kernel.
func runningAgent(ctx context.Context, c config.HTTP) (self api.Self, answers bool) {
	if c.TLS.CertFile != "" {
		return api.Self{}, false // the lock has to be enough
	}
	client, err := api.New(api.Config{Address: c.Address})
	if err != nil {
		return api.Self{}, false
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, retry.CallTimeout)
	defer cancel()
	self, err = client.Self(ctx)
	return self, err == nil && self.DataDir != ""
}
