package network

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
)

// restore writes n to a store that has lost it, or its last change.
func (d *definitionKeeper) restore(ctx context.Context, n registry.Network) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	have, err := d.deps.Store.Registry.Network(ctx, n.Name)
	_, verdict, err := judge(d.known, have, err, d.deps.Datapaths.Backends)
	switch verdict {
	case belief.Lost:
	case belief.InForce, belief.Declined, belief.Ended:
		return nil // another host has restored it, or it was defined differently or deleted in the meantime
	default:
		return err
	}
	n = n.Restoring(d.leases.count())
	n.ModifyIndex = have.ModifyIndex
	if deleted, ok := errors.AsType[*registry.DeletedError](err); ok {
		n.ModifyIndex = deleted.ModifyIndex
	} else if err != nil {
		n.ModifyIndex = registry.Absent // a record that is written from now on may be a deletion
	}
	switch err := d.deps.Store.Registry.PutNetwork(ctx, n); {
	case errors.Is(err, registry.ErrConflict): // another host was first, or an operator has deleted the network
		return nil
	case err != nil:
		return err
	}
	d.report.Log().Warn("the store had lost the network or its last change, restored it")
	d.report.Event(api.EventStore, api.Warning, "the store had lost the network's definition, restored it", nil)
	return nil
}

// countLeases returns how many leases the network has, this host's included, 0 if they were not read. Those that the
// store has lost count while they stay in use.
func countLeases(f *peers.Follower) int {
	if v, isPublished, _ := f.Views().Get(); isPublished {
		return 1 + len(v.Peers())
	}
	snap, isKnown := f.Snapshot()
	if !isKnown || snap.Read.IsZero() {
		return 0
	}
	return len(snap.Set.Leases)
}

// markSetBack writes n, which the store has, as restored, after the store was set back. Hosts that start now see in no
// other way that the store may lack leases, and wait for their hosts. One host does so for all. again means that the
// definition was changed at the same time, so it must be tried again.
func (d *definitionKeeper) markSetBack(ctx context.Context, n registry.Network) (again bool) {
	if n.Foreign || time.Since(d.loss.seen) < d.config.Lease.TTL {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	marked := n.Restoring(d.leases.count())
	marked.ModifyIndex = n.ModifyIndex
	if err := d.deps.Store.Registry.PutNetwork(ctx, marked); err != nil {
		d.report.Log().Debug("could not write that the store was set back, another host may have", "error", err)
		return errors.Is(err, registry.ErrConflict)
	}
	d.report.Log().Warn("the store was set back: new hosts wait until the others have claimed again")
	return false
}

// lastLoss is what this process knows of the last time that the store lost leases, by what the definition says.
type lastLoss struct {
	restored time.Time // Restored of the definition that was last read
	seen     time.Time // when this process saw that leases are lacking, zero for never
	settled  time.Time // when this host assumes that they are there again
}

// isNew reports whether n, which the store has, says of another loss than the definition that was read before.
func (l *lastLoss) isNew(n registry.Network, lease config.Lease) bool {
	if n.Restored.Equal(l.restored) {
		return false
	}
	l.restored = n.Restored
	if n.RestoredLeases == 0 {
		return false
	}
	l.seen = time.Now()
	l.postpone(lease)
	return true
}

// postpone gives hosts the time from now on to claim their leases again. It ends at another time on each host.
func (l *lastLoss) postpone(lease config.Lease) {
	settle := peers.SettleTime(lease)
	l.settled = time.Now().Add(settle + rand.N(settle))
}

// settle writes that new hosts need not wait for others any more, when all hosts have had the time to claim their
// leases again since this one saw the loss. One host does so for all. settle returns when to call it again, nil for
// never.
func (d *definitionKeeper) settle(ctx context.Context, n registry.Network) <-chan time.Time {
	if n.RestoredLeases == 0 {
		return nil
	}
	if !time.Now().Before(d.loss.settled) {
		d.loss.postpone(d.config.Lease) // if this does not succeed
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		n.RestoredLeases = 0
		if err := d.deps.Store.Registry.PutNetwork(ctx, n); err != nil {
			d.report.Log().Debug("could not write that lost leases are there again, another host may have", "error", err)
		}
	}
	return time.After(time.Until(d.loss.settled))
}

// restoreAfter returns how long to wait before a lost definition is restored. Hosts that use it come before those that
// only remember it, because the latter may have missed a change, and before new hosts, which define the network from
// their configuration: the more hosts use it, the sooner one of them restores it. A host whose own block defines the
// same network waits no longer than they do.
func (d *definitionKeeper) restoreAfter() time.Duration {
	p := d.deps.Store.Outage.Policy
	if own, err := definition.FromBlock(d.local); d.known.Confirmed || err == nil &&
		len(definition.DifferencesOfBlock(own, d.known.Network, d.deps.Datapaths.Backends)) == 0 {
		return rand.N(p.RestoreInUse)
	}
	return p.RestoreRemembered + rand.N(p.RestoreRemembered)
}

// rememberedDefinition returns the definition that an earlier process wrote down, or nil if there is none. c is the
// configuration of this process.
func rememberedDefinition(c config.Config, network string) *belief.Definition {
	before, err := state.Load(c.DataDir, network)
	if err != nil || len(before.Record) == 0 {
		return nil
	}
	n, err := registry.ParseNetwork(network, before.Record)
	if err != nil {
		return nil
	}
	n.CreateIndex, n.ModifyIndex = before.Definition, before.RecordIndex
	return &belief.Definition{Network: n, Used: before.Renewed, OtherLocation: ifOther(c, before.Store)}
}

// otherLocation returns where this host knew a network or its deletion from, if c names another location now. It
// returns "" if c names the same one, one of the two is not known, or this process has read either from the store.
func otherLocation(c config.Config, known *belief.Definition, deletion *state.Deletion) string {
	switch {
	case known != nil:
		return known.OtherLocation
	case deletion != nil:
		return ifOther(c, deletion.Store)
	}
	return ""
}

// ifOther returns the saved location, and "" if it is the one in c, or one of the two is not known.
func ifOther(c config.Config, saved string) string {
	if here := c.StoreLocation(); here == saved || here == "" {
		return ""
	}
	return saved
}
