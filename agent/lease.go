package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// callTimeout bounds one short call to the store: without a leader it answers
// after up to 12 s.
const callTimeout = 15 * time.Second

// awaitDefinition blocks until the network is defined in the store, and puts
// this host's own definition there when nobody has.
func (r *runner) awaitDefinition(ctx context.Context) (registry.Network, error) {
	retry := newPause()
	for {
		n, err := r.definition(ctx)
		if err == nil {
			r.deleted = false
			r.show(func(v *view) { v.definition, v.defined, v.local.Differs = n, true, r.differs(n) })
			if differs := r.differs(n); len(differs) > 0 {
				r.log.Warn("the network's definition in the store wins over the configuration", "differs", strings.Join(differs, "; "))
			}
			return n, nil
		}
		if ctx.Err() != nil {
			return registry.Network{}, ctx.Err()
		}
		reason := fmt.Sprintf("waiting for the store: %v", err)
		switch {
		case errors.Is(err, registry.ErrNetworkNotFound):
			reason = "waiting for the network to be defined: use `leno network apply` or give its block a prefix"
		case errors.Is(err, registry.ErrInvalid):
			reason = fmt.Sprintf("the network's definition cannot be used: %v", err)
		case errors.Is(err, registry.ErrDenied):
			reason = fmt.Sprintf("waiting for rights: %v", err)
		}
		r.wait(checkNetwork, reason)
		if err := retry.wait(ctx); err != nil {
			return registry.Network{}, err
		}
	}
}

func (r *runner) definition(ctx context.Context) (registry.Network, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	n, err := r.env.registry.Network(ctx, r.local.Name)
	if !errors.Is(err, registry.ErrNetworkNotFound) || len(r.local.Pools) == 0 || r.deleted {
		return n, err
	}
	n, err = Definition(r.local)
	if err != nil {
		return n, err
	}
	switch err := r.env.registry.PutNetwork(ctx, n); {
	case err == nil:
		r.log.Info("network defined", "pools", n.Plan.Prefixes(), "backend", n.Backend.Type)
	case !errors.Is(err, registry.ErrNetworkExists): // another host was first
		return n, fmt.Errorf("define the network: %w", err)
	}
	return r.env.registry.Network(ctx, r.local.Name)
}

// Definition is the network a configuration block defines. The block has
// pools and a backend, and its options are effective.
func Definition(local config.Network) (registry.Network, error) {
	n := registry.Network{Name: local.Name}
	for _, p := range local.Pools {
		n.Plan = append(n.Plan, registry.Pool(p))
	}
	var err error
	if n.Plan, err = n.Plan.Normalize(); err != nil {
		return n, err
	}
	if local.Backend == nil {
		return n, fmt.Errorf("network %s: %w: no backend", local.Name, registry.ErrInvalid)
	}
	n.Backend, err = registry.NewBackend(local.Backend.Type, local.Backend.Options)
	return n, err
}

// differs says where the block of this host and the store disagree.
func (r *runner) differs(n registry.Network) []string {
	if len(r.local.Pools) == 0 {
		return nil
	}
	own, err := Definition(r.local)
	if err != nil {
		return []string{err.Error()}
	}
	return Differences(own, n)
}

// Differences lists what want has otherwise than have, in words.
func Differences(want, have registry.Network) []string {
	var out []string
	for i := range max(len(want.Plan), len(have.Plan)) {
		switch {
		case i >= len(have.Plan):
			out = append(out, fmt.Sprintf("pool %s is not in the store", want.Plan[i].Prefix))
		case i >= len(want.Plan):
			out = append(out, fmt.Sprintf("pool %s is only in the store", have.Plan[i].Prefix))
		case want.Plan[i] != have.Plan[i]:
			w, h := want.Plan[i], have.Plan[i]
			out = append(out, fmt.Sprintf("pool %s/%d %s-%s is %s/%d %s-%s in the store",
				w.Prefix, w.SubnetLen, w.Min, w.Max, h.Prefix, h.SubnetLen, h.Min, h.Max))
		}
	}
	if !want.Backend.Equal(have.Backend) {
		out = append(out, fmt.Sprintf("backend %s is %s in the store", want.Backend.Object, have.Backend.Object))
	}
	return out
}

// acquire blocks until this host holds a lease of n.
func (r *runner) acquire(ctx context.Context, n registry.Network, claim registry.Claim) (registry.Lease, error) {
	retry := newPause()
	for {
		lease, err := r.acquireOnce(ctx, n, claim)
		if err == nil {
			r.check(checkLease, api.Passing, fmt.Sprintf("%s is held", lease.Subnet()))
			r.check(checkConflict, api.Passing, "nobody else uses this host's name or addresses")
			r.show(func(v *view) { v.local.Subnets, v.local.Renewed = lease.Subnets, time.Now() })
			return lease, nil
		}
		if ctx.Err() != nil {
			return registry.Lease{}, ctx.Err()
		}
		reason := fmt.Sprintf("waiting for a lease: %v", err)
		if errors.Is(err, registry.ErrDuplicateNode) || errors.Is(err, registry.ErrDuplicateAddress) {
			r.check(checkConflict, api.Critical, err.Error())
		}
		r.wait(checkLease, reason)
		if err := retry.wait(ctx); err != nil {
			return registry.Lease{}, err
		}
	}
}

func (r *runner) acquireOnce(ctx context.Context, n registry.Network, claim registry.Claim) (registry.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return r.env.registry.Acquire(ctx, n, claim)
}

// keep holds the lease: renews it, watches its record, rewrites it when the
// host's attributes change, and takes it back whenever it is lost. Packets are
// not its business: whatever happens here, the datapath stays.
func (r *runner) keep(ctx context.Context, n registry.Network, lease registry.Lease) error {
	for {
		claim, _, claimChanged := r.claim.get()
		reason, err := r.hold(ctx, n, lease, claimChanged)
		if err != nil {
			return err
		}
		claim, _, _ = r.claim.get()
		claim.Session, claim.Prefer = lease.Session, lease.Subnet()
		if reason != "" {
			r.log.Warn("lease was lost, taking it back", "subnet", lease.Subnet(), "reason", reason)
			r.check(checkLease, api.Warning, fmt.Sprintf("%s was lost (%s), taking it back", lease.Subnet(), reason))
			r.reassert(ctx, n)
		}
		next, err := r.acquire(ctx, n, claim)
		if err != nil {
			return err
		}
		if next.Slot != lease.Slot {
			if r.config.Lease.OnLost == config.OnLostExit {
				return &LostError{Network: n.Name, Old: lease.Subnet().String(), New: next.Subnet().String()}
			}
			r.log.Error("this host has another subnet now, its containers must be restarted",
				"subnet", next.Subnet(), "before", lease.Subnet())
		}
		lease = next
		r.lease.set(lease)
	}
}

// reassert puts the network's definition back into a store that was emptied
// under this host, when this host's configuration defines it. A network that
// was deleted on purpose leaves its leases in place, and so never comes here.
func (r *runner) reassert(ctx context.Context, n registry.Network) {
	if len(r.local.Pools) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := r.env.registry.Network(ctx, n.Name); !errors.Is(err, registry.ErrNetworkNotFound) {
		return
	}
	n.CreateIndex, n.ModifyIndex = 0, 0
	if err := r.env.registry.PutNetwork(ctx, n); err != nil && !errors.Is(err, registry.ErrNetworkExists) {
		r.log.Warn("network could not be put back into the store", "error", err)
		return
	}
	r.log.Warn("the store had lost the network, put back")
}

// hold blocks while the lease is ours. It returns why it is not any more, or ""
// when the claim changed and the record must follow.
func (r *runner) hold(ctx context.Context, n registry.Network, lease registry.Lease, claimChanged <-chan struct{}) (reason string, err error) {
	g, ctx := errgroup.WithContext(ctx)
	ended := errors.New("held no longer")
	g.Go(func() error {
		why, err := r.watchOwn(ctx, n, lease)
		if err == nil {
			reason, err = why, ended
		}
		return err
	})
	lost := make(chan string, 1)
	g.Go(func() error {
		why, err := r.renew(ctx, lease, claimChanged)
		if err == nil {
			lost <- why
			err = ended
		}
		return err
	})
	if err := g.Wait(); !errors.Is(err, ended) {
		return "", err
	}
	select {
	case why := <-lost:
		if reason == "" {
			reason = why
		}
	default:
	}
	return reason, nil
}

// renew keeps the session alive. It returns when the session is gone, or with
// "" when the claim changed.
func (r *runner) renew(ctx context.Context, lease registry.Lease, claimChanged <-chan struct{}) (string, error) {
	period := r.config.Lease.TTL - r.config.Lease.RenewMargin
	last, due := time.Now(), period
	retry := newPause()
	for {
		timer := time.NewTimer(due)
		select {
		case <-ctx.Done():
			timer.Stop()
			return "", ctx.Err()
		case <-claimChanged:
			timer.Stop()
			return "", nil
		case <-timer.C:
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := r.env.registry.Renew(call, lease)
		cancel()
		switch {
		case err == nil:
			last, due = time.Now(), period
			retry.reset()
			r.check(checkLease, api.Passing, fmt.Sprintf("%s is held", lease.Subnet()))
			r.show(func(v *view) { v.local.Renewed = last })
		case errors.Is(err, registry.ErrLeaseLost):
			return err.Error(), nil
		case ctx.Err() != nil:
			return "", ctx.Err()
		default:
			due = retry.next()
			if r.env.health.set(r.local.Name, checkLease, api.Warning,
				fmt.Sprintf("%s not renewed since %s, packets flow: %v", lease.Subnet(), last.UTC().Format(time.RFC3339), err)) {
				r.log.Warn("lease could not be renewed, trying again", "subnet", lease.Subnet(), "error", err)
			}
		}
	}
}

// watchOwn watches our record and returns why it is not ours any more.
func (r *runner) watchOwn(ctx context.Context, n registry.Network, lease registry.Lease) (string, error) {
	retry := newPause()
	var index uint64
	for {
		now, next, err := r.env.registry.WatchLease(ctx, n, lease.Subnet(), index)
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case errors.Is(err, registry.ErrLeaseNotFound):
			return "its record is gone", nil
		case errors.Is(err, registry.ErrInvalid):
			return fmt.Sprintf("its record was overwritten: %v", err), nil
		case err != nil:
			if err := retry.wait(ctx); err != nil {
				return "", err
			}
			continue
		case now.Session == "":
			return "its session ended", nil
		case now.Session != lease.Session:
			return fmt.Sprintf("host %q holds it", now.Node), nil
		case !now.SameValue(lease):
			return "its record was changed by somebody else", nil
		}
		index = next
		retry.reset()
	}
}

// watchLeases keeps the snapshot of all leases. An answer that is not certain
// leaves it as it is.
func (r *runner) watchLeases(ctx context.Context, n registry.Network) error {
	retry := newPause()
	var index uint64
	for {
		set, next, err := r.env.registry.WatchLeases(ctx, n, index)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			last := "never"
			if s, ok, _ := r.snapshot.get(); ok {
				last = s.read.UTC().Format(time.RFC3339)
			}
			if r.env.health.set(r.local.Name, checkSnapshot, api.Warning,
				fmt.Sprintf("leases last read %s, peers keep their routes: %v", last, err)) {
				r.log.Warn("leases could not be read, peers keep their routes", "error", err)
			}
			index = 0 // the answer after an outage must not wait for a change
			if err := retry.wait(ctx); err != nil {
				return err
			}
			continue
		}
		retry.reset()
		index = next
		r.snapshot.set(snapshot{set: set, index: next, read: time.Now()})
		r.check(checkSnapshot, api.Passing, "leases are followed")
		r.checkRecords(set.Bad)
	}
}

// checkRecords reports records that had to be skipped: in health always, in the
// log when they are new.
func (r *runner) checkRecords(bad []registry.BadRecord) {
	if len(bad) == 0 {
		r.check(checkRecords, api.Passing, "every record is usable")
		r.badLogged = nil
		return
	}
	logged := map[registry.BadRecord]bool{}
	for _, b := range bad {
		if !r.badLogged[b] {
			r.log.Warn("record skipped", "key", b.Key, "error", b.Reason)
		}
		logged[b] = true
	}
	r.badLogged = logged
	r.check(checkRecords, api.Warning, fmt.Sprintf("%d records skipped (see `leno lease list`), the first %s: %s", len(bad), bad[0].Key, bad[0].Reason))
}

// watchDefinition returns when the definition in the store is another one than
// n, or certainly gone.
func (r *runner) watchDefinition(ctx context.Context, n registry.Network) error {
	for {
		known, ok, changed := r.env.networks.get()
		if ok {
			now, found := known.find(n.Name)
			switch {
			case found && now.ModifyIndex != n.ModifyIndex && (len(Differences(now, n)) > 0):
				return errDefinitionChanged
			case !found && !known.bad(n.Name) && known.index > n.ModifyIndex:
				return errNetworkGone
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// awaitChange blocks until the definition changes or is gone.
func (r *runner) awaitChange(ctx context.Context, n registry.Network) error {
	return r.watchDefinition(ctx, n)
}

// previous is what this host held before, by its state file, else by its
// subnet file.
func (r *runner) previous() (session string, subnet netip.Prefix) {
	before, err := loadSaved(r.config.DataDir, r.local.Name)
	if err != nil {
		r.log.Warn("starting without the state file", "error", err)
	}
	if len(before.Subnets) > 0 {
		return before.Session, before.Subnets[0]
	}
	return before.Session, subnetInFile(r.local.SubnetFile)
}

// wait shows and logs, once for each reason, what the runner waits for.
func (r *runner) wait(check, reason string) {
	status := api.Critical
	if _, held, _ := r.lease.get(); held {
		status = api.Warning // packets flow
	}
	if r.shown().local.State != reason {
		r.log.Warn("network waits", "reason", reason)
	}
	r.state(reason)
	r.check(check, status, reason)
}
