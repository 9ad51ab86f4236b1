package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/network/peers"
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

	datapath *datapath.Reconciler

	lease    *watch.Value[registry.Lease]
	snapshot *watch.Value[snapshot]
	claim    *watch.Value[registry.Claim]
	ended    *watch.Value[string] // the session that was last found to have ended
	releases chan *releaseRequest
	done     chan struct{} // closed when Run has returned
	began    time.Time     // when the runner was created

	// Only for the goroutine of Run.
	known    *knownDefinition   // nil if this host does not know one
	stood    netip.Prefix       // the subnet its containers use, until a lease is held
	deletion *registry.Deletion // of the network, as far as this host knows; nil for none
	missing  time.Time          // since when other hosts have been seen in a network without a definition

	recalled bool // the peers that an earlier process knew have been read

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
	datapath     datapath.Status
	reservations []registry.Reservation // as read last
}

// newRunner returns the runner of a network, which takes over the datapath of another one unless before is nil.
func newRunner(env *environment, c config.Config, local config.Network, before *datapath.Instance) *runner {
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
	r.datapath = datapath.New(datapath.Options{
		Network:  local.Name,
		DataDir:  c.DataDir,
		Forward:  local.Forward,
		Underlay: c.Underlay,
		Host:     env.datapaths,
		Report:   r.report,
		Serve:    r.serve,
		Moved:    r.moveClaim,
	}, before)
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
// closed, that runner takes over the datapath and the claimed pools.
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
		r.datapath.StopResumed()
		if !r.handingOver() {
			r.datapath.Close()
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
	kind, config, err := r.datapath.Configure(n)
	if err != nil {
		r.report.Wait(health.Network, err.Error())
		<-ctx.Done()
		return ctx.Err()
	}
	if err := r.awaitPools(ctx, n, kind, config.Options); err != nil {
		return err
	}
	if before := r.datapath.Content(); before != nil && len(definition.Differences(before.Network, n)) > 0 {
		r.datapath.Drop()
	}
	if lease, held, _ := r.lease.Get(); held {
		r.stood = lease.Subnet()
	}
	if err := r.retire(ctx, n, kind, config); err != nil {
		return err
	}
	if err := r.datapath.Build(kind, config); err != nil {
		return err
	}
	r.report.Check(health.Network, api.Passing, r.definedReason())
	place, err := r.datapath.AwaitUnderlay(ctx, n)
	if err != nil {
		return err
	}
	var claim registry.Claim
	lease, err := r.acquire(ctx, n, func() registry.Claim {
		// The address in the last claim may have been the problem.
		if now, err := r.datapath.Locate(n); err == nil {
			place = now
		}
		claim = r.makeClaim(n, place)
		return claim
	})
	if err != nil {
		return err
	}
	r.datapath.StopResumed()
	before := r.stood
	r.stood = netip.Prefix{}
	if before.IsValid() && !slices.Contains(lease.Subnets, before) {
		if err := r.moved(n, before, lease); err != nil {
			return err
		}
	}
	r.claim.Set(claim)

	views := watch.New[*peers.View]() // of this round: the last one may have had another definition
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.keep(ctx, n, lease, claim) })
	g.Go(func() error { return r.watchLeases(ctx, n) })
	g.Go(func() error { return r.keepAge(ctx) })
	g.Go(func() error { return r.checkReservations(ctx, n) })
	g.Go(func() error { return r.followPeers(ctx, n, views) })
	g.Go(func() error { return r.datapath.Run(ctx, views, place) })
	g.Go(func() error { return r.expireLapsed(ctx, n) })
	g.Go(func() error { return r.keepSubnetFile(ctx) })
	return g.Wait()
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
	v.datapath, v.local.State = r.datapath.Status(), r.report.State()
	v.local.Backend, v.local.Underlay = v.datapath.Backend, v.datapath.Underlay
	v.local.MTU, v.local.MTUReason = v.datapath.MTU, v.datapath.MTUReason
	v.local.Peers, v.local.Notes = v.datapath.Report.Peers, v.datapath.Report.Notes
	v.local.Applied = v.datapath.Applied
	return v
}
