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
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Why a runner's round ended.
var (
	errDefinitionChanged = errors.New("the network's definition changed")
	errNetworkGone       = errors.New("the network was deleted")
	errDefinitionLost    = errors.New("the store has lost the network's definition")
	errReleased          = errors.New("the lease was released by request")
)

// LostError ends an agent whose configuration says on_lost = "exit".
type LostError struct {
	Network  string
	Old, New string // subnets; New is the one that was taken instead
}

func (e *LostError) Error() string {
	return fmt.Sprintf(`network %s: subnet %s was lost, %s taken instead, and on_lost is "exit"`, e.Network, e.Old, e.New)
}

// releasedAdvice is what to do about a lease that was released by request.
const releasedAdvice = "released by request, restart or reload the agent to join again"

// leaveTimeout bounds the clean-up of a host that leaves a network.
const leaveTimeout = 15 * time.Second

// runner carries one network on this host, from finding its definition to
// keeping the lease and the datapath right.
type runner struct {
	env    *environment
	config config.Config // of the agent, as it was when the runner was started
	local  config.Network
	log    hclog.Logger

	lease    *watch.Value[registry.Lease]
	snapshot *watch.Value[snapshot]
	claim    *watch.Value[registry.Claim]
	ended    *watch.Value[string] // the session that was found dead last
	releases chan *releaseRequest
	done     chan struct{} // closed when Run has returned
	began    time.Time     // when it was made

	// Run's goroutine only.
	carrier  *carrier           // the datapath built last, kept over rounds
	known    *knownDefinition   // nil when this host knows of none
	stood    netip.Prefix       // the subnet its containers have, until a lease is held
	deletion *registry.Deletion // of the network, as this host knows of it; nil for none
	missing  time.Time          // when hosts of a network without a definition were first seen

	flapping flapping.Detector // what other programs changed
	forwards bool              // the kernel did when last looked at

	recalled bool // what an earlier process knew of the peers was read

	relief func() // ends the keeping of a resumed datapath, nil when there is none

	records *recordBoard

	left       atomic.Bool // this host has left the network, which was deleted
	unfollowed atomic.Bool // the leases could not be read last
	following  sync.Mutex  // held around what is written of that

	// claiming is held around every claim, and around a release by request,
	// which no claim may follow.
	claiming sync.Mutex
	released *releaseRequest

	faults health.ActiveFaults
	fresh  *refresher // leases as the API read them last
	probes exclusive
	saving sync.Mutex // held around every change of the state file
	file   subnetFileState

	mu         sync.Mutex
	view       view
	leaving    bool              // tear down when Run's context ends
	handOver   bool              // leave the backend open for the next runner
	trouble    string            // why the lease is not as it should be
	unrenewed  string            // why the session could not be renewed
	formerly   string            // what this host had before, if it was another subnet
	revoked    netip.Prefix      // subnet taken from this host by Revoke, until it has another
	absent     netip.Prefix      // subnet this host had, without a record when last looked at
	lossSeen   time.Time         // when the store was last seen to have lost the network, zero for never
	suspicions map[string]string // that another host is taken for this one, by source
	unwritten  map[string]error  // why something could not be written down, by what it is
	unusable   map[string]error  // why a use of the store does not work, by what it is
	waited     waited
	resumed    *resumed // nil when there is nothing, or the store has been read
}

// waited is what was logged last about waiting.
type waited struct {
	check string
	at    time.Time
}

// snapshot is all leases as last read.
type snapshot struct {
	set   registry.LeaseSet
	index uint64
	read  time.Time
}

// carrier is a backend and what it was built from.
type carrier struct {
	backend backend.Backend
	kind    string
	config  backend.Config
	carries *recollected // what it was given last, nil for nothing
	close   func() error

	one sync.Mutex // held around the backend's methods: one goroutine at a time
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

// releaseRequest asks the runner to give up its lease under somebody's token.
type releaseRequest struct {
	token string
	done  chan error // room for one
}

// view is what the API shows of a runner.
type view struct {
	definition   registry.Network
	defined      bool
	local        api.Local
	report       backend.Report
	counter      backend.Counter        // nil when the backend does not count
	meter        backend.Meter          // nil when it does not count in all
	flapping     int                    // faults that another program causes again and again
	placed       bool                   // there is an underlay
	reservations []registry.Reservation // as read last
	devices      []string               // what it depends on
	remote       []netip.Addr           // what peers and the underlay's can_reach are reached at
}

func newRunner(env *environment, c config.Config, local config.Network) *runner {
	r := &runner{
		env: env, config: c, local: local, log: env.log.With("network", local.Name),
		lease: watch.New[registry.Lease](), snapshot: watch.New[snapshot](), claim: watch.New[registry.Claim](),
		ended: watch.New[string](), releases: make(chan *releaseRequest), done: make(chan struct{}), began: time.Now(),
		suspicions: map[string]string{}, unwritten: map[string]error{}, unusable: map[string]error{},
	}
	r.fresh = newRefresher(env.registry, local.Name, freshTimeout, func() []registry.Lease {
		known, _, _ := r.snapshot.Get()
		return known.set.Leases
	})
	r.view.local = api.Local{State: "starting", SubnetFile: local.SubnetFile, Link: backend.LinkName(local.Name)}
	r.records = newRecordBoard(r.log, func(status, reason string) { r.check(health.Records, status, reason) })
	env.health.Reset(local.Name)
	r.check(health.Network, api.Critical, health.Starting)
	return r
}

// leave makes the end of Run's context take everything of the network away
// from this host and give up its lease. Without it both stay.
func (r *runner) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving = true
}

// succeed makes the end of Run's context leave the backend open, for a runner
// that takes this one's place. Once done is closed, carrier is that runner's, as
// are the pools.
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

// Run blocks until ctx ends, healing and retrying whatever fails. The only
// error is a *LostError.
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
		return nil // nothing can be given up under no name
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
		r.event(api.EventNetwork, api.Info, "leaving the network", map[string]string{"change": "left"})
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
			r.event(api.EventLease, api.Warning, "the lease was "+releasedAdvice, map[string]string{"change": "released"})
			r.tearDown(ctx, nil)
			r.unused(useSession)
			r.check(health.Lease, api.Warning, releasedAdvice)
			r.state(releasedAdvice)
			r.released.done <- nil
			r.refuseReleases(ctx)
			return nil
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &lost):
			return err
		case errors.Is(err, errNetworkGone):
			r.log.Warn("network was deleted, leaving it")
			r.event(api.EventNetwork, api.Warning, "the network was deleted, leaving it", map[string]string{"change": "deleted"})
			r.tearDown(ctx, r.env.registry)
			if follower, ok := r.env.registry.(registry.Follower); ok {
				follower.Forget(r.local.Name)
			}
			r.known = nil
			r.show(func(v *view) { v.defined = false })
			r.abandon()
		case errors.Is(err, errDefinitionChanged):
			r.log.Info("network definition changed")
			r.event(api.EventNetwork, api.Info, "the network's definition changed", map[string]string{"change": "changed"})
			r.snapshot.Clear() // it was read with the old plan
			continue
		default:
			r.wait(health.Network, fmt.Sprintf("stopped, starting again: %v", err))
		}
		if backoff.Wait(ctx, err, nil) != nil {
			return nil
		}
	}
}

// round carries the network until its definition changes, somebody releases
// the lease, or something fails for good.
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
	r.unused(useDefinition, useClaim, useLeases, useReservations)
	if r.released != nil {
		return errReleased // whatever else happened meanwhile
	}
	return err
}

// carry takes a lease and keeps it and the datapath right until ctx ends. A
// definition that cannot be used waits for another one.
func (r *runner) carry(ctx context.Context, n registry.Network) error {
	kind, config, err := r.backendConfig(n)
	if err != nil {
		r.wait(health.Network, err.Error())
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
	r.check(health.Network, api.Passing, r.definedReason())
	place, err := r.awaitUnderlay(ctx, n)
	if err != nil {
		return err
	}
	var claim registry.Claim
	lease, err := r.acquire(ctx, n, func() registry.Claim {
		// What was wrong with the last claim may be the address in it.
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

// backendConfig resolves the network's backend and its effective options.
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

// build makes the backend. That of the last round goes on when it was built from
// the same, or can change.
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

// takes says whether the backend carries what another config asks for, changed
// into it where that is needed.
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

// outgrown is the subnet when it is one of the plan's and outside the range that
// hosts are given: a host must not stay there, reservations aside.
func outgrown(plan registry.Plan, subnet netip.Prefix) netip.Prefix {
	if slot, err := plan.Slot(subnet); err != nil || plan.InRange(slot) {
		return netip.Prefix{}
	}
	return subnet
}

// moved tells of a host that has another subnet than before, as a matter for a
// person; the error is a *LostError where that ends the agent. The next process
// goes on with what this host has now.
func (r *runner) moved(n registry.Network, before netip.Prefix, now registry.Lease) error {
	if r.config.Lease.OnLost == config.OnLostExit {
		if err := r.save(n, now); err != nil {
			r.log.Warn("state file does not know of the new subnet", "subnet", now.Subnet(), "error", err)
		}
		return &LostError{Network: r.local.Name, Old: before.String(), New: now.Subnet().String()}
	}
	r.log.Error("this host has another subnet now, its containers must be restarted", "subnet", now.Subnet(), "before", before)
	r.event(api.EventLease, api.Critical, fmt.Sprintf("this host has %s now, before %s: its containers must be restarted", now.Subnet(), before),
		map[string]string{"change": "renumbered", "subnet": now.Subnet().String(), "before": before.String()})
	r.mu.Lock()
	r.formerly = fmt.Sprintf("; it was %s until %s, containers from before must be restarted",
		before, time.Now().UTC().Format(time.RFC3339))
	r.mu.Unlock()
	r.reportLease()
	return nil
}

// close ends the backend; its datapath in the kernel stays.
func (r *runner) close() {
	if r.carrier == nil {
		return
	}
	if err := r.carrier.close(); err != nil {
		r.log.Error("closing the backend", "backend", r.carrier.kind, "error", err)
	}
	r.carrier = nil
}

// check writes one check of this network.
func (r *runner) check(name, status, reason string) {
	r.env.health.Set(r.local.Name, name, status, reason)
}

// event adds an event of this network.
func (r *runner) event(kind, severity, message string, fields map[string]string) {
	r.env.events.Add(api.Event{Network: r.local.Name, Kind: kind, Severity: severity, Message: message, Fields: fields})
}

// show changes what the API shows.
func (r *runner) show(change func(*view)) {
	r.mu.Lock()
	change(&r.view)
	r.mu.Unlock()
	r.env.shown.Set(struct{}{})
}

// state says in one sentence what the runner does or waits for.
func (r *runner) state(sentence string) {
	r.show(func(v *view) { v.local.State = sentence })
}

// shown is what the API shows.
func (r *runner) shown() view {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view
}
