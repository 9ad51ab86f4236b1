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
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
)

// reloadRequest asks the supervising goroutine to take over a configuration.
type reloadRequest struct {
	config    config.Config
	confirmed bool              // also when it looks cut off
	done      chan reloadAnswer // room for one
}

type reloadAnswer struct {
	api.Reloaded
	err error
}

// Refresh reads the configuration's files again and takes them over, and opens
// the log file anew whatever becomes of that. A configuration that cannot be used
// or needs a restart is an error, also in the log, and then the old one is in
// force, whole. So is one that looks cut off, unless it is confirmed: see
// checkLoss. Of several calls each reads and takes over before the next one reads.
// It blocks until done.
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
		a.log.Warn("log file cannot be opened anew, the old one is written on", "error", err)
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
	a.env.events.Add(v)
	a.env.telemetry.Count(telemetry.Reloads, 1, telemetry.Result(err))
	return err
}

// readAgain reads the configuration's files and checks the paths in it. It gives up on a file system that does not
// answer, and when the caller or the agent has ended.
func (a *Agent) readAgain(ctx context.Context) (config.Config, error) {
	ctx, stop := context.WithTimeout(ctx, 2*config.ReadTimeout) // the files have half of it
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

// Reload takes over a configuration as far as a running agent can, which is all
// but what config.Settings says needs a restart; the token file and the
// certificates are read again. It refuses, by name, what needs a restart, and
// then changes nothing. What the configuration leaves out is meant. It blocks until
// done.
func (a *Agent) Reload(ctx context.Context, c config.Config) error {
	_, err := a.takeOver(ctx, c, true)
	return err
}

// takeOver hands a configuration to the supervising goroutine.
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
	case answer := <-request.done: // whether its caller waits or not
		return answer.Reloaded, answer.err
	case <-a.ended:
		return api.Reloaded{}, errEnded
	}
}

var errEnded = errors.New("the agent has stopped")

// Ready says whether every network is usable by container runtimes.
func (a *Agent) Ready() bool {
	report, _ := a.env.health.Report()
	return report.Ready
}

// needsRestart refuses changes that a running agent cannot take over, all at once.
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

// prepared is a share of a configuration that was looked at and is ready to be
// taken over. Of several either all are taken or all are dropped.
type prepared struct {
	take func() // cannot fail; nil for nothing to do
	drop func() // undoes what preparing did; nil for nothing
}

// preparation makes ready for what one part of the agent takes from a
// configuration.
type preparation func(ctx context.Context, now config.Config) (prepared, error)

// preparations is every part that may find a new value unusable. Each gives up on
// a file that blocks when ctx ends.
func (a *Agent) preparations() []preparation {
	return []preparation{a.prepareLog, a.prepareToken, a.prepareCertificates}
}

// prepare asks every part; on an error nothing was changed.
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

// prepareLog opens the log file where that is another one.
func (a *Agent) prepareLog(ctx context.Context, now config.Config) (prepared, error) {
	return config.Within(ctx, now.Log.File, func() (prepared, error) {
		take, drop, err := a.o.Logs.Prepare(now.Log)
		return prepared{take, drop}, err
	})
}

// tokens is a store whose token can be replaced while it is used; see
// consul.Client.PrepareToken.
type tokens interface {
	PrepareToken(value, file string) (take func(), err error)
	SetSettle(d time.Duration)
}

// prepareToken reads the token file again, also when its name is the old one.
func (a *Agent) prepareToken(ctx context.Context, now config.Config) (prepared, error) {
	store, ok := a.env.registry.(tokens)
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
		store.SetSettle(settleTime(now.Lease))
	}}, nil
}

// reload takes a configuration over, as a whole or not at all.
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
	a.env.outage.Wake()
	a.env.telemetry.Reconfigure(telemetryConfig(c, a.host))
	if old.Firewall != c.Firewall {
		a.env.firewall.Configure(c.Firewall)
	}
	if !takesPart(old) && takesPart(c) {
		a.env.firewall.Remember(c.DataDir, a.stands) // what stands may be taken up again
		a.expectRules(ctx)
	}
	out := answerTo(changes)
	a.leaveUnwanted(ctx, request.confirmed) // not of networks that run, which are left as any other
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

// renetwork leaves networks, starts those anew whose part in the configuration
// changed, and joins others. It returns what could not be done.
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
		case again || !reflect.DeepEqual(local, run.local) || run.shown().local.State == releasedAdvice:
			err := a.restart(ctx, local)
			// It may also be this network's, under another spelling.
			if err == nil && a.subnetFileOf(run.local.SubnetFile, "") == "" {
				err = os.Remove(run.local.SubnetFile)
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

// wanted is this host's part in a network: its block, or what watch_networks
// makes of a network without one. ok is false when it takes no part.
func (a *Agent) wanted(name string) (local config.Network, ok bool) {
	return a.wantedBy(a.current(), name)
}

// wantedBy is wanted by a configuration.
func (a *Agent) wantedBy(c config.Config, name string) (local config.Network, ok bool) {
	for _, n := range c.Networks {
		if n.Name == name {
			return n, true
		}
	}
	return a.o.WatchedNetwork(name), watches(c, name)
}

// watched says whether the agent joins a network it has no block for.
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

// join starts networks that appeared in the store where watch_networks asks for
// it, and ends the runners of those that were deleted and have no block.
func (a *Agent) join(ctx context.Context) {
	known, ok, _ := a.env.networks.Get()
	if !ok {
		return
	}
	for _, n := range known.set.Networks {
		if _, runs := a.runner(n.Name); !runs && a.watched(n.Name) {
			a.expectRulesOf(ctx, n.Name, n.Plan.Prefixes())
		}
	}
	a.env.firewall.Resolve(watchedNetworks)
	for _, n := range known.set.Networks {
		local, ok := a.wanted(n.Name)
		if !ok {
			continue
		}
		a.start(ctx, local)
	}
	for _, name := range a.self().Networks {
		if run, ok := a.runner(name); ok && run.left.Load() && !a.configured(name) {
			a.stop(name, true)
		}
	}
}

// configured says whether the network has a block.
func (a *Agent) configured(name string) bool {
	return slices.ContainsFunc(a.current().Networks, func(n config.Network) bool { return n.Name == name })
}
