package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// A network ends only when an operator deletes it, which leaves a registry.Deletion in the store. A definition that is
// missing without one was lost: the hosts that use it, or remember it, keep it in force and restore it.

// A knownDefinition is the definition of a network as this host last knew it.
type knownDefinition struct {
	network registry.Network
	used    time.Time // when it was last known to be in force
	// confirmed is true if this process has read the definition from the store, and therefore knows of every change
	// since. Otherwise an earlier process wrote it down.
	confirmed bool
	earlier   []uint64 // ModifyIndexes of previous versions, from the state file
}

// usable reports whether a host may keep the definition in force when the store has none. If it was last used so long
// ago that the record of a deletion may have been removed again, nothing shows what became of the network.
func (k *knownDefinition) usable() bool {
	return k != nil && (k.confirmed || time.Since(k.used) < registry.DeletionKept)
}

// restoreAfter returns how long to wait before a lost definition is restored. Hosts that use it come before those that
// only remember it, because the latter may have missed a change. A host whose own block defines the same network waits
// no longer than the former.
func (k *knownDefinition) restoreAfter(local config.Network, p retry.Policy) time.Duration {
	d := p.RestoreRemembered
	if own, err := definition.FromBlock(local); k.confirmed || err == nil && len(definition.Differences(own, k.network)) == 0 {
		d = p.RestoreInUse
	}
	return d + rand.N(d)
}

// supersedes reports whether n, the version in the store, is older than the known one: the store was set back to a
// state before the last change. In a new cluster in which a snapshot was restored, the record has the same CreateIndex
// as in the old cluster, and later versions get indexes that may be lower than those of the old one. What an earlier
// process wrote down may be from the old cluster. Unless the known definition is confirmed, n therefore counts as older
// only if this host has seen that version itself.
func (k *knownDefinition) supersedes(n registry.Network) bool {
	return k != nil && k.network.CreateIndex == n.CreateIndex && k.network.ModifyIndex > n.ModifyIndex &&
		(k.confirmed || slices.Contains(k.earlier, n.ModifyIndex)) && len(definition.Differences(k.network, n)) > 0
}

// rememberedDefinition returns the definition that an earlier process wrote down, or nil if there is none.
func rememberedDefinition(dataDir, network string) *knownDefinition {
	before, err := state.Load(dataDir, network)
	if err != nil || len(before.Record) == 0 {
		return nil
	}
	n, err := registry.ParseNetwork(network, before.Record)
	if err != nil {
		return nil
	}
	n.CreateIndex, n.ModifyIndex = before.Definition, before.RecordIndex
	return &knownDefinition{network: n, used: before.Renewed, earlier: before.Earlier}
}

// awaitDefinition blocks until this host knows the network's definition: from the store or, if the store has lost it,
// from its own memory. If there has never been a definition, it stores the one in this host's block.
func (r *runner) awaitDefinition(ctx context.Context) (registry.Network, error) {
	backoff := r.env.outage.NewLoop()
	for {
		_, _, networksChanged := r.env.networks.Get()
		n, err := r.definition(ctx)
		if ctx.Err() != nil {
			return registry.Network{}, ctx.Err()
		}
		r.report.Used(report.Definition, err)
		if err == nil || errors.Is(err, errNetworkGone) {
			return n, err
		}
		reason := fmt.Sprintf("waiting for the store: %v", err)
		deleted := &registry.DeletedError{}
		switch {
		case errors.As(err, &deleted) && report.Away(err):
			reason = fmt.Sprintf("%v; `leno network apply` defines the network again", err)
		case errors.As(err, &deleted):
			reason = fmt.Sprintf("the network was deleted at %s: `leno network apply` defines it again", deleted.Time.UTC().Format(time.RFC3339))
		case errors.Is(err, registry.ErrNetworkNotFound):
			reason = "waiting for the network to be defined: use `leno network apply` or give its block a prefix"
		case errors.Is(err, definition.ErrNotDefinable), errors.Is(err, errDefinitionLost):
			reason = err.Error()
		case errors.Is(err, registry.ErrInvalid):
			reason = fmt.Sprintf("the network's definition cannot be used: %v", err)
		case errors.Is(err, registry.ErrToken):
			reason = fmt.Sprintf("waiting for a token: %v", err)
		case errors.Is(err, registry.ErrDenied):
			reason = fmt.Sprintf("waiting for rights: %v", err)
		}
		r.report.Wait(health.Network, reason)
		if err := backoff.Wait(ctx, err, networksChanged); err != nil {
			return registry.Network{}, err
		}
	}
}

// definition returns the definition in force. It returns errNetworkGone if the network was deleted and this host still
// takes part in it.
func (r *runner) definition(ctx context.Context) (registry.Network, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	asked := time.Now()
	n, err := r.env.registry.Network(ctx, r.local.Name)
	deleted := &registry.DeletedError{}
	if errors.Is(err, registry.ErrNetworkNotFound) && !errors.As(err, &deleted) {
		if lost := r.lostDeletion(); lost != nil {
			n, err = r.restoreDeletion(ctx, lost)
		}
	}
	switch {
	case errors.As(err, &deleted):
		if r.known == nil {
			r.rememberDeletion(deleted.Deletion)
			r.abandon()
			return n, err
		}
		if deleted.Ends(r.known.network, r.known.used) {
			r.rememberDeletion(deleted.Deletion)
			return n, errNetworkGone
		}
		n, err = r.known.network, nil
	case errors.Is(err, registry.ErrNetworkNotFound) && r.known.usable():
		r.noteLoss()
		n, err = r.known.network, nil
	case errors.Is(err, registry.ErrInvalid) && r.known.usable():
		n, err = r.known.network, nil
	case errors.Is(err, registry.ErrNetworkNotFound) && len(r.local.Pools) > 0:
		if n, err = r.define(ctx); err == nil {
			r.confirm(n, asked)
		}
	case err == nil && r.known.supersedes(n):
		n = r.known.network
	case err == nil:
		r.confirm(n, asked)
	}
	if err != nil {
		return n, err
	}
	differs := r.differs(n)
	r.show(func(v *view) { v.definition, v.defined, v.local.Differs = n, true, differs })
	r.left.Store(false) // last: see abandon
	if len(differs) > 0 {
		r.log.Warn("the network's definition in the store wins over the configuration", "differs", strings.Join(differs, "; "))
	}
	return n, nil
}

// abandon makes the agent end this runner if the network has no block.
func (r *runner) abandon() {
	r.left.Store(true)
	r.env.left.Set(struct{}{})
}

// confirm records that the store has the definition. asked is when the store was asked for it: since then, this process
// may have been suspended and the network deleted.
func (r *runner) confirm(n registry.Network, asked time.Time) {
	r.known = &knownDefinition{network: n, used: asked, confirmed: true}
	r.forgetDeletion()
}

// definedElsewhere returns an errDefinitionLost if other hosts have sessions for the network. They know its definition,
// which may differ from this host's block, and restore it. This host does not wait for hosts that cannot do so once
// their sessions would have ended.
func (r *runner) definedElsewhere(ctx context.Context) error {
	holders, err := r.env.registry.Holders(ctx, r.local.Name)
	if err != nil {
		return err
	}
	var nodes []string
	for _, h := range holders {
		if h.Node != r.env.id.Node && !slices.Contains(nodes, h.Node) {
			nodes = append(nodes, h.Node)
		}
	}
	switch {
	case len(nodes) == 0:
		r.missing = time.Time{}
		return nil
	case r.missing.IsZero():
		r.missing = time.Now()
	case time.Since(r.missing) > settleTime(r.config.Lease):
		return nil
	}
	r.noteLoss()
	return fmt.Errorf("%w: waiting for %s to put it back", errDefinitionLost, definition.FirstFew(nodes))
}

// noteLoss records that the store has lost the network's definition or its last change, and probably leases with it.
func (r *runner) noteLoss() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lossSeen = time.Now()
}

// lastLoss returns when noteLoss was last called, or the zero time for never.
func (r *runner) lastLoss() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lossSeen
}

// define stores the definition in this host's block, unless a network in the store conflicts with it, or other hosts
// take part in this network and know its definition.
func (r *runner) define(ctx context.Context) (registry.Network, error) {
	n, err := definition.FromBlock(r.local)
	if err != nil {
		return n, err
	}
	if err := r.definedElsewhere(ctx); err != nil {
		return n, err
	}
	set, _, err := r.env.registry.WatchNetworks(ctx, 0)
	if err != nil {
		return n, fmt.Errorf("read the other networks: %w", err)
	}
	if err := definition.CheckBlock(n, set.Networks, r.env.backends); err != nil {
		return n, err
	}
	n.ModifyIndex = registry.Absent
	switch err := r.env.registry.PutNetwork(ctx, n); {
	case err == nil:
		r.log.Info("network defined", "pools", n.Plan.Prefixes(), "backend", n.Backend.Type)
	case !errors.Is(err, registry.ErrConflict): // another host was first, or an operator has deleted the network
		return n, fmt.Errorf("define the network: %w", err)
	}
	return r.env.registry.Network(ctx, r.local.Name)
}

// differs returns where the block of this host differs from the definition n. A block without pools does not differ.
func (r *runner) differs(n registry.Network) []string {
	if len(r.local.Pools) == 0 {
		return nil
	}
	own, err := definition.FromBlock(r.local)
	if err != nil {
		return []string{err.Error()}
	}
	return definition.Differences(own, n)
}

// watchDefinition keeps the definition n in force until the store has another one or the network was deleted, and
// returns which of the two as an error. It restores a definition that the store has lost. A record that cannot be used
// changes nothing.
func (r *runner) watchDefinition(ctx context.Context, n registry.Network) error {
	backoff := r.env.outage.NewLoop()
	var restore time.Time // when to restore a lost definition, zero while it is not lost
	troubled := false     // the check reports a problem
	for {
		known, read, changed := r.env.networks.Get()
		verdict := definitionInForce
		// The set of all networks may have been read at another time, so the store is asked for this one.
		if now, found := known.set.Find(n.Name); read && (!found || now.ModifyIndex != n.ModifyIndex || now.CreateIndex != n.CreateIndex) {
			var err error
			verdict, err = r.compareDefinition(ctx, &n)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(err, errDefinitionChanged), errors.Is(err, errNetworkGone):
				return err
			case err != nil:
				if err := backoff.Wait(ctx, err, changed); err != nil {
					return err
				}
				continue
			}
		}
		if verdict == definitionLost {
			r.noteLoss()
		}
		var due <-chan time.Time
		switch {
		case verdict == definitionInForce:
			if troubled {
				r.report.Check(health.Network, api.Passing, r.definedReason())
			}
			restore, troubled = time.Time{}, false
		case verdict == definitionUnreadable:
			troubled = true
		case restore.IsZero():
			restore, troubled = time.Now().Add(r.known.restoreAfter(r.local, r.env.outage.Policy)), true
			r.log.Warn("the store has lost the network's definition, packets keep flowing")
			r.report.Check(health.Network, api.Warning, "the store has lost the network's definition, which stays in force; putting it back")
			due = time.After(time.Until(restore))
		case time.Now().Before(restore):
			due = time.After(time.Until(restore))
		default:
			if err := r.restoreDefinition(ctx, n); err != nil {
				r.report.Check(health.Network, api.Warning, fmt.Sprintf("the store has lost the network's definition, which stays in force, "+
					"and this agent cannot put it back: %v; `leno network apply` puts it back", err))
				if err := backoff.Wait(ctx, err, changed); err != nil {
					return err
				}
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-due:
		}
	}
}

// A definitionVerdict says how the store's record relates to the definition in force.
type definitionVerdict int

const (
	definitionInForce    definitionVerdict = iota // the store has it
	definitionLost                                // the store has none, an older one, or an older deletion
	definitionUnreadable                          // the store has a record that cannot be used
)

// compareDefinition reads the definition from the store and compares it with n, the one in force. A version with the
// same content replaces n. The error is errDefinitionChanged, errNetworkGone, or the store's.
func (r *runner) compareDefinition(ctx context.Context, n *registry.Network) (definitionVerdict, error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	asked := time.Now()
	now, err := r.env.registry.Network(call, n.Name)
	deleted := &registry.DeletedError{}
	switch {
	case errors.As(err, &deleted):
		if deleted.Ends(*n, r.known.used) {
			r.rememberDeletion(deleted.Deletion)
			return 0, errNetworkGone
		}
		return definitionLost, nil
	case errors.Is(err, registry.ErrNetworkNotFound), err == nil && r.known.supersedes(now):
		return definitionLost, nil
	case errors.Is(err, registry.ErrInvalid):
		r.report.Check(health.Network, api.Warning, "the definition in the store cannot be used, the one before stays in force: "+registry.Shorten(strings.TrimPrefix(err.Error(), "network "+n.Name+": "), registry.MaxShownReason))
		return definitionUnreadable, nil
	case err != nil:
		return 0, err
	case len(definition.Differences(now, *n)) > 0:
		return 0, errDefinitionChanged
	}
	*n = now
	r.confirm(now, asked)
	r.show(func(v *view) {
		if v.local.ModifyIndex == v.definition.ModifyIndex { // the datapath was built from the previous version
			v.local.ModifyIndex = now.ModifyIndex
		}
		v.definition, v.local.Differs = now, r.differs(now)
	})
	return definitionInForce, nil
}

// restoreDefinition writes n to a store that has lost it, or its last change.
func (r *runner) restoreDefinition(ctx context.Context, n registry.Network) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	have, err := r.env.registry.Network(ctx, n.Name)
	deleted := &registry.DeletedError{}
	version := have.ModifyIndex
	switch {
	case errors.As(err, &deleted) && deleted.Ends(n, r.known.used):
		return nil // it was deleted in the meantime
	case errors.As(err, &deleted):
		version = deleted.ModifyIndex
	case errors.Is(err, registry.ErrNetworkNotFound):
		version = registry.Absent // a record that is written from now on may be a deletion
	case err != nil:
		return err
	case !r.known.supersedes(have):
		return nil // another host has restored it, or it was defined differently
	}
	n.CreateIndex, n.ModifyIndex = 0, version
	switch err := r.env.registry.PutNetwork(ctx, n); {
	case errors.Is(err, registry.ErrConflict): // another host was first, or an operator has deleted the network
		return nil
	case err != nil:
		return err
	}
	r.log.Warn("the store had lost the network or its last change, put back")
	r.report.Event(api.EventStore, api.Warning, "the store had lost the network's definition, put back", nil)
	return nil
}

// inForce returns n with the indexes that it has in the store now.
func (r *runner) inForce(n registry.Network) registry.Network {
	if now := r.shown().definition; now.Name == n.Name && len(definition.Differences(now, n)) == 0 {
		return now
	}
	return n
}
