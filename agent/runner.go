package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/flapping"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Reasons for the end of a runner's round.
var (
	errDefinitionChanged = errors.New("the network's definition changed")
	errNetworkGone       = errors.New("the network was deleted")
	errDefinitionLost    = errors.New("the store has lost the network's definition")
	errReleased          = errors.New("the lease was released by request")
)

// LostError ends an agent whose configuration says on_lost = "exit".
type LostError struct {
	Network  string
	Old, New string // such as "10.5.1.0/24"; New was taken instead of Old
}

func (e *LostError) Error() string {
	return fmt.Sprintf(`network %s: subnet %s was lost, %s taken instead, and on_lost is "exit"`, e.Network, e.Old, e.New)
}

// releasedAdvice is the state of a network whose lease was released by request, with what to do about it.
const releasedAdvice = "released by request, restart or reload the agent to join again"

// leaveTimeout bounds the cleanup of a host that leaves a network.
const leaveTimeout = 15 * time.Second

// runner runs one network on this host: it finds the network's definition and keeps the lease and the datapath right.
type runner struct {
	env    *environment
	config config.Config // the agent's, as it was when the runner was created
	local  config.Network
	log    hclog.Logger
	report *report.Reporter

	lease    *watch.Value[registry.Lease]
	snapshot *watch.Value[snapshot]
	claim    *watch.Value[registry.Claim]
	ended    *watch.Value[string] // the session that was last found to have ended
	releases chan *releaseRequest
	done     chan struct{} // closed when Run has returned
	began    time.Time     // when the runner was created

	// Only for the goroutine of Run.
	carrier  *carrier           // the datapath that was built last; it outlives a round
	known    *knownDefinition   // nil if this host does not know one
	stood    netip.Prefix       // the subnet its containers use, until a lease is held
	deletion *registry.Deletion // of the network, as far as this host knows; nil for none
	missing  time.Time          // since when other hosts have been seen in a network without a definition

	flapping flapping.Detector // of changes by other programs
	forwards bool              // whether the kernel forwarded packets at the last look

	recalled bool // the peers that an earlier process knew have been read

	relief func() // stops the goroutine that keeps a resumed datapath right; nil if there is none

	records *recordBoard

	left       atomic.Bool // this host has left the network because it was deleted
	unfollowed atomic.Bool // the last read of the leases failed
	following  sync.Mutex  // held while unfollowed and its check are written

	// claiming is held during every claim and during a release by request, after which no claim may follow.
	claiming sync.Mutex
	released *releaseRequest

	fresh  *refresher // the leases that the API read last
	probes exclusive
	saving sync.Mutex // held during every change of the state file
	file   subnetFileState

	mu         sync.Mutex
	view       view
	leaving    bool              // tear down when Run's context ends
	handOver   bool              // leave the backend open for the next runner
	trouble    string            // why the lease is not held as it should be; "" if it is
	unrenewed  string            // why the session could not be renewed; "" if it was
	formerly   string            // what this host had before, if its subnet has changed
	revoked    netip.Prefix      // the subnet that Revoke took from this host, until it has another
	absent     netip.Prefix      // the subnet this host had, if its record was missing at the last look
	lossSeen   time.Time         // when the store was last found to have lost the network; zero for never
	suspicions map[string]string // why another host is believed to pass for this one, by source such as "claim"
	resumed    *resumed          // nil if there is nothing to resume, or the store has been read
}

// snapshot holds all leases as read last.
type snapshot struct {
	set   registry.LeaseSet
	index uint64
	read  time.Time
}

// carrier is a backend and the configuration it was built from.
type carrier struct {
	backend backend.Backend
	kind    string
	config  backend.Config
	carries *recollected // the datapath it was given last, nil for none
	close   func() error

	one sync.Mutex // held during calls of the backend's methods: one goroutine at a time
}

func (c *carrier) advertise(u backend.Underlay) (backend.Advertisement, error) {
	c.one.Lock()
	defer c.one.Unlock()
	return c.backend.Advertise(u)
}

func (c *carrier) apply(ctx context.Context, s backend.State) (backend.Report, error) {
	c.one.Lock()
	defer c.one.Unlock()
	return c.backend.Apply(ctx, s)
}

// releaseRequest asks the runner to release its lease under the caller's token.
type releaseRequest struct {
	token string
	done  chan error // buffered for one answer
}

// view holds what the API shows of a runner.
type view struct {
	definition   registry.Network
	defined      bool
	local        api.Local
	report       backend.Report
	counter      backend.Counter        // nil if the backend does not count by peer
	meter        backend.Meter          // nil if the backend does not count in total
	flapping     int                    // number of faults that another program causes again and again
	placed       bool                   // there is a usable underlay
	reservations []registry.Reservation // as read last
	devices      []string               // that the underlay depends on
	remote       []netip.Addr           // addresses of the peers and of the underlay's can_reach
}

func newRunner(env *environment, c config.Config, local config.Network) *runner {
	r := &runner{
		env: env, config: c, local: local, log: env.log.With("network", local.Name),
		lease: watch.New[registry.Lease](), snapshot: watch.New[snapshot](), claim: watch.New[registry.Claim](),
		ended: watch.New[string](), releases: make(chan *releaseRequest), done: make(chan struct{}), began: time.Now(),
		suspicions: map[string]string{},
	}
	r.report = report.New(report.Options{
		Network:   local.Name,
		Log:       r.log,
		Health:    env.health,
		Events:    env.events,
		Telemetry: env.telemetry,
		Changed:   env.shown,
		Flows:     r.flows,
	})
	r.fresh = newRefresher(env.registry, local.Name, freshTimeout, func() []registry.Lease {
		known, _, _ := r.snapshot.Get()
		return known.set.Leases
	})
	r.view.local = api.Local{SubnetFile: local.SubnetFile, Link: backend.LinkName(local.Name)}
	r.records = newRecordBoard(r.log, func(status, reason string) { r.report.Check(health.Records, status, reason) })
	return r
}

// leave makes Run, when its context ends, remove everything of the network from this host and release its lease.
// Otherwise both stay.
func (r *runner) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving = true
}

// succeed makes Run, when its context ends, leave the backend open for the runner that replaces this one. Once done is
// closed, that runner owns carrier and the claimed pools.
func (r *runner) succeed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handOver = true
}

func (r *runner) handingOver() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.handOver
}

// Run blocks until ctx ends, and repairs or retries whatever fails. The only error it returns is a *LostError.
func (r *runner) Run(ctx context.Context) error {
	defer close(r.done)
	defer func() {
		r.relieve()
		if !r.handingOver() {
			r.close()
			r.env.pools.give(r.local.Name)
		}
	}()
	if r.known == nil {
		r.known = rememberedDefinition(r.config.DataDir, r.local.Name)
	}
	r.recallDeletion()
	if r.known.usable() { // until the store says otherwise
		r.show(func(v *view) { v.definition, v.defined = r.known.network, true })
	}
	r.resume(ctx)
	select {
	case <-r.env.named:
	case <-ctx.Done():
		return nil // without its name, this host cannot give up anything
	}
	renewing, stop := context.WithCancel(ctx)
	var renewer sync.WaitGroup
	renewer.Go(func() { r.renew(renewing) })
	err := r.rounds(ctx)
	stop()
	renewer.Wait()
	r.mu.Lock()
	leaving := r.leaving
	r.mu.Unlock()
	if err == nil && leaving {
		r.report.Event(api.EventNetwork, api.Info, "leaving the network", map[string]string{"change": "left"})
		r.tearDown(ctx, r.env.registry)
	}
	return err
}

// rounds runs one round after another until ctx ends.
func (r *runner) rounds(ctx context.Context) error {
	backoff := r.env.outage.NewLoop()
	for {
		err := r.round(ctx)
		var lost *LostError
		switch {
		case errors.Is(err, errReleased):
			r.log.Warn("lease was released by request, the network stays down until a restart or reload")
			r.report.Event(api.EventLease, api.Warning, "the lease was "+releasedAdvice, map[string]string{"change": "released"})
			r.tearDown(ctx, nil)
			r.report.Unused(report.Session)
			r.report.Check(health.Lease, api.Warning, releasedAdvice)
			r.report.SetState(releasedAdvice)
			r.released.done <- nil
			r.refuseReleases(ctx)
			return nil
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &lost):
			return err
		case errors.Is(err, errNetworkGone):
			r.log.Warn("network was deleted, leaving it")
			r.report.Event(api.EventNetwork, api.Warning, "the network was deleted, leaving it", map[string]string{"change": "deleted"})
			r.tearDown(ctx, r.env.registry)
			if follower, ok := r.env.registry.(registry.Follower); ok {
				follower.Forget(r.local.Name)
			}
			r.known = nil
			r.show(func(v *view) { v.defined = false })
			r.abandon()
		case errors.Is(err, errDefinitionChanged):
			r.log.Info("network definition changed")
			r.report.Event(api.EventNetwork, api.Info, "the network's definition changed", map[string]string{"change": "changed"})
			r.snapshot.Clear() // it was read with the old plan
			continue
		default:
			r.report.Wait(health.Network, fmt.Sprintf("stopped, starting again: %v", err))
		}
		if backoff.Wait(ctx, err, nil) != nil {
			return nil
		}
	}
}

// round runs the network until its definition changes, its lease is released by request, or an error ends the round.
func (r *runner) round(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.serveReleases(ctx) })
	g.Go(func() error {
		n, err := r.awaitDefinition(ctx)
		if err != nil {
			return err
		}
		g.Go(func() error { return r.watchDefinition(ctx, n) })
		return r.carry(ctx, n)
	})
	err := g.Wait()
	r.report.Unused(report.Definition, report.Claim, report.Leases, report.Reservations)
	if r.released != nil {
		return errReleased // whatever else happened in this round
	}
	return err
}

// carry takes a lease, and keeps it and the datapath right until ctx ends. If the definition cannot be used, it waits
// until another definition ends the round.
func (r *runner) carry(ctx context.Context, n registry.Network) error {
	kind, config, err := r.backendConfig(n)
	if err != nil {
		r.report.Wait(health.Network, err.Error())
		<-ctx.Done()
		return ctx.Err()
	}
	if err := r.awaitPools(ctx, n, kind, config.Options); err != nil {
		return err
	}
	if r.carrier != nil && r.carrier.carries != nil && len(definition.Differences(r.carrier.carries.network, n)) > 0 {
		r.relieve()
		r.carrier.carries = nil
	}
	if lease, held, _ := r.lease.Get(); held {
		r.stood = lease.Subnet()
	}
	if err := r.retire(ctx, n, kind, config); err != nil {
		return err
	}
	if err := r.build(kind, config); err != nil {
		return err
	}
	r.report.Check(health.Network, api.Passing, r.definedReason())
	place, err := r.awaitUnderlay(ctx, n)
	if err != nil {
		return err
	}
	var claim registry.Claim
	lease, err := r.acquire(ctx, n, func() registry.Claim {
		// The address in the last claim may have been the problem.
		if now, err := r.locate(n); err == nil {
			place = now
			r.showPlace(n, place)
		}
		claim = r.makeClaim(n, place)
		return claim
	})
	if err != nil {
		return err
	}
	r.relieve()
	before := r.stood
	r.stood = netip.Prefix{}
	if before.IsValid() && !slices.Contains(lease.Subnets, before) {
		if err := r.moved(n, before, lease); err != nil {
			return err
		}
	}
	r.claim.Set(claim)

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.keep(ctx, n, lease, claim) })
	g.Go(func() error { return r.watchLeases(ctx, n) })
	g.Go(func() error { return r.keepAge(ctx) })
	g.Go(func() error { return r.checkReservations(ctx, n) })
	g.Go(func() error { return r.reconcile(ctx, n, place) })
	g.Go(func() error { return r.expireLapsed(ctx, n) })
	g.Go(func() error { return r.keepSubnetFile(ctx) })
	return g.Wait()
}

// backendConfig returns the network's backend and the configuration for it, with its effective options.
func (r *runner) backendConfig(n registry.Network) (kind backend.Type, c backend.Config, err error) {
	kind, ok := r.env.backends[n.Backend.Type]
	if !ok {
		return kind, c, fmt.Errorf("this leno has no backend %q", n.Backend.Type)
	}
	options, err := kind.Normalize(n.Backend.Options())
	if err != nil {
		return kind, c, fmt.Errorf("backend %q: %w", kind.Name, err)
	}
	return kind, r.newConfig(kind, n.Plan.Prefixes(), options), nil
}

func (r *runner) newConfig(kind backend.Type, pools []netip.Prefix, options json.RawMessage) backend.Config {
	return backend.Config{
		Network: r.local.Name, Link: backend.LinkName(r.local.Name), NodeID: r.env.id.NodeID,
		DataDir: filepath.Join(r.config.DataDir, r.local.Name), Pools: pools, Options: options,
		Logger: r.log.Named(kind.Name),
	}
}

// build makes the backend, unless the one of the last round has the same configuration or can change to it.
func (r *runner) build(kind backend.Type, c backend.Config) error {
	if r.carrier == nil || !r.carrier.takes(kind, c) {
		r.close()
		b, err := kind.New(c)
		if err != nil {
			return fmt.Errorf("backend %q: %w", kind.Name, err)
		}
		r.carrier = &carrier{backend: b, kind: kind.Name, config: c, close: r.env.processors.lend(kind.Threads, b.Close)}
	}
	counter, _ := r.carrier.backend.(backend.Counter)
	meter, _ := r.carrier.backend.(backend.Meter)
	r.show(func(v *view) { v.counter, v.meter = counter, meter })
	return nil
}

// takes reports whether the backend has the given configuration, after changing it if necessary.
func (c *carrier) takes(kind backend.Type, o backend.Config) bool {
	if c.kind != kind.Name {
		return false
	}
	if string(c.config.Options) == string(o.Options) && slices.Equal(c.config.Pools, o.Pools) {
		return true
	}
	changer, ok := c.backend.(backend.Changer)
	if !ok || changer.Change(o) != nil {
		return false
	}
	c.config = o
	return true
}

// outgrown returns the subnet if it is in the plan but outside the range for leases, otherwise the zero prefix. A host
// must not keep such a subnet unless it is reserved for it.
func outgrown(plan registry.Plan, subnet netip.Prefix) netip.Prefix {
	if slot, err := plan.Slot(subnet); err != nil || plan.InRange(slot) {
		return netip.Prefix{}
	}
	return subnet
}

// moved handles a lease with another subnet than before. It logs and reports the change, which needs an operator: the
// containers must be restarted. If the configuration says on_lost = "exit", it instead saves the new subnet for the
// next process and returns a *LostError.
func (r *runner) moved(n registry.Network, before netip.Prefix, now registry.Lease) error {
	if r.config.Lease.OnLost == config.OnLostExit {
		if err := r.save(n, now); err != nil {
			r.log.Warn("state file does not know of the new subnet", "subnet", now.Subnet(), "error", err)
		}
		return &LostError{Network: r.local.Name, Old: before.String(), New: now.Subnet().String()}
	}
	r.log.Error("this host has another subnet now, its containers must be restarted", "subnet", now.Subnet(), "before", before)
	r.report.Event(api.EventLease, api.Critical, fmt.Sprintf("this host has %s now, before %s: its containers must be restarted", now.Subnet(), before),
		map[string]string{"change": "renumbered", "subnet": now.Subnet().String(), "before": before.String()})
	r.mu.Lock()
	r.formerly = fmt.Sprintf("; it was %s until %s, containers from before must be restarted",
		before, time.Now().UTC().Format(time.RFC3339))
	r.mu.Unlock()
	r.reportLease()
	return nil
}

// close closes the backend; its datapath in the kernel stays.
func (r *runner) close() {
	if r.carrier == nil {
		return
	}
	if err := r.carrier.close(); err != nil {
		r.log.Error("closing the backend", "backend", r.carrier.kind, "error", err)
	}
	r.carrier = nil
}

// show changes what the API shows.
func (r *runner) show(change func(*view)) {
	r.mu.Lock()
	change(&r.view)
	r.mu.Unlock()
	r.report.Changed()
}

// shown returns what the API shows.
func (r *runner) shown() view {
	r.mu.Lock()
	v := r.view
	r.mu.Unlock()
	v.local.State = r.report.State()
	return v
}
