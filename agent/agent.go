// Package agent is the daemon. It takes part in networks, holds a lease in each of them, keeps their datapaths right,
// and answers requests about them over HTTP.
//
// It decides what happens in which order, and owns the health checks and the files that container runtimes read.
// Package registry decides how a lease is stored, and package backend how packets travel between hosts.
package agent

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/events"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/httpapi"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/records"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
)

// An Agent is the agent of one host.
type Agent struct {
	o           Options
	log         hclog.Logger
	env         *network.Deps
	process     *process
	settings    *settings
	networks    *networks
	identity    *identification
	reloader    *reloader
	diagnostics *diagnostics
	elsewhere   *elsewhere
	records     *records.Board // of the list of all networks
	http        *httpapi.Server
}

// New returns an agent. It reads the files that the configuration names, and touches nothing outside the process. An
// error is one in the configuration. refresh reads the configuration's files again for Refresh; nil turns that off.
func New(c config.Config, o Options, refresh func() (config.Config, error)) (*Agent, error) {
	if err := o.setDefaults(c); err != nil {
		return nil, err
	}
	a := &Agent{
		o:        o,
		log:      o.Logs.Logger(),
		process:  newProcess(o.Version),
		settings: &settings{watchedNetwork: o.WatchedNetwork, now: c},
	}
	a.env = a.newDeps(c)
	a.networks = newNetworks(a.log, a.env, a.settings)
	a.elsewhere = &elsewhere{registry: o.Registry}
	a.diagnostics = newDiagnostics(a.log, o, a.env, a.settings, a.networks)
	a.identity = &identification{
		log:      a.log,
		env:      a.env,
		settings: a.settings,
		others:   &otherProcess{log: a.log, patience: patience},
		running:  a.networks.names,
		lockHost: o.LockHost,
		restore:  o.RestoreForwarding,
	}
	a.reloader = newReloader(a.log, o.Logs, a.env.Reports, refresh)
	board := a.env.Reports.Health
	a.records = records.New(a.log, func(status, reason string) { board.Set("", health.Records, status, reason) })
	a.identity.setCheck(health.Starting)
	var err error
	if a.http, err = a.newServer(); err != nil {
		return nil, err
	}
	return a, a.http.LoadTLS(c.HTTP.TLS)
}

// newDeps returns what all networks of the agent share.
func (a *Agent) newDeps(c config.Config) *network.Deps {
	eventLog := events.New(time.Now)
	deps := &network.Deps{
		Log:      a.log,
		Identity: network.NewIdentity(),
		Store: network.Store{
			Kind:     c.Store(),
			Registry: a.o.Registry,
			Outage:   newOutageDetector(a.o.Registry),
			Networks: watch.New[network.Networks](),
			SetBack:  watch.New[struct{}](),
		},
		Reports: network.Reports{
			Health:    health.New(time.Now, eventLog.AddCheck),
			Events:    eventLog,
			Telemetry: telemetry.New(telemetryConfig(c, a.process.host), a.log.Named("telemetry"), a.measure),
			Changed:   watch.New[struct{}](),
		},
		Claims:          network.NewHostClaims(),
		Former:          state.NewFormerSubnets(c.DataDir),
		Left:            watch.New[struct{}](),
		ReadKernelState: a.o.ReadKernelState,
		SubnetFileOf:    func(path, except string) string { return a.networks.subnetFileOf(path, except) },
	}
	deps.Datapaths = &datapath.Host{
		NodeID:           deps.Identity.NodeID,
		Backends:         a.o.Backends,
		Processors:       &datapath.Processors{},
		Kernel:           watch.New[struct{}](),
		SelectUnderlay:   a.o.SelectUnderlay,
		EnsureForwarding: a.o.EnsureForwarding,
		Guard:            a.o.Guard,
		PreferMain:       a.o.PreferMain,
		ReplacePools:     a.o.ReplacePools,
		FindDetours:      a.o.FindDetours,
	}
	deps.Rules = newRules(a.o, c.Firewall, deps)
	return deps
}

// Run blocks until ctx ends or there is a fault that does not end by waiting: the API's address cannot be used, another
// agent holds the state directory, or a lease was lost under on_lost = "exit". The datapath stays behind, unless the
// configuration says release_on_stop or this is a development agent. Run must be called only once.
func (a *Agent) Run(ctx context.Context) error {
	listener, err := a.listen(ctx, a.settings.get().HTTP)
	if err != nil {
		close(a.reloader.ended)
		return err
	}
	return a.runOn(ctx, listener)
}

// runOn is Run with the listener of the API, which it closes.
func (a *Agent) runOn(ctx context.Context, listener net.Listener) (err error) {
	defer close(a.reloader.ended)
	a.process.start()
	defer func() { err = errors.Join(err, a.identity.unlock()) }()

	// Packets that pass through this process keep doing so until everything else has ended, however long that takes:
	// afterwards they wait for the next process.
	defer func() { err = errors.Join(err, a.networks.closeLeft()) }()

	// All that uses the store has ended by then. A token that stayed behind would be valid until it expires.
	defer a.logout(ctx)

	// The API outlives the runners, so that clients can watch an agent that stops.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	var server errgroup.Group
	server.Go(func() error { return a.http.Serve(serving, listener) })
	defer func() {
		stopServing()
		err = errors.Join(err, server.Wait())
	}()

	whole := ctx
	asked := func() bool { return whole.Err() != nil } // reports whether the agent was told to stop
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.env.Store.Outage.Run(ctx) })
	g.Go(func() error { return a.keepLogin(ctx) })
	g.Go(func() error { return a.watchNetworks(ctx) })
	g.Go(func() error { return a.watchKernel(ctx) })
	g.Go(func() error { return a.env.Rules.Keeper.Run(ctx) })
	g.Go(func() error { return a.env.Rules.Foreign.Run(ctx) })
	g.Go(func() error { return a.diagnostics.paths.Run(ctx) })
	g.Go(func() error { return a.diagnostics.members.Run(ctx) })
	g.Go(func() error { return a.notifySystemd(ctx) })
	g.Go(func() error { return a.env.Reports.Telemetry.Run(ctx, a.http.HostNames()) })
	g.Go(func() error { return a.supervise(ctx, listener.Addr(), asked) })
	err = g.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	a.log.Info("agent stopped")
	return err
}

// supervise starts a runner for each network, finds out who this host is, and stops the runners when ctx ends. asked
// reports whether ctx ended because the agent was told to stop, and not because of a fault.
func (a *Agent) supervise(ctx context.Context, address net.Addr, asked func() bool) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer a.networks.stopAll()

	// lock and settle may have to wait for the state directory and for the store. An operator may correct the
	// configuration during that time, so they must not block the loop below, which handles reloads.
	locked, settled := make(chan error, 1), make(chan error, 1)
	wg.Go(func() { locked <- a.identity.lock(ctx) })
	named := false
	for {
		_, _, networksChanged := a.env.Store.Networks.Get()
		_, _, left := a.env.Left.Get()
		if named && a.networks.join(ctx) {
			a.env.Reports.Health.Resolve("", health.Node, "this host's name is known")
		} else if named {
			a.identity.setCheck("waiting for the list of networks")
		}
		select {
		case err := <-locked:
			if err != nil {
				return err
			}
			a.log.Info("agent started", "version", a.o.Version, "http", address.String(),
				"registry", a.o.RegistryName, "node_id", a.self().NodeID)
			a.env.Reports.Events.Add(api.Event{
				Kind:     api.EventAgent,
				Severity: api.Info,
				Message:  "agent started, version " + a.process.version,
			})
			a.env.Rules.Keeper.Remember(a.env.Datapaths.Backends, a.settings.get().DataDir, a.settings.stands)
			a.networks.expectRules(ctx)
			if a.env.Identity.NodeID() != "" {
				a.networks.begin(ctx)
				a.identity.setCheck(health.Starting)
			}
			wg.Go(func() { settled <- a.identity.settle(ctx) })
		case err := <-settled:
			if err != nil {
				return err
			}
			named = true
			a.env.Identity.Settle()
			if !a.networks.hasBegun() {
				a.networks.begin(ctx)
			}
			wg.Go(func() { a.keepRegistered(ctx, address, asked) })
			wg.Go(func() { a.networks.leaveUnwanted(ctx) })
		case <-left:
		case <-ctx.Done():
			return ctx.Err()
		case err := <-a.networks.fatal:
			return err
		case request := <-a.reloader.requests:
			out, err := a.reload(ctx, request)
			request.done <- reloadAnswer{out, a.reloader.report(err)}
		case <-networksChanged:
		}
	}
}

// watchKernel passes changes of the kernel's tables on to the runners until ctx ends.
func (a *Agent) watchKernel(ctx context.Context) error {
	const name = "kernel watch"
	backoff := retry.NewBackoff()
	var faults health.ActiveFaults
	for {
		err := a.o.WatchKernel(ctx, a.networks.usesLink, a.networks.reaches, func() {
			faults.End(name)
			a.env.Datapaths.Kernel.Set(struct{}{})
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if faults.Begin(name) {
			a.log.Warn("watching the kernel failed, the slow tick goes on", "error", err)
		}
		if err := backoff.Wait(ctx); err != nil {
			return err
		}
	}
}

// self returns the answer to GET /v1/agent/self.
func (a *Agent) self() api.Self {
	boot, namespace := a.process.kernel()
	id, c := a.env.Identity.Get(), a.settings.get()
	return api.Self{
		Firewall:         firewallChoice(a.env.Rules.Keeper.Status()),
		Version:          a.process.version,
		NodeName:         id.Node,
		NodeID:           id.NodeID,
		DataDir:          c.DataDir,
		ConfigFiles:      append([]string{}, c.Files...),
		Registry:         a.o.RegistryName,
		Started:          a.process.startedAt(),
		PID:              os.Getpid(),
		BootID:           boot,
		NetworkNamespace: namespace,
		Networks:         append([]string{}, a.networks.names()...), // never null
	}
}
