package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Why a runner's round ended.
var (
	errDefinitionChanged = errors.New("the network's definition changed")
	errNetworkGone       = errors.New("the network was deleted")
)

// LostError ends an agent whose configuration says on_lost = "exit".
type LostError struct {
	Network  string
	Old, New string // subnets; New is the one that was taken instead
}

func (e *LostError) Error() string {
	return fmt.Sprintf(`network %s: subnet %s was lost, %s taken instead, and on_lost is "exit"`, e.Network, e.Old, e.New)
}

// stateReleased is the state of a network whose lease was released on request.
const stateReleased = "released by request, restart or reload the agent to join again"

// leaveTimeout bounds the clean-up of a host that leaves a network.
const leaveTimeout = 15 * time.Second

// runner carries one network on this host, from finding its definition to
// keeping the lease and the datapath right.
type runner struct {
	env    *environment
	config config.Config // of the agent, as it was when the runner was started
	local  config.Network
	log    hclog.Logger

	lease    *published[registry.Lease]
	snapshot *published[snapshot]
	claim    *published[registry.Claim]
	releases chan releaseRequest
	carrier  *carrier // the datapath built last, kept over rounds; Run's goroutine only
	deleted  bool     // somebody deleted the network: do not put it back; Run's goroutine only

	badLogged map[registry.BadRecord]bool // watchLeases only

	leavingMu sync.Mutex
	leaving   bool // tear down when Run's context ends; set before it is cancelled

	mu   sync.Mutex
	view view
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
}

// releaseRequest asks the runner to give up its lease under somebody's token.
type releaseRequest struct {
	token string
	done  chan error
}

func (r *releaseRequest) Error() string { return "the lease was released" }

// view is what the API shows of a runner.
type view struct {
	definition registry.Network
	defined    bool
	local      api.Local
	report     backend.Report
	counter    backend.Counter // nil when the backend does not count
}

func newRunner(env *environment, c config.Config, local config.Network) *runner {
	r := &runner{
		env: env, config: c, local: local, log: env.log.With("network", local.Name),
		lease: newPublished[registry.Lease](), snapshot: newPublished[snapshot](), claim: newPublished[registry.Claim](),
		releases: make(chan releaseRequest),
	}
	r.view.local = api.Local{State: "starting", SubnetFile: local.SubnetFile, Link: backend.LinkName(local.Name)}
	env.health.ready(local.Name, false)
	return r
}

// leave makes the end of Run's context take everything of the network away
// from this host and give up its lease. Without it both stay.
func (r *runner) leave() {
	r.leavingMu.Lock()
	defer r.leavingMu.Unlock()
	r.leaving = true
}

// Run blocks until ctx ends, healing and retrying whatever fails. The only
// error is a *LostError.
func (r *runner) Run(ctx context.Context) error {
	defer r.env.pools.give(r.local.Name)
	defer r.close()
	retry := newPause()
	for {
		started := time.Now()
		err := r.round(ctx)
		var lost *LostError
		var released *releaseRequest
		switch {
		case ctx.Err() != nil:
			r.leavingMu.Lock()
			leaving := r.leaving
			r.leavingMu.Unlock()
			if leaving {
				r.tearDown(ctx, r.env.registry)
			}
			return nil
		case errors.As(err, &lost):
			return err
		case errors.As(err, &released):
			if r.released(ctx, released) {
				<-ctx.Done()
				return nil
			}
		case errors.Is(err, errNetworkGone):
			r.log.Warn("network was deleted, leaving it")
			r.tearDown(ctx, r.env.registry)
			r.deleted = true
			r.show(func(v *view) { v.defined = false })
		case errors.Is(err, errDefinitionChanged):
			r.log.Info("network definition changed")
		default:
			r.log.Error("network stopped, starting it again", "error", err)
		}
		if time.Since(started) > time.Minute {
			retry.reset()
		}
		if retry.wait(ctx) != nil {
			continue
		}
	}
}

// round finds the definition and carries the network until the definition
// changes, somebody releases the lease, or something fails for good.
func (r *runner) round(ctx context.Context) error {
	n, err := r.awaitDefinition(ctx)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.watchDefinition(ctx, n) })
	g.Go(func() error { return r.carry(ctx, n) })
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case request := <-r.releases:
			return &request
		}
	})
	return g.Wait()
}

// carry takes a lease and keeps it and the datapath right until ctx ends. A
// definition that cannot be used waits for another one.
func (r *runner) carry(ctx context.Context, n registry.Network) error {
	kind, config, err := r.backendConfig(n)
	if err != nil {
		r.wait(checkNetwork, err.Error())
		<-ctx.Done()
		return ctx.Err()
	}
	if err := r.awaitPools(ctx, n); err != nil {
		return err
	}
	if err := r.retire(ctx, kind, config); err != nil {
		return err
	}
	if err := r.build(kind, config); err != nil {
		return err
	}
	place, err := r.awaitUnderlay(ctx, n)
	if err != nil {
		return err
	}
	r.check(checkNetwork, api.Passing, "defined")
	var claim registry.Claim
	lease, err := r.acquire(ctx, n, func() registry.Claim {
		// What was wrong with the last claim may be the address in it.
		if now, err := r.locate(n); err == nil {
			place = now
			r.showPlace(n, place)
		}
		claim = r.makeClaim(place)
		return claim
	})
	if err != nil {
		return err
	}
	r.claim.set(claim)
	r.lease.set(lease)

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.keep(ctx, n, lease, claim) })
	g.Go(func() error { return r.watchLeases(ctx, n) })
	g.Go(func() error { return r.reconcile(ctx, n, place) })
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
	return kind, backend.Config{
		Network: n.Name, Link: backend.LinkName(n.Name), NodeID: r.env.id.nodeID,
		DataDir: filepath.Join(r.config.DataDir, n.Name), Pools: n.Plan.Prefixes(), Options: options,
		Logger: r.log.Named(kind.Name),
	}, nil
}

// build makes the backend, or keeps the one of the last round when it was
// built from the same.
func (r *runner) build(kind backend.Type, c backend.Config) error {
	if r.carrier != nil && r.carrier.same(kind, c) {
		return nil
	}
	r.close()
	b, err := kind.New(c)
	if err != nil {
		return fmt.Errorf("backend %q: %w", kind.Name, err)
	}
	r.carrier = &carrier{backend: b, kind: kind.Name, config: c}
	counter, _ := b.(backend.Counter)
	r.show(func(v *view) { v.counter = counter })
	return nil
}

func (c *carrier) same(kind backend.Type, o backend.Config) bool {
	return c.kind == kind.Name && string(c.config.Options) == string(o.Options) && samePools(c.config, o)
}

func samePools(a, b backend.Config) bool { return fmt.Sprint(a.Pools) == fmt.Sprint(b.Pools) }

// retire takes the datapath of another backend or plan away, left by the last
// round or by an earlier process, before the new one is built.
func (r *runner) retire(ctx context.Context, kind backend.Type, c backend.Config) error {
	if old := r.carrier; old != nil {
		if old.kind == kind.Name && samePools(old.config, c) {
			return nil
		}
		_, err := old.backend.Apply(ctx, backend.State{})
		return err
	}
	before, err := loadSaved(r.config.DataDir, r.local.Name)
	if err != nil || before.Backend.Type == "" {
		return nil // a broken state file is reported and put aside where the lease needs it
	}
	was, ok := r.env.backends[before.Backend.Type]
	if !ok {
		return nil
	}
	options, err := was.Normalize(before.Backend.Options())
	if err != nil {
		return nil
	}
	oldConfig := c
	oldConfig.Pools, oldConfig.Options = before.Pools, options
	if was.Name == kind.Name && samePools(oldConfig, c) {
		return nil
	}
	r.log.Info("removing the datapath of the earlier definition", "backend", was.Name)
	b, err := was.New(oldConfig)
	if err != nil {
		return err
	}
	_, err = b.Apply(ctx, backend.State{})
	return errors.Join(err, b.Close())
}

// tearDown takes everything of the network away from this host: datapath,
// rules, files, lease. It goes on past failures and logs them. ctx may have
// ended; its values are kept.
func (r *runner) tearDown(ctx context.Context, reg registry.Registry) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	var errs []error
	if lease, ok, _ := r.lease.get(); ok && reg != nil {
		errs = append(errs, reg.Release(ctx, lease))
	}
	if r.carrier != nil {
		_, err := r.carrier.backend.Apply(ctx, backend.State{})
		errs = append(errs, err)
	}
	r.close()
	errs = append(errs, r.env.firewall.drop(ctx, r.local.Name))
	for _, path := range []string{r.local.SubnetFile, savedPath(r.config.DataDir, r.local.Name)} {
		if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	r.env.pools.give(r.local.Name)
	r.env.health.reset(r.local.Name)
	r.lease.clear()
	r.snapshot.clear()
	r.show(func(v *view) {
		v.local.Subnets, v.local.Peers, v.report = nil, 0, backend.Report{}
	})
	if err := errors.Join(errs...); err != nil {
		r.log.Error("leaving the network was not complete", "error", err)
	}
}

// released gives the lease up as the request asks, and says whether that
// worked; the requester is told either way.
func (r *runner) released(ctx context.Context, request *releaseRequest) bool {
	lease, ok, _ := r.lease.get()
	if !ok {
		request.done <- registry.ErrLeaseNotFound
		return false
	}
	err := r.env.registry.As(request.token).Release(ctx, lease)
	if err == nil {
		r.log.Warn("lease was released by request, the network stays down until a restart or reload", "subnet", lease.Subnet())
		r.tearDown(ctx, nil)
		r.check(checkLease, api.Warning, stateReleased)
		r.state(stateReleased)
	}
	request.done <- err
	return err == nil
}

// close ends the backend; its datapath in the kernel stays.
func (r *runner) close() {
	if r.carrier == nil {
		return
	}
	if err := r.carrier.backend.Close(); err != nil {
		r.log.Error("closing the backend", "backend", r.carrier.kind, "error", err)
	}
	r.carrier = nil
}

// check writes one check of this network.
func (r *runner) check(name, status, reason string) {
	r.env.health.set(r.local.Name, name, status, reason)
}

// show changes what the API shows.
func (r *runner) show(change func(*view)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.view)
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
