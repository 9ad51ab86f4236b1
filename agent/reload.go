package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/files"
	"github.com/lenonet/leno/agent/logging"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// A reloader passes configurations on to the supervising goroutine, which applies them.
type reloader struct {
	log      hclog.Logger
	logs     *logging.Log
	reports  network.Reports
	read     func() (config.Config, error) // reads the configuration's files, nil if that is turned off
	requests chan reloadRequest
	busy     chan struct{} // has room for one: the call of Refresh that is running
	ended    chan struct{} // closed when the agent ends
}

func newReloader(log hclog.Logger, logs *logging.Log, to network.Reports,
	read func() (config.Config, error)) *reloader {
	return &reloader{
		log:      log,
		logs:     logs,
		reports:  to,
		read:     read,
		requests: make(chan reloadRequest),
		busy:     make(chan struct{}, 1),
		ended:    make(chan struct{}),
	}
}

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
func (r *reloader) Refresh(ctx context.Context, confirmed bool) (api.Reloaded, error) {
	if r.read == nil {
		return api.Reloaded{}, errors.New("this agent cannot read its configuration again")
	}
	select {
	case r.busy <- struct{}{}:
	case <-r.ended:
		return api.Reloaded{}, errEnded
	case <-ctx.Done():
		return api.Reloaded{}, ctx.Err()
	}
	defer func() { <-r.busy }()
	opening, cancel := context.WithTimeout(ctx, files.ReadTimeout)
	_, err := files.Within(opening, "log file", func() (struct{}, error) { return struct{}{}, r.logs.Reopen() })
	cancel()
	if err != nil {
		r.log.Warn("log file cannot be reopened, writing to the old one", "error", err)
	}
	c, err := r.readAgain(ctx)
	var out api.Reloaded
	switch {
	case err == nil:
		out, err = r.takeOver(ctx, c, confirmed)
	case !errors.Is(err, errEnded):
		err = r.report(err)
	}
	if err != nil && !errors.Is(err, errEnded) {
		r.log.Error("reload refused, the old configuration stays", "error", err)
	}
	return out, err
}

// report adds an event for a reload that ended with err, counts it, and returns err.
func (r *reloader) report(err error) error {
	v := api.Event{Kind: api.EventReload, Severity: api.Info, Message: "configuration reloaded"}
	if err != nil {
		v.Severity, v.Message = api.Warning, "reload refused: "+err.Error()
	}
	r.reports.Events.Add(v)
	r.reports.Telemetry.Count(telemetry.Reloads, 1, telemetry.Result(err))
	return err
}

// readAgain reads the configuration's files and checks the paths in it. It gives up if a file system does not answer,
// or if the caller or the agent ends.
func (r *reloader) readAgain(ctx context.Context) (config.Config, error) {
	ctx, stop := context.WithTimeout(ctx, 2*files.ReadTimeout) // reading the files takes at most half of it
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-r.ended:
			cancel(errEnded)
		case <-ctx.Done():
		}
	}()
	return files.Within(ctx, "configuration", r.read)
}

// takeOver hands a configuration to the supervising goroutine and waits for its answer.
func (r *reloader) takeOver(ctx context.Context, c config.Config, confirmed bool) (api.Reloaded, error) {
	request := reloadRequest{c, confirmed, make(chan reloadAnswer, 1)}
	select {
	case r.requests <- request:
	case <-r.ended:
		return api.Reloaded{}, errEnded
	case <-ctx.Done():
		return api.Reloaded{}, ctx.Err()
	}
	select {
	case answer := <-request.done: // it answers even if the caller's context has ended
		return answer.Reloaded, answer.err
	case <-r.ended:
		return api.Reloaded{}, errEnded
	}
}

// Refresh reads the configuration's files again and applies them, as reloader.Refresh does.
func (a *Agent) Refresh(ctx context.Context, confirmed bool) (api.Reloaded, error) {
	return a.reloader.Refresh(ctx, confirmed)
}

// Reload applies a configuration to the running agent and reads the token file and the certificates again. If the
// configuration changes options that need a restart (see config.Settings), Reload changes nothing and returns an error
// that names them. Networks missing from the configuration are left without confirmation. Reload blocks until the
// configuration is applied or refused.
func (a *Agent) Reload(ctx context.Context, c config.Config) error {
	_, err := a.reloader.takeOver(ctx, c, true)
	return err
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
	return []preparation{a.prepareLog, a.prepareToken, a.prepareUser, a.prepareSettle, a.prepareCertificates}
}

// prepare runs all preparations and returns the function that applies them. If one of them fails, nothing is changed.
func (a *Agent) prepare(ctx context.Context, now config.Config) (take func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, files.ReadTimeout)
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
	return files.Within(ctx, now.Log.File, func() (prepared, error) {
		take, drop, err := a.o.Logs.Prepare(now.Log)
		return prepared{take, drop}, err
	})
}

// prepareToken reads the token file again, even if its path is unchanged, and logs in if the login has changed.
func (a *Agent) prepareToken(ctx context.Context, now config.Config) (prepared, error) {
	prepareToken := a.env.Store.Registry.Abilities().PrepareToken
	if prepareToken == nil {
		return prepared{}, nil
	}
	c := now.Consul
	file := cmp.Or(c.TokenFile, c.Login.BearerTokenFile, "consul token file")
	return files.Within(ctx, file, func() (prepared, error) {
		to := registry.Credentials{Token: c.Token, TokenFile: c.TokenFile, Login: registry.Login(c.Login)}
		take, drop, err := prepareToken(ctx, to)
		if err != nil {
			return prepared{}, err
		}
		return prepared{take, drop}, nil
	})
}

// prepareSettle adapts the time for which lost records are kept to the TTL.
func (a *Agent) prepareSettle(_ context.Context, now config.Config) (prepared, error) {
	setSettle := a.env.Store.Registry.Abilities().SetSettle
	if setSettle == nil {
		return prepared{}, nil
	}
	return prepared{take: func() { setSettle(peers.SettleTime(now.Lease)) }}, nil
}

// prepareUser reads the password file again, even if its path is unchanged.
func (a *Agent) prepareUser(ctx context.Context, now config.Config) (prepared, error) {
	setUser := a.env.Store.Registry.Abilities().SetUser
	if setUser == nil {
		return prepared{}, nil
	}
	password, err := now.Etcd.ReadPassword(ctx)
	if err != nil {
		return prepared{}, fmt.Errorf("etcd.password_file: %w", err)
	}
	return prepared{take: func() { setUser(now.Etcd.Username, password) }}, nil
}

// prepareCertificates reads the files of the API's certificates again. The result takes them over.
func (a *Agent) prepareCertificates(ctx context.Context, now config.Config) (prepared, error) {
	commit, err := a.http.PrepareTLS(ctx, now.HTTP.TLS)
	return prepared{take: commit}, err
}

// reload applies a whole configuration, or nothing of it.
func (a *Agent) reload(ctx context.Context, request reloadRequest) (api.Reloaded, error) {
	old, c := a.settings.get(), request.config
	if !request.confirmed {
		saved := state.Networks(old.DataDir) // which may not have begun
		if err := checkLoss(old, c, append(a.networks.names(), saved...)); err != nil {
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
	a.settings.set(c, request.confirmed)
	a.env.Store.Outage.Wake()
	telemetryErr := a.env.Reports.Telemetry.Reconfigure(telemetryConfig(c, a.process.host))
	if old.Firewall != c.Firewall {
		a.env.Rules.Keeper.Configure(c.Firewall)
	}
	if known := state.Networks(c.DataDir); !takesPart(old, known) && takesPart(c, known) {
		// what an earlier process left may be resumed
		a.env.Rules.Keeper.Remember(a.env.Datapaths.Backends, c.DataDir, a.settings.stands)
		a.networks.expectRules(ctx)
	}
	out := answerTo(changes)
	if telemetryErr != nil {
		out.Warnings = append(out.Warnings, fmt.Sprintf("telemetry.address cannot be used, trying again: %v", telemetryErr))
	}
	a.networks.leaveUnwanted(ctx) // renetwork leaves the networks that have a runner
	out.Warnings = append(out.Warnings, a.networks.apply(ctx, old, c)...)
	out.Warnings = append(out.Warnings, a.networks.warnDiffering(c)...)
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
