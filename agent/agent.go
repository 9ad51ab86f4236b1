// Package agent is the daemon. It takes part in networks, holds a lease in each of them, keeps their datapaths right,
// and answers requests about them over HTTP.
//
// It decides what happens in which order, and owns the health checks and the files that container runtimes read.
// Package registry decides how a lease is stored, and package backend how packets travel between hosts.
package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/events"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/httpapi"
	"github.com/lenonet/leno/agent/logging"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/probe"
	"github.com/lenonet/leno/agent/records"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/rules"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Options are what New builds an agent from in addition to the configuration. Fields with the zero value take the real
// implementation.
type Options struct {
	Logs    *logging.Log // nil to log nothing
	Version string

	Registry       registry.Registry
	RegistryName   string // the name that status shows
	Backends       map[string]backend.Type
	Firewall       rules.Firewall
	SelectUnderlay func(c config.Underlay, pools []netip.Prefix, peers []netip.Addr) (underlay.Choice, error)
	// WatchedNetwork returns this host's part in a network without a block.
	WatchedNetwork func(name string) config.Network

	// EnsureForwarding reports whether the kernel forwards packets of the family of a that arrive by those of the
	// devices that exist, and switches forwarding on if set is true. It may be called concurrently.
	EnsureForwarding func(a netip.Addr, links []string, set bool) (forwarding.State, error)

	// Obstacles finds the rules of other programs that block containers' packets. If silent is true, some of these
	// rules may change without an event from the kernel.
	Obstacles rules.Finder

	// Probe sends packets to peers and returns what they answered, as probe.Run does.
	Probe func(ctx context.Context, h probe.Host, peers []api.Peer, r api.ProbeRequest) (api.Probe, error)

	// InTheWay finds the rules of this host that block containers' packets or the datagrams between hosts, as
	// foreign.Find does.
	InTheWay func(ctx context.Context, overlay []foreign.OverlayPath, underlay []foreign.UnderlayPath) (
		[]foreign.Obstacle, []foreign.Blockade, error)

	// Datagrams reports whether UDP and TCP reach a peer that answers pings, as doctor.Datagrams does.
	Datagrams func(ctx context.Context, own netip.Addr, to netip.Prefix) doctor.Answer

	// LookupName returns the full name of a host and its addresses. name is one that the host itself uses: web1, for
	// example, for web1.example.org.
	LookupName func(ctx context.Context, name string) (full string, addrs []netip.Addr, err error)

	// LockHost makes this the only agent of its network namespace until unlock is called.
	LockHost func() (unlock func() error, err error)

	// ReadKernelState returns what the kernel has of a network's datapath: its device link, and its routes in pools.
	ReadKernelState func(ctx context.Context, link string, pools []netip.Prefix) (datapath.KernelState, error)

	// WatchKernel calls changed when the kernel's tables have changed. It blocks until ctx ends or it cannot watch any
	// longer. used reports whether the underlay depends on a device, and reaches whether a prefix contains addresses
	// that packets to other hosts are sent to.
	WatchKernel func(ctx context.Context, used func(link string) bool, reaches func(netip.Prefix) bool, changed func()) error
}

// setDefaults fills in the real implementation of what is missing.
func (o *Options) setDefaults(c config.Config) error {
	if o.Logs == nil {
		none, err := logging.New(io.Discard, config.Defaults().Log)
		if err != nil {
			return err
		}
		o.Logs = none
	}
	log := o.Logs.Logger()
	if o.Backends == nil {
		o.Backends = Backends()
	}
	if o.Registry == nil {
		var err error
		if o.Registry, o.RegistryName, err = OpenRegistry(c, log, o.Logs.Hide); err != nil {
			return err
		}
	}
	if o.SelectUnderlay == nil {
		o.SelectUnderlay = selectUnderlay
	}
	if o.Firewall == nil {
		o.Firewall = firewall.New(log.Named("firewall"))
	}
	if o.EnsureForwarding == nil {
		o.EnsureForwarding = new(forwarding.Switch).Ensure
	}
	if o.Obstacles == nil {
		o.Obstacles = foreign.Obstacles
	}
	if o.WatchedNetwork == nil {
		o.WatchedNetwork = config.WatchedNetwork
	}
	if o.Probe == nil {
		o.Probe = probe.Run
	}
	if o.InTheWay == nil {
		o.InTheWay = foreign.Find
	}
	if o.Datagrams == nil {
		o.Datagrams = doctor.Datagrams
	}
	if o.LockHost == nil {
		o.LockHost = state.LockHost
	}
	if o.ReadKernelState == nil {
		o.ReadKernelState = readKernelState
	}
	if o.WatchKernel == nil {
		o.WatchKernel = watchKernel
	}
	return nil
}

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

// New returns an agent. It touches nothing outside the process. refresh reads the configuration's files again for
// Refresh; nil turns that off.
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
	a.diagnostics = &diagnostics{options: o, env: a.env, settings: a.settings, networks: a.networks}
	a.identity = &identification{
		log:      a.log,
		env:      a.env,
		settings: a.settings,
		others:   &otherProcess{log: a.log, patience: patience},
		lockHost: o.LockHost,
	}
	a.reloader = newReloader(a.log, o.Logs, a.env.Reports, refresh)
	board := a.env.Reports.Health
	a.records = records.New(a.log, func(status, reason string) { board.Set("", health.Records, status, reason) })
	board.Set("", health.Node, api.Critical, health.Starting)
	var err error
	a.http, err = a.newServer()
	return a, err
}

// newDeps returns what all networks of the agent share.
func (a *Agent) newDeps(c config.Config) *network.Deps {
	eventLog := events.New(time.Now)
	deps := &network.Deps{
		Log:      a.log,
		Identity: network.NewIdentity(),
		Store: network.Store{
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
	}
	deps.Rules = newRules(a.o, c.Firewall, deps)
	return deps
}

// Run blocks until ctx ends or there is a fault that does not end by waiting: the API's address cannot be used, another
// agent holds the state directory, or a lease was lost under on_lost = "exit". The datapath stays behind, unless the
// configuration says release_on_stop or this is a development agent. Run must be called only once.
func (a *Agent) Run(ctx context.Context) (err error) {
	defer close(a.reloader.ended)
	listener, err := a.listen(ctx, a.settings.get().HTTP)
	if err != nil {
		return err
	}
	a.process.start()
	defer func() { err = errors.Join(err, a.identity.unlock()) }()

	// Packets that pass through this process keep doing so until everything else has ended, however long that takes:
	// afterwards they wait for the next process.
	defer func() { err = errors.Join(err, a.networks.closeLeft()) }()

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
	g.Go(func() error { return a.watchNetworks(ctx) })
	g.Go(func() error { return a.watchKernel(ctx) })
	g.Go(func() error { return a.env.Rules.Keeper.Run(ctx) })
	g.Go(func() error { return a.env.Rules.Foreign.Run(ctx) })
	g.Go(func() error { return a.notifySystemd(ctx) })
	g.Go(func() error { return a.env.Reports.Telemetry.Run(ctx) })
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

	if err := a.identity.lock(ctx); err != nil {
		return err
	}
	a.log.Info("agent started", "version", a.o.Version, "http", address.String(),
		"registry", a.o.RegistryName, "node_id", a.self().NodeID)
	a.env.Reports.Events.Add(api.Event{
		Kind:     api.EventAgent,
		Severity: api.Info,
		Message:  "agent started, version " + a.process.version,
	})
	a.env.Rules.Keeper.Remember(a.settings.get().DataDir, a.settings.stands)
	a.networks.expectRules(ctx)
	if a.env.Identity.NodeID() != "" {
		a.networks.begin(ctx)
	}
	// settleIdentity may have to wait for the store. An operator may correct the configuration during that time, so it
	// must not block the loop below, which handles reloads.
	settled := make(chan error, 1)
	wg.Go(func() { settled <- a.identity.settle(ctx) })
	named := false
	for {
		_, _, networksChanged := a.env.Store.Networks.Get()
		_, _, left := a.env.Left.Get()
		if named {
			a.networks.join(ctx)
		}
		select {
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
			wg.Go(func() { a.networks.leaveUnwanted(ctx, false) })
			a.env.Reports.Health.Clear("", health.Node)
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
		Networks:         a.networks.names(),
	}
}
