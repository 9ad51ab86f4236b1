// Package agent is the daemon: it takes part in networks, keeps a lease and the
// datapath of each right, and answers about them over HTTP.
//
// It owns the order of things, health, and the files container runtimes read.
// How a lease is stored is the registry's business, how packets cross the
// backend's.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
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
	"github.com/lenonet/leno/agent/probe"
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

// Options are what an agent is built from beside its configuration. Zero
// fields take the real thing.
type Options struct {
	Logs    *logging.Log // nil for no log
	Version string

	Registry       registry.Registry
	RegistryName   string // how status names it
	Backends       map[string]backend.Type
	Firewall       rules.Firewall
	SelectUnderlay func(c config.Underlay, pools []netip.Prefix, peers []netip.Addr) (underlay.Choice, error)
	// WatchedNetwork is this host's part in a network without a block.
	WatchedNetwork func(name string) config.Network

	// EnsureForwarding says whether the kernel forwards the family of a when packets
	// come in by those of the devices that exist, and switches it on where set asks. It may
	// be called concurrently.
	EnsureForwarding func(a netip.Addr, links []string, set bool) (forwarding.State, error)

	// Obstacles finds rules of other programs that are in the way of containers'
	// packets; silent says that they may change without the kernel telling.
	Obstacles rules.Finder

	// Probe sends packets to peers and tells what came back, as probe.Run does.
	Probe func(ctx context.Context, h probe.Host, peers []api.Peer, r api.ProbeRequest) (api.Probe, error)

	// InTheWay finds rules of this host in the way of containers' packets, and of the
	// datagrams between hosts, as foreign.Find does.
	InTheWay func(ctx context.Context, crossings []foreign.OverlayPath, lanes []foreign.UnderlayPath) ([]foreign.Obstacle, []foreign.Blockade, error)

	// Datagrams says whether UDP and TCP come to a peer that answers pings, as
	// doctor.Datagrams does.
	Datagrams func(ctx context.Context, own netip.Addr, to netip.Prefix) doctor.Answer

	// LookupName is the full name of a host by one that it has itself, with its
	// addresses.
	LookupName func(ctx context.Context, name string) (full string, addrs []netip.Addr, err error)

	// LockHost makes this the only agent of its network namespace, until unlock.
	LockHost func() (unlock func() error, err error)

	// ReadKernelState returns what the kernel has of a network's datapath.
	ReadKernelState func(ctx context.Context, link string, pools []netip.Prefix) (KernelState, error)

	// WatchKernel blocks until ctx ends. used names devices the underlay depends
	// on, reaches the prefixes with addresses packets to other hosts go to.
	WatchKernel func(ctx context.Context, used func(link string) bool, reaches func(netip.Prefix) bool, changed func()) error
}

// environment is what all runners of an agent share.
type environment struct {
	log        hclog.Logger
	id         state.Identity
	named      chan struct{} // closed once the node's name and id are known; runners do not ask the store before
	registry   registry.Registry
	backends   map[string]backend.Type
	outage     *retry.OutageDetector
	health     *health.Board
	events     *events.Log
	telemetry  *telemetry.Telemetry
	firewall   *rules.Keeper
	foreign    *rules.ForeignMonitor
	pools      *poolClaims
	processors *processors
	networks   *watch.Value[networkSet]
	left       *watch.Value[struct{}] // set when a runner has left a network that went
	kernel     *watch.Value[struct{}] // set at each change of the kernel's tables
	parts      *watch.Value[struct{}] // set when this agent takes part in another network, or no more
	shown      *watch.Value[struct{}] // set when the part of this host in some network may be shown otherwise
	setBack    *watch.Value[struct{}] // set when the store lost something
	former     *state.FormerSubnets

	// subnetFileOf is the network of this host, other than except, whose subnet file
	// is at path, "" for none.
	subnetFileOf func(path, except string) string

	selectUnderlay   func(c config.Underlay, pools []netip.Prefix, peers []netip.Addr) (underlay.Choice, error)
	ensureForwarding func(a netip.Addr, links []string, set bool) (forwarding.State, error)
	readKernelState  func(ctx context.Context, link string, pools []netip.Prefix) (KernelState, error)
}

// Agent is one host's agent.
type Agent struct {
	o       Options
	log     hclog.Logger
	env     *environment
	started time.Time
	unlock  func() error // of the state directory, nil before

	patience time.Duration // with another process that is about to end
	build    build
	// kernelHere is the function of that name, of which the answer stays the same.
	kernelHere func() (boot, namespace string)
	host       string    // the kernel's name for it
	exams      exclusive // of this host

	reloads    chan reloadRequest
	ended      chan struct{}                 // closed when Run returns
	refresh    func() (config.Config, error) // reads the configuration again, nil for never
	refreshing chan struct{}                 // room for one: who refreshes
	identified bool                          // runners were started; of the supervising goroutine
	records    *recordBoard
	elsewhere  refreshers
	http       *httpapi.Server

	mu      sync.Mutex
	left    []*carrier    // of runners that ended with the agent, closed last
	config  config.Config // replaced by a reload
	runners map[string]*running
	// departures are the networks of an earlier process that are being left, each with a
	// channel that is closed at the end.
	departures map[string]chan struct{}
	fatal      chan error
}

// New builds an agent. It touches nothing outside the process. refresh reads the
// configuration's files again, for Refresh; nil turns that off.
func New(c config.Config, o Options, refresh func() (config.Config, error)) (*Agent, error) {
	if o.Logs == nil {
		none, err := logging.New(io.Discard, config.Defaults().Log)
		if err != nil {
			return nil, err
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
			return nil, err
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
	a := &Agent{o: o, log: log, config: c, refresh: refresh, runners: map[string]*running{}, departures: map[string]chan struct{}{},
		reloads: make(chan reloadRequest), refreshing: make(chan struct{}, 1), ended: make(chan struct{}), fatal: make(chan error, 1), patience: patience, build: readBuild(), kernelHere: sync.OnceValues(kernelHere)}
	a.env = &environment{
		log: log, registry: o.Registry, named: make(chan struct{}), outage: newOutageDetector(o.Registry), backends: o.Backends, events: events.New(time.Now),
		pools: newPoolClaims(), processors: &processors{},
		networks: watch.New[networkSet](), left: watch.New[struct{}](), kernel: watch.New[struct{}](), parts: watch.New[struct{}](), shown: watch.New[struct{}](), setBack: watch.New[struct{}](), former: state.NewFormerSubnets(c.DataDir),
		selectUnderlay: o.SelectUnderlay, ensureForwarding: o.EnsureForwarding, readKernelState: o.ReadKernelState,
	}
	a.env.subnetFileOf = a.subnetFileOf
	a.host, _ = os.Hostname() // "" will do
	a.env.telemetry = telemetry.New(telemetryConfig(c, a.host), log.Named("telemetry"), a.measure)
	a.env.health = health.New(time.Now, a.env.events.AddCheck)
	a.elsewhere.registry = o.Registry
	a.env.firewall, a.env.foreign = newRules(o, c.Firewall, a.env)
	a.records = newRecordBoard(a.log, func(status, reason string) { a.env.health.Set("", health.Records, status, reason) })
	a.env.health.Set("", health.Node, api.Critical, health.Starting)
	var err error
	a.http, err = a.newServer()
	return a, err
}

// Run blocks until ctx ends or a fault no waiting can mend: the API's address
// cannot be used, another agent has the state directory, or a lease was lost
// under on_lost = "exit". The datapath stays behind, unless the configuration says
// release_on_stop or this is a development agent. Run is called once.
func (a *Agent) Run(ctx context.Context) (err error) {
	defer close(a.ended)
	listener, err := a.listen(ctx, a.current().HTTP)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.started = time.Now()
	a.mu.Unlock()
	defer func() {
		if a.unlock != nil {
			err = errors.Join(err, a.unlock())
		}
	}()

	// Packets that pass through this process do so until all else has ended,
	// however long that takes: the next process is what they wait for.
	defer func() { err = errors.Join(err, a.closeLeft()) }()

	// The API outlives the runners, so that a stopping agent can be watched.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	var server errgroup.Group
	server.Go(func() error { return a.http.Serve(serving, listener) })
	defer func() {
		stopServing()
		err = errors.Join(err, server.Wait())
	}()

	whole := ctx
	asked := func() bool { return whole.Err() != nil } // and not for a fault
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.env.outage.Run(ctx) })
	g.Go(func() error { return a.watchNetworks(ctx) })
	g.Go(func() error { return a.watchKernel(ctx) })
	g.Go(func() error { return a.env.firewall.Run(ctx) })
	g.Go(func() error { return a.env.foreign.Run(ctx) })
	g.Go(func() error { return a.notifySystemd(ctx) })
	g.Go(func() error { return a.env.telemetry.Run(ctx) })
	g.Go(func() error { return a.supervise(ctx, listener.Addr(), asked) })
	err = g.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	a.log.Info("agent stopped")
	return err
}

// supervise runs a runner for each network, learns who this host is, and ends
// the runners with ctx. asked says whether that is because somebody wants it.
func (a *Agent) supervise(ctx context.Context, address net.Addr, asked func() bool) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer a.stopRunners()

	if err := a.identify(ctx); err != nil {
		return err
	}
	a.log.Info("agent started", "version", a.o.Version, "http", address.String(),
		"registry", a.o.RegistryName, "node_id", a.self().NodeID)
	a.env.events.Add(api.Event{Kind: api.EventAgent, Severity: api.Info, Message: "agent started, version " + a.o.Version})
	a.env.firewall.Remember(a.current().DataDir, a.stands)
	a.expectRules(ctx)
	if a.env.id.NodeID != "" {
		a.begin(ctx)
	}
	// It may have to wait for the store, which is when somebody corrects the
	// configuration.
	settled := make(chan error, 1)
	wg.Go(func() { settled <- a.settleIdentity(ctx) })
	named := false
	for {
		_, _, networksChanged := a.env.networks.Get()
		_, _, left := a.env.left.Get()
		if named {
			a.join(ctx)
		}
		select {
		case err := <-settled:
			if err != nil {
				return err
			}
			named = true
			close(a.env.named)
			if !a.identified {
				a.begin(ctx)
			}
			wg.Go(func() { a.keepRegistered(ctx, address, asked) })
			wg.Go(func() { a.leaveUnwanted(ctx, false) })
			a.env.health.Clear("", health.Node)
		case <-left:
		case <-ctx.Done():
			return ctx.Err()
		case err := <-a.fatal:
			return err
		case request := <-a.reloads:
			out, err := a.reload(ctx, request)
			request.done <- reloadAnswer{out, a.reportReload(err)}
		case <-networksChanged:
		}
	}
}

// begin starts the runners, once this host's id is known.
func (a *Agent) begin(ctx context.Context) {
	a.identified = true
	a.adopt(ctx, a.current())
}

// settleIdentity learns what is not known yet of who this host is.
func (a *Agent) settleIdentity(ctx context.Context) error {
	if err := a.awaitNodeName(ctx); err != nil {
		return err
	}
	return a.learnNodeID(ctx)
}

// identify takes the state directory and learns this host's id from it.
func (a *Agent) identify(ctx context.Context) error {
	id, unlock, err := a.openDataDir(ctx, a.current().DataDir)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.env.id.NodeID, a.unlock = id, unlock
	return nil
}

func (a *Agent) awaitNodeName(ctx context.Context) error {
	backoff := a.env.outage.NewLoop()
	for {
		name, err := state.NodeName(ctx, a.current().NodeName, a.env.registry)
		if err == nil {
			a.mu.Lock()
			a.env.id.Node = name
			a.mu.Unlock()
			return nil
		}
		if a.env.health.Set("", health.Node, api.Critical, fmt.Sprintf("waiting for this host's name in Consul (or set node_name): %v", err)) {
			a.log.Warn("waiting for this host's name", "error", err)
		}
		if err := backoff.Wait(ctx, err, nil); err != nil {
			return err
		}
	}
}

// current is the configuration in force.
func (a *Agent) current() config.Config {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.config
}

// runner finds a network this agent takes part in.
func (a *Agent) runner(name string) (*runner, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	run, ok := a.runners[name]
	if !ok {
		return nil, false
	}
	return run.runner, true
}

// watchKernel passes changes of the kernel's tables on to the runners.
func (a *Agent) watchKernel(ctx context.Context) error {
	const name = "kernel watch"
	backoff := retry.NewBackoff()
	var faults health.ActiveFaults
	for {
		err := a.o.WatchKernel(ctx, a.usesLink, a.reaches, func() {
			faults.End(name)
			a.env.kernel.Set(struct{}{})
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

// usesLink says whether a change of the device may concern a network's underlay.
func (a *Agent) usesLink(link string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, run := range a.runners {
		if run.usesLink(link) {
			return true
		}
	}
	return false
}

// reaches says whether a network's packets to other hosts may take a route to the
// prefix.
func (a *Agent) reaches(prefix netip.Prefix) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, run := range a.runners {
		if run.reaches(prefix) {
			return true
		}
	}
	return false
}

// self is what GET /v1/agent/self answers.
func (a *Agent) self() api.Self {
	boot, namespace := a.kernelHere()
	a.mu.Lock()
	defer a.mu.Unlock()
	out := api.Self{Firewall: firewallChoice(a.env.firewall.Status()), Version: a.o.Version, NodeName: a.env.id.Node, NodeID: a.env.id.NodeID, DataDir: a.config.DataDir,
		ConfigFiles: append([]string{}, a.config.Files...), Registry: a.o.RegistryName, Started: a.started, PID: os.Getpid(),
		BootID: boot, NetworkNamespace: namespace}
	out.Networks = slices.Sorted(maps.Keys(a.runners))
	return out
}
