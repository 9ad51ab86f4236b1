// Package network runs one network on this host: it finds the network's definition, takes a lease, follows the other
// hosts, and keeps the datapath right. Each of these has its own package or type; only the Runner knows their order.
package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/network/lease"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
)

// An Ending is what a Runner does with the network when its context ends.
type Ending int32

// The endings.
const (
	Keep  Ending = iota // the datapath stays in the kernel, and the backend is closed
	Leave               // everything of the network is removed from this host, and its lease is released
	Stay                // the backend stays open for HandOver
)

// A HandOver is what a Runner leaves to the next one of the same network.
type HandOver struct {
	instance *datapath.Instance // nil if there is none
	known    *belief.Definition
	keys     *keyAge
}

// Close closes the backend that was handed over; its datapath in the kernel stays.
func (h *HandOver) Close() error {
	if h.instance == nil {
		return nil
	}
	return h.instance.Close()
}

// A Runner runs one network on this host. Its goroutines, which Run starts and ends:
//
//   - Run itself goes from one round to the next, and owns the order of things. While the lease is held, switcher.run
//     changes the definition when a switch ends, and when new keys are due.
//   - lease.RenewSession keeps the session alive, and file.keep the subnet file, for as long as Run runs.
//   - The loop of datapath.Resume owns a resumed datapath until a lease is held.
//
// In each round:
//
//   - definition.watch owns the definition, once it is known.
//   - lease.Keep owns the lease, once it is taken.
//   - peers.Run owns what is known of the other hosts: it publishes views and writes the peers file. Beside it, one
//     goroutine waits for the store, and one maintains records that any host may change.
//   - datapath.Run owns the datapath.
//
// The definition goes from definition.watch to the lease, to the peers and with their views to the datapath. They
// follow a change of it within the round, unless the plan changes or the datapath must be removed first.
type Runner struct {
	deps   *Deps
	config config.Config // the agent's, as it was when the runner was created
	local  config.Network
	report *report.Reporter
	state  *state.File
	began  time.Time // when the runner was created

	definition *definitionKeeper
	lease      *lease.Keeper
	peers      *peers.Follower
	datapath   *datapath.Reconciler
	file       *subnetFile
	resumed    *resumption
	withdrawn  *withdrawal
	switcher   *switcher

	plan     registry.Plan // by which the peers' leases were read
	previous netip.Prefix  // the subnet its containers use or had to stop using, until a lease is held
	ending   atomic.Int32  // an Ending
}

// New returns a runner that takes over what before left, or starts with what is on disk if before is nil.
func New(deps *Deps, c config.Config, local config.Network, before *HandOver) *Runner {
	if before == nil {
		before = &HandOver{keys: &keyAge{}}
	}
	r := &Runner{deps: deps, config: c, local: local, began: time.Now(), state: state.NewFile(c.DataDir, local.Name)}
	r.report = deps.reporter(local.Name, r.flows)
	r.resumed = &resumption{report: r.report, found: watch.New[*resumed]()}
	r.lease = lease.New(lease.Options{
		Network:    local.Name,
		SubnetFile: local.SubnetFile,
		Settings:   c.Lease,
		Identity:   deps.Identity.Get,
		Registry:   deps.Store.Registry,
		Outage:     deps.Store.Outage,
		State:      r.state,
		Former:     deps.Former,
		Report:     r.report,
		Networks: func() <-chan struct{} {
			_, _, changed := deps.Store.Networks.Get()
			return changed
		},
		Resumed:  r.resumed.inUse,
		Answered: r.resumed.settle,
		Save:     r.save,
	})
	r.definition = &definitionKeeper{
		deps:    deps,
		config:  c,
		local:   local,
		report:  r.report,
		leases:  lostLeases{note: r.lease.NoteLoss, count: func() int { return countLeases(r.peers) }},
		known:   before.known,
		inForce: watch.New[registry.Network](),
		status:  watch.New[definitionStatus](),
	}
	r.peers = peers.New(peers.Options{
		Network:    local.Name,
		DataDir:    c.DataDir,
		Identity:   deps.Identity.Get,
		Settings:   c.Lease,
		Registry:   deps.Store.Registry,
		Outage:     deps.Store.Outage,
		SetBack:    deps.Store.SetBack,
		Report:     r.report,
		Foreign:    flannelStays(deps.Store.Kind),
		Suspect:    func(c peers.Conflict) { r.lease.Suspect("leases", lease.Suspicion(c)) },
		Answered:   r.resumed.settle,
		Remembered: r.rememberedLeases,
	})
	r.datapath = datapath.New(datapath.Options{
		Network:         local.Name,
		DataDir:         c.DataDir,
		Forward:         local.Forward,
		RulePriority:    local.RulePriority,
		Underlay:        c.Underlay,
		Previous:        sync.OnceValue(r.previousUnderlay),
		Others:          func() []netip.Prefix { return deps.Claims.others(local.Name) },
		Host:            deps.Datapaths,
		Report:          r.report,
		Change:          r.change,
		Serve:           r.serve,
		ServeSaved:      r.serveSaved,
		UnderlayChanged: r.moveClaim,
	}, before.instance)
	r.withdrawn = &withdrawal{r.report, r.state, r.datapath, watch.New[[]netip.Prefix]()}
	r.switcher = &switcher{deps: deps, report: r.report, keys: before.keys}
	r.file = &subnetFile{
		network:      local.Name,
		path:         local.SubnetFile,
		isConfigured: slices.ContainsFunc(c.Networks, func(n config.Network) bool { return n.Name == local.Name }),
		state:        r.state,
		report:       r.report,
		subnetFileOf: deps.SubnetFileOf,
	}
	return r
}

// SetEnding decides what Run does when its context ends. Without it, Run keeps the datapath in the kernel.
func (r *Runner) SetEnding(e Ending) { r.ending.Store(int32(e)) }

// HandOver returns what this runner leaves to the next one. Run must have returned, and the ending must be Stay.
func (r *Runner) HandOver() *HandOver {
	return &HandOver{r.datapath.HandOver(), r.definition.known, r.switcher.keys}
}

// Run blocks until ctx ends, and repairs or retries whatever fails. The only error it returns is a *lease.LostError.
func (r *Runner) Run(ctx context.Context) error {
	defer r.lease.Close()
	defer func() {
		r.datapath.StopResumed()
		if Ending(r.ending.Load()) != Stay {
			r.datapath.Close()
			r.deps.Claims.release(r.local.Name)
		}
	}()
	r.definition.recall()
	r.guardRemembered(ctx)
	r.withdrawn.recall(ctx)
	if !r.deps.Identity.IsSettled() {
		r.report.SetState("waiting for this host's name: see the check node")
	}
	r.resume(ctx)
	keeping, stop := context.WithCancel(ctx)
	var keepers sync.WaitGroup
	keepers.Go(func() { r.lease.RenewSession(keeping) })
	keepers.Go(func() { r.file.keep(keeping) })
	err := r.rounds(ctx)
	stop()
	keepers.Wait()
	// Without its name, this host cannot give up anything.
	if err == nil && Ending(r.ending.Load()) == Leave && r.deps.Identity.IsSettled() {
		r.report.Event(api.EventNetwork, api.Info, "leaving the network", map[string]string{"change": "left"})
		newRemoval(r, true).leave(ctx)
	}
	return err
}

// rounds runs one round after another until ctx ends, once this host's name is known.
func (r *Runner) rounds(ctx context.Context) error {
	select {
	case <-r.deps.Identity.Settled():
	case <-ctx.Done():
		return nil
	}
	backoff := r.deps.Store.Outage.NewLoop()
	log := r.report.Log()
	for {
		err := r.round(ctx)
		var lost *lease.LostError
		var withdrawn *lease.WithdrawnError
		switch {
		case errors.Is(err, lease.ErrReleased):
			log.Warn("lease was released by request, the network stays down until a restart or reload")
			r.report.Event(api.EventLease, api.Warning, "the lease was "+lease.ReleasedAdvice,
				map[string]string{"change": "released"})
			removal := newRemoval(r, false)
			left := removal.tearDown(ctx)
			r.report.Unused(report.Session)
			r.report.Check(health.Lease, api.Warning, lease.ReleasedAdvice)
			r.report.SetState(lease.ReleasedAdvice)
			r.lease.ConfirmRelease(left)
			if left != nil {
				removal.retry(ctx)
			}
			<-ctx.Done()
			return nil
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &lost):
			return err
		case errors.As(err, &withdrawn):
			r.withdraw(ctx, withdrawn)
			err = nil // the store answers: the pause is short
		case errors.Is(err, errNetworkGone):
			log.Warn("network was deleted, leaving it")
			r.report.Event(api.EventNetwork, api.Warning, "the network was deleted, leaving it",
				map[string]string{"change": "deleted"})
			newRemoval(r, true).leaveDeleted(ctx)
			r.definition.forget()
		case errors.Is(err, errDefinitionChanged):
			continue
		default:
			r.report.Wait(health.Network, fmt.Sprintf("stopped, starting again: %v", err))
		}
		waiting, cancel := r.lease.UntilReleased(ctx)
		_ = backoff.Wait(waiting, err, nil) // ctx is checked after the next round
		cancel()
	}
}

// round runs the network until its definition changes in a way that its parts cannot follow, its lease is released by
// request, or an error ends the round.
func (r *Runner) round(ctx context.Context) error {
	ctx, cancel := r.lease.UntilReleased(ctx)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx) // the first error counts
	defer end(nil)
	n, err := r.definition.await(ctx)
	if err == nil {
		var watch sync.WaitGroup
		watch.Go(func() { end(r.definition.watch(ctx, n)) })
		end(r.runDefined(ctx, n))
		watch.Wait()
		err = context.Cause(ctx)
	}
	r.report.Unused(report.Definition, report.Claim, report.Leases, report.Reservations)
	if outcome := r.lease.Outcome(); outcome != nil {
		return outcome // whatever else happened in this round
	}
	return err
}

// guardRemembered refuses packets to a network that required encryption when an earlier process read its definition.
func (r *Runner) guardRemembered(ctx context.Context) {
	if known := r.definition.known; known != nil && known.Network.Encryption != "" {
		if err := r.datapath.Guard(ctx, known.Network); err != nil {
			r.report.Log().Error("packets to the network may leave unencrypted until it is carried", "error", err)
		}
	}
}

// runUnencrypted makes sure that no packet of n is carried, because its definition requires encryption and none would
// be encrypted, and that the next process knows n. It returns when ctx ends, as it does with another definition.
func (r *Runner) runUnencrypted(ctx context.Context, n registry.Network, contradiction error) error {
	before, err := r.state.Load()
	if err != nil {
		before = state.Network{} // the datapath is found by the definition
		before.Backend, before.Pools = n.Backend, n.Plan.Prefixes()
	}
	reason := fmt.Sprintf("the network is not carried, and packets to it are refused: %v; "+
		"correct the definition with `leno network apply`", contradiction)
	r.resumed.settle()
	r.report.SetReady(false)
	r.report.Check(health.Network, api.Critical, reason)
	r.report.Waiting(health.Network, reason)
	r.report.Forget(health.Device, health.Routes, health.Forwarding)
	refused := n.Plan.Prefixes()
	return r.datapath.KeepRefused(ctx, refused, func(ctx context.Context) error {
		record, err := registry.FormatNetwork(n)
		if err = errors.Join(err, r.datapath.Remove(ctx, before, refused)); err != nil || len(before.Subnets) == 0 {
			return err
		}
		return r.state.Update(func(s state.Network, _ error) state.Network {
			s.Pools, s.Definition, s.Record, s.RecordIndex = nil, n.CreateIndex, record, n.ModifyIndex
			return s
		})
	})
}

// runDefined takes a lease, and keeps it and the datapath right until ctx ends. If the definition excludes the subnet
// in use, the error is a *lease.WithdrawnError. If it cannot be used, runDefined waits until another ends the round.
// Once the lease is held, all parts follow changes of the definition.
func (r *Runner) runDefined(ctx context.Context, n registry.Network) error {
	if !slices.Equal(n.Plan, r.plan) {
		r.peers.Clear() // the leases were read with another plan
	}
	r.plan = n.Plan
	if err := definition.CheckCarried(n, savedState(r.state).Carriage, r.deps.Datapaths.Backends); err != nil {
		return r.runUnencrypted(ctx, n, err)
	}
	if err := r.withdrawn.guard(ctx, n); err != nil {
		return err
	}
	stopRefusing := r.withdrawn.keep(ctx)
	defer stopRefusing()
	backends, c, err := r.datapath.Configure(n.Carriage(), n.Plan.Prefixes())
	if err != nil {
		r.report.Wait(health.Network, err.Error())
		<-ctx.Done()
		return ctx.Err()
	}
	if held, ok, _ := r.lease.Lease().Get(); ok {
		r.previous = held.Subnet()
	}
	if err := r.awaitClaims(ctx, n, hostClaim{n.Plan.Prefixes(), backends.Ports(r.deps.Datapaths.Backends)}); err != nil {
		return err
	}
	if err := r.withdrawn.guard(ctx, n); err != nil { // now that no other network of this host uses the pools
		return err
	}
	if before := r.datapath.Content(); before != nil && len(definition.Differences(before.Network, n)) > 0 {
		r.datapath.Drop()
	}
	before, err := r.state.Load()
	if err != nil {
		before = state.Network{} // the keeper reports the file and sets it aside when it makes a claim
	}
	if err := r.lease.Retire(ctx, n, before, r.withdrawn.isDue(r.previous)); err != nil {
		return err
	}
	if err := r.datapath.Retire(ctx, backends, c, before); err != nil {
		return err
	}
	if err := r.datapath.Build(backends, c); err != nil {
		return err
	}
	if !r.flows() {
		// Otherwise every check would pass from the lease to the first pass of the datapath.
		r.report.Check(health.SubnetFile, api.Critical, health.Starting)
	}
	r.definition.reportDefined(n)
	underlay, err := r.datapath.AwaitUnderlay(ctx, n)
	if err != nil {
		return err
	}
	taken, claim, err := r.acquire(ctx, n, &underlay)
	if err != nil {
		return err
	}
	stopRefusing()
	r.datapath.StopResumed()
	previous := r.previous
	r.previous = netip.Prefix{}
	if previous.IsValid() && !slices.Contains(taken.Subnets, previous) {
		if err := r.lease.Moved(n, previous, taken); err != nil {
			return err
		}
	}
	follow := func(yes bool) { r.definition.update(func(s *definitionStatus) { s.followed = yes }) }
	follow(true)
	defer follow(false)
	inForce := r.definition.inForce
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.lease.Keep(ctx, inForce, taken, claim) })
	g.Go(func() error { return r.peers.Run(ctx, inForce, r.lease.Lease()) })
	g.Go(func() error { return r.datapath.Run(ctx, n, r.peers.Views(), underlay) })
	_ = r.switcher.run(ctx, r.peers.Views()) // ends with ctx
	return g.Wait()
}

// change makes the backends those of n, another definition with the same plan, between two passes of the datapath. The
// error is errDefinitionChanged: a new round waits for what is missing.
func (r *Runner) change(ctx context.Context, n registry.Network) error {
	backends, c, err := r.datapath.Configure(n.Carriage(), n.Plan.Prefixes())
	if err == nil {
		err = r.withdrawn.guard(ctx, n)
	}
	if err == nil {
		err = r.deps.Claims.take(n.Name, hostClaim{n.Plan.Prefixes(), backends.Ports(r.deps.Datapaths.Backends)})
	}
	if err == nil && !r.datapath.Follows(backends) { // versions between them were skipped
		err = errors.New("the backends must be removed first")
	}
	if err == nil {
		err = r.datapath.Build(backends, c)
	}
	if err != nil {
		r.report.Log().Warn("the new definition needs a new start of the network", "reason", err)
		return errDefinitionChanged
	}
	return nil
}

// acquire blocks until this host holds a lease that n permits, and returns it with the claim for it. It keeps underlay
// up to date. A lease that was held before goes on without a claim: lease.Keep claims it again while other parts run.
func (r *Runner) acquire(
	ctx context.Context, n registry.Network, underlay *datapath.UnderlayState,
) (taken registry.Lease, claim registry.Claim, err error) {
	if taken, isSlot := r.lease.Adopt(n.Plan); isSlot {
		r.lease.SetClaim(r.lease.Claim(n, attributesOf(*underlay)))
		return taken, registry.Claim{}, nil
	}
	taken, err = r.lease.Acquire(ctx, func() (registry.Network, registry.Claim) {
		// The address in the last claim may have been the problem.
		if now, err := r.datapath.SelectUnderlay(n); err == nil {
			*underlay = now
		}
		claim = r.lease.Claim(n, attributesOf(*underlay))
		return n, claim
	})
	if err == nil {
		r.lease.SetClaim(claim)
	}
	return taken, claim, err
}

// attributesOf returns what other hosts need to know of a host with an underlay.
func attributesOf(u datapath.UnderlayState) lease.Attributes {
	return lease.Attributes{PublicIPs: u.Choice.Addrs, MTU: u.MTU, Backend: u.Attributes}
}

// moveClaim makes the lease follow a host whose underlay has changed.
func (r *Runner) moveClaim(n registry.Network, u datapath.UnderlayState, readdressed bool) {
	if readdressed {
		r.deps.Store.Registry.Reconnect() // the claim could not be sent over connections from an address that is gone
	}
	r.lease.SetClaim(r.lease.Claim(n, attributesOf(u)))
}

// flannelStays returns how long a lease stays that a store lacks, if its host runs flannel, 0 for as long as others: in
// etcd, flannel writes it once a day. In Kubernetes it ends with its Node, and lists of Nodes are complete.
func flannelStays(store string) time.Duration {
	if store == config.StoreKubernetes {
		return 0
	}
	return registry.FlannelTTL
}
