package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
)

// reloadRequest asks the supervising goroutine to apply a configuration.
type reloadRequest struct {
	config    config.Config
	confirmed bool              // apply it even if it looks cut off
	done      chan reloadAnswer // buffered for one answer
}

type reloadAnswer struct {
	api.Reloaded
	err error
}

// Refresh reads the configuration's files again and applies them. It reopens the log file whether or not that succeeds.
// It returns and logs an error if the configuration cannot be used, needs a restart, or looks cut off and is not
// confirmed (see checkLoss); then the whole old configuration stays in force. Concurrent calls run one after the other,
// each including its read. Refresh blocks until the configuration is applied or refused.
func (a *Agent) Refresh(ctx context.Context, confirmed bool) (api.Reloaded, error) {
	if a.refresh == nil {
		return api.Reloaded{}, errors.New("this agent cannot read its configuration again")
	}
	select {
	case a.refreshing <- struct{}{}:
	case <-a.ended:
		return api.Reloaded{}, errEnded
	case <-ctx.Done():
		return api.Reloaded{}, ctx.Err()
	}
	defer func() { <-a.refreshing }()
	opening, cancel := context.WithTimeout(ctx, config.ReadTimeout)
	_, err := config.Within(opening, "log file", func() (struct{}, error) { return struct{}{}, a.o.Logs.Reopen() })
	cancel()
	if err != nil {
		a.log.Warn("log file cannot be reopened, writing to the old one", "error", err)
	}
	c, err := a.readAgain(ctx)
	var out api.Reloaded
	switch {
	case err == nil:
		out, err = a.takeOver(ctx, c, confirmed)
	case !errors.Is(err, errEnded):
		err = a.reportReload(err)
	}
	if err != nil && !errors.Is(err, errEnded) {
		a.log.Error("reload refused, the old configuration stays", "error", err)
	}
	return out, err
}

// reportReload adds an event for a reload that ended with err, counts it, and returns err.
func (a *Agent) reportReload(err error) error {
	v := api.Event{Kind: api.EventReload, Severity: api.Info, Message: "configuration reloaded"}
	if err != nil {
		v.Severity, v.Message = api.Warning, "reload refused: "+err.Error()
	}
	a.env.Reports.Events.Add(v)
	a.env.Reports.Telemetry.Count(telemetry.Reloads, 1, telemetry.Result(err))
	return err
}

// readAgain reads the configuration's files and checks the paths in it. It gives up if a file system does not answer,
// or if the caller or the agent ends.
func (a *Agent) readAgain(ctx context.Context) (config.Config, error) {
	ctx, stop := context.WithTimeout(ctx, 2*config.ReadTimeout) // reading the files takes at most half of it
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-a.ended:
			cancel(errEnded)
		case <-ctx.Done():
		}
	}()
	return config.Within(ctx, "configuration", a.refresh)
}

// Reload applies a configuration to the running agent and reads the token file and the certificates again. If the
// configuration changes options that need a restart (see config.Settings), Reload changes nothing and returns an error
// that names them. Networks missing from the configuration are left without confirmation. Reload blocks until the
// configuration is applied or refused.
func (a *Agent) Reload(ctx context.Context, c config.Config) error {
	_, err := a.takeOver(ctx, c, true)
	return err
}

// takeOver hands a configuration to the supervising goroutine and waits for its answer.
func (a *Agent) takeOver(ctx context.Context, c config.Config, confirmed bool) (api.Reloaded, error) {
	request := reloadRequest{c, confirmed, make(chan reloadAnswer, 1)}
	select {
	case a.reloads <- request:
	case <-a.ended:
		return api.Reloaded{}, errEnded
	case <-ctx.Done():
		return api.Reloaded{}, ctx.Err()
	}
	select {
	case answer := <-request.done: // it answers even if the caller's context has ended
		return answer.Reloaded, answer.err
	case <-a.ended:
		return api.Reloaded{}, errEnded
	}
}

var errEnded = errors.New("the agent has stopped")

// Ready reports whether container runtimes can use every network.
func (a *Agent) Ready() bool {
	report, _ := a.env.Reports.Health.Report()
	return report.Ready
}

// needsRestart returns an error that names all changes that need a restart, or nil if there are none.
func needsRestart(changes []config.Change) error {
	var refused []string
	for _, c := range changes {
		if c.Restart {
			refused = append(refused, c.String())
		}
	}
	if len(refused) == 0 {
		return nil
	}
	return fmt.Errorf("needs a restart, nothing was changed: %s", strings.Join(refused, "; "))
}

// prepared is one part's share of a configuration, checked and ready to be applied. Either all parts are applied or all
// are dropped.
type prepared struct {
	take func() // applies the share and cannot fail; nil for nothing to do
	drop func() // undoes the preparation; nil for nothing to do
}

// preparation prepares what one part of the agent takes from a configuration.
type preparation func(ctx context.Context, now config.Config) (prepared, error)

// preparations returns the preparation of every part that may refuse a new value. When ctx ends, each gives up
// on a file that blocks.
func (a *Agent) preparations() []preparation {
	return []preparation{a.prepareLog, a.prepareToken, a.prepareCertificates}
}

// prepare runs all preparations and returns the function that applies them. If one of them fails, nothing is changed.
func (a *Agent) prepare(ctx context.Context, now config.Config) (take func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, config.ReadTimeout)
	defer cancel()
	var ready []prepared
	var errs []error
	for _, prepare := range a.preparations() {
		p, err := prepare(ctx, now)
		ready, errs = append(ready, p), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		for _, p := range ready {
			if p.drop != nil {
				p.drop()
			}
		}
		return nil, fmt.Errorf("nothing was changed: %w", err)
	}
	return func() {
		for _, p := range ready {
			if p.take != nil {
				p.take()
			}
		}
	}, nil
}

// prepareLog opens the log file if the configuration names another one.
func (a *Agent) prepareLog(ctx context.Context, now config.Config) (prepared, error) {
	return config.Within(ctx, now.Log.File, func() (prepared, error) {
		take, drop, err := a.o.Logs.Prepare(now.Log)
		return prepared{take, drop}, err
	})
}

// tokens is implemented by a store whose token can be replaced while it is in use; see consul.Client.PrepareToken.
type tokens interface {
	PrepareToken(value, file string) (take func(), err error)
	SetSettle(d time.Duration)
}

// prepareToken reads the token file again, even if its path is unchanged.
func (a *Agent) prepareToken(ctx context.Context, now config.Config) (prepared, error) {
	store, ok := a.env.Store.Registry.(tokens)
	if !ok {
		return prepared{}, nil
	}
	file := cmp.Or(now.Consul.TokenFile, "consul token file")
	take, err := config.Within(ctx, file, func() (func(), error) {
		return store.PrepareToken(now.Consul.Token, now.Consul.TokenFile)
	})
	if err != nil {
		return prepared{}, err
	}
	return prepared{take: func() {
		take()
		store.SetSettle(peers.SettleTime(now.Lease))
	}}, nil
}

// reload applies a whole configuration, or nothing of it.
func (a *Agent) reload(ctx context.Context, request reloadRequest) (api.Reloaded, error) {
	old, c := a.current(), request.config
	if !request.confirmed {
		if err := a.checkLoss(old, c); err != nil {
			return api.Reloaded{}, err
		}
	}
	changes := config.Compare(old, c)
	if err := needsRestart(changes); err != nil {
		return api.Reloaded{}, err
	}
	take, err := a.prepare(ctx, c)
	if err != nil {
		return api.Reloaded{}, err
	}
	take()
	a.mu.Lock()
	a.config = c
	a.mu.Unlock()
	a.env.Store.Outage.Wake()
	a.env.Reports.Telemetry.Reconfigure(telemetryConfig(c, a.host))
	if old.Firewall != c.Firewall {
		a.env.Rules.Keeper.Configure(c.Firewall)
	}
	if !takesPart(old) && takesPart(c) {
		a.env.Rules.Keeper.Remember(c.DataDir, a.stands) // what an earlier process left may be resumed
		a.expectRules(ctx)
	}
	out := answerTo(changes)
	a.leaveUnwanted(ctx, request.confirmed) // renetwork leaves the networks that have a runner
	out.Warnings = append(out.Warnings, a.renetwork(ctx, old, c)...)
	out.Warnings = append(out.Warnings, a.warnDiffering(c)...)
	a.log.Info("configuration reloaded", "files", c.Files, "changed", optionsOf(changes))
	return out, nil
}

func answerTo(changes []config.Change) api.Reloaded {
	out := api.Reloaded{Changed: []api.Change{}, Warnings: []string{}}
	for _, c := range changes {
		out.Changed = append(out.Changed, api.Change{Field: c.Name, From: c.Old, To: c.New})
	}
	return out
}

func optionsOf(changes []config.Change) []string {
	out := []string{}
	for _, c := range changes {
		out = append(out, c.Name)
	}
	return out
}

// renetwork leaves networks that are no longer configured, restarts those whose configuration changed, and joins
// others. It returns warnings about subnet files that could not be copied or removed.
func (a *Agent) renetwork(ctx context.Context, old, c config.Config) (warnings []string) {
	a.mu.Lock()
	running := maps.Clone(a.runners)
	a.mu.Unlock()
	again := !reflect.DeepEqual(old.Lease, c.Lease) || !reflect.DeepEqual(old.Underlay, c.Underlay)
	for _, name := range slices.Sorted(maps.Keys(running)) {
		run := running[name]
		local, stays := a.wanted(name)
		switch {
		case !stays:
			a.log.Info("network is not configured any more, leaving it", "network", name)
			a.keepFormer(name)
			a.stop(name, true)
		case again || !reflect.DeepEqual(local, run.Local()) || run.Status().Local.State == lease.ReleasedAdvice:
			err := a.restart(ctx, local)
			// The old path may be another spelling of this network's current one.
			if err == nil && a.subnetFileOf(run.Local().SubnetFile, "") == "" {
				err = os.Remove(run.Local().SubnetFile)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				a.log.Warn("old subnet file stays", "network", name, "error", err)
				warnings = append(warnings, fmt.Sprintf("network %s: old subnet file stays: %v", name, err))
			}
		}
	}
	if a.identified {
		a.adopt(ctx, c)
	}
	return warnings
}

// wanted returns this host's part in a network: its block, or the defaults for a network that watch_networks joins
// without one. ok is false if this host takes no part.
func (a *Agent) wanted(name string) (local config.Network, ok bool) {
	return a.wantedBy(a.current(), name)
}

// wantedBy is like wanted for any configuration.
func (a *Agent) wantedBy(c config.Config, name string) (local config.Network, ok bool) {
	for _, n := range c.Networks {
		if n.Name == name {
			return n, true
		}
	}
	return a.o.WatchedNetwork(name), watches(c, name)
}

// watched reports whether the agent joins a network that has no block.
func (a *Agent) watched(name string) bool { return watches(a.current(), name) }

func watches(c config.Config, name string) bool {
	if !c.WatchNetworks {
		return false
	}
	for _, pattern := range c.AllowedNetworks {
		if ok, err := path.Match(pattern, name); err == nil && ok {
			return true
		}
	}
	return false
}

// join starts networks that appeared in the store and that watch_networks includes, and stops the runners of deleted
// networks that have no block.
func (a *Agent) join(ctx context.Context) {
	known, ok, _ := a.env.Store.Networks.Get()
	if !ok {
		return
	}
	for _, n := range known.Set.Networks {
		if _, runs := a.runner(n.Name); !runs && a.watched(n.Name) {
			a.expectRulesOf(ctx, n.Name, n.Plan.Prefixes())
		}
	}
	a.env.Rules.Keeper.Resolve(watchedNetworks)
	for _, n := range known.Set.Networks {
		local, ok := a.wanted(n.Name)
		if !ok {
			continue
		}
		a.start(ctx, local)
	}
	for _, name := range a.self().Networks {
		if run, ok := a.runner(name); ok && run.WasLeft() && !a.configured(name) {
			a.stop(name, true)
		}
	}
}

// configured reports whether the network has a block.
func (a *Agent) configured(name string) bool {
	return slices.ContainsFunc(a.current().Networks, func(n config.Network) bool { return n.Name == name })
}

// warnDiffering returns a warning about each network whose block differs from the definition that was last read from
// the store.
func (a *Agent) warnDiffering(c config.Config) (warnings []string) {
	known, _, _ := a.env.Store.Networks.Get()
	for _, local := range c.Networks {
		now, defined := known.Set.Find(local.Name)
		run, runs := a.runner(local.Name)
		if !defined || !runs {
			continue
		}
		if differs := run.Differs(now); len(differs) > 0 {
			warnings = append(warnings, fmt.Sprintf("network %s: %s", local.Name, network.Differing(c, local.Name, differs)))
		}
	}
	return warnings
}
