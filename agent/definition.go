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
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// A network ends only when someone deletes it, which leaves a registry.Deletion in
// the store. A definition that is missing in any other way was lost: the hosts that
// have it in use, or remember it, go on with it and put it back.

// knownDefinition is the definition of a network as this host knew it last.
type knownDefinition struct {
	network registry.Network
	used    time.Time // when it was last known to be in force
	// confirmed says that the store had it in this process, which therefore knows of
	// every change since. Otherwise an earlier process wrote it down.
	confirmed bool
	earlier   []uint64 // ModifyIndexes of versions before it that the state file tells of
}

// usable reports whether a host may go on with the definition when the store has none.
// When it was used last so long ago that the record of a deletion may be gone again,
// nothing tells what became of the network.
func (k *knownDefinition) usable() bool {
	return k != nil && (k.confirmed || time.Since(k.used) < registry.DeletionKept)
}

// restoreAfter returns how long to wait before a lost definition is put back. Hosts
// that have it in use come before those that only remember it, since there may have
// been a change that these do not know of. A host whose own block says the same need
// not wait.
func (k *knownDefinition) restoreAfter(local config.Network, p retry.Policy) time.Duration {
	d := p.RestoreRemembered
	if own, err := definition.FromBlock(local); k.confirmed || err == nil && len(definition.Differences(own, k.network)) == 0 {
		d = p.RestoreInUse
	}
	return d + rand.N(d)
}

// supersedes reports whether the store shows an older version than the one known: it
// was set back to before the last change. A new cluster in which a snapshot was restored
// has the CreateIndex of the one before, and gives later versions indexes that may be lower
// than those of the one before. What an earlier process wrote down may be of that
// one, so there only a version counts as older that this host has seen itself.
func (k *knownDefinition) supersedes(n registry.Network) bool {
	return k != nil && k.network.CreateIndex == n.CreateIndex && k.network.ModifyIndex > n.ModifyIndex &&
		(k.confirmed || slices.Contains(k.earlier, n.ModifyIndex)) && len(definition.Differences(k.network, n)) > 0
}

// rememberedDefinition returns what an earlier process wrote down, nil when there is
// nothing.
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

// awaitDefinition blocks until this host knows the network's definition: by the
// store, or by its own memory when the store has lost it. It puts the definition
// of this host's block there when there has never been one.
func (r *runner) awaitDefinition(ctx context.Context) (registry.Network, error) {
	backoff := r.env.outage.NewLoop()
	for {
		_, _, networksChanged := r.env.networks.Get()
		n, err := r.definition(ctx)
		if ctx.Err() != nil {
			return registry.Network{}, ctx.Err()
		}
		r.used(useDefinition, err)
		if err == nil || errors.Is(err, errNetworkGone) {
			return n, err
		}
		reason := fmt.Sprintf("waiting for the store: %v", err)
		deleted := &registry.DeletedError{}
		switch {
		case errors.As(err, &deleted) && away(err):
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
		r.wait(health.Network, reason)
		if err := backoff.Wait(ctx, err, networksChanged); err != nil {
			return registry.Network{}, err
		}
	}
}

// definition returns the definition that is in force. errNetworkGone says that the
// network was deleted, and that this host still has a part in it.
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

// abandon has the agent end this runner when the network has no block.
func (r *runner) abandon() {
	r.left.Store(true)
	r.env.left.Set(struct{}{})
}

// confirm notes that the store has the definition. asked is when the store was asked for it: this process may have been
// stopped since, and the network deleted.
func (r *runner) confirm(n registry.Network, asked time.Time) {
	r.known = &knownDefinition{network: n, used: asked, confirmed: true}
	r.forgetDeletion()
}

// definedElsewhere returns an errDefinitionLost when other hosts have sessions for the
// network: they know its definition, which may be another than this host's block, and
// put it back. Hosts that cannot do so are not waited for beyond the end of sessions.
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

// noteLoss notes that the store has lost the network's definition or its last change, and
// probably leases with it.
func (r *runner) noteLoss() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lossSeen = time.Now()
}

// lastLoss is when the loss was seen last, zero for never.
func (r *runner) lastLoss() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lossSeen
}

// define puts the definition of this host's block into the store, unless a network
// that is there is in its way, or hosts that take part in this one know better.
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
	case !errors.Is(err, registry.ErrConflict): // another host was first, or someone has deleted it
		return n, fmt.Errorf("define the network: %w", err)
	}
	return r.env.registry.Network(ctx, r.local.Name)
}

// differs says where the block of this host and the store disagree.
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

// watchDefinition keeps the definition n in force until the store has another one, or
// the network was deleted, which it returns as an error. It puts a definition back
// that the store has lost. One that cannot be used changes nothing.
func (r *runner) watchDefinition(ctx context.Context, n registry.Network) error {
	backoff := r.env.outage.NewLoop()
	var restore time.Time // when a lost definition is to be put back, zero while it is not lost
	troubled := false     // the check says so
	for {
		known, read, changed := r.env.networks.Get()
		verdict := definitionInForce
		// What was read of all networks may be of another moment, so the store is asked.
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
				r.check(health.Network, api.Passing, r.definedReason())
			}
			restore, troubled = time.Time{}, false
		case verdict == definitionUnreadable:
			troubled = true
		case restore.IsZero():
			restore, troubled = time.Now().Add(r.known.restoreAfter(r.local, r.env.outage.Policy)), true
			r.log.Warn("the store has lost the network's definition, packets keep flowing")
			r.check(health.Network, api.Warning, "the store has lost the network's definition, which stays in force; putting it back")
			due = time.After(time.Until(restore))
		case time.Now().Before(restore):
			due = time.After(time.Until(restore))
		default:
			if err := r.restoreDefinition(ctx, n); err != nil {
				r.check(health.Network, api.Warning, fmt.Sprintf("the store has lost the network's definition, which stays in force, "+
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

// definitionVerdict is how the store stands to the definition in force.
type definitionVerdict int

const (
	definitionInForce    definitionVerdict = iota // the store has it
	definitionLost                                // the store has none, an older one, or an older deletion
	definitionUnreadable                          // the store has a record that cannot be used
)

// compareDefinition asks the store for the definition and holds it against the one in
// force. A version that says the same takes the place of n. The error is
// errDefinitionChanged, errNetworkGone, or the store's.
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
		r.check(health.Network, api.Warning, "the definition in the store cannot be used, the one before stays in force: "+registry.Shorten(strings.TrimPrefix(err.Error(), "network "+n.Name+": "), registry.MaxShownReason))
		return definitionUnreadable, nil
	case err != nil:
		return 0, err
	case len(definition.Differences(now, *n)) > 0:
		return 0, errDefinitionChanged
	}
	*n = now
	r.confirm(now, asked)
	r.show(func(v *view) {
		if v.local.ModifyIndex == v.definition.ModifyIndex { // the datapath is made of the version before
			v.local.ModifyIndex = now.ModifyIndex
		}
		v.definition, v.local.Differs = now, r.differs(now)
	})
	return definitionInForce, nil
}

// restoreDefinition puts n back into a store that has lost it, or its last change.
func (r *runner) restoreDefinition(ctx context.Context, n registry.Network) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	have, err := r.env.registry.Network(ctx, n.Name)
	deleted := &registry.DeletedError{}
	version := have.ModifyIndex
	switch {
	case errors.As(err, &deleted) && deleted.Ends(n, r.known.used):
		return nil // it was deleted since
	case errors.As(err, &deleted):
		version = deleted.ModifyIndex
	case errors.Is(err, registry.ErrNetworkNotFound):
		version = registry.Absent // what is written from now on may be a deletion
	case err != nil:
		return err
	case !r.known.supersedes(have):
		return nil // somebody else has put it back, or defined it in another way
	}
	n.CreateIndex, n.ModifyIndex = 0, version
	switch err := r.env.registry.PutNetwork(ctx, n); {
	case errors.Is(err, registry.ErrConflict): // another host was first, or someone has deleted it
		return nil
	case err != nil:
		return err
	}
	r.log.Warn("the store had lost the network or its last change, put back")
	r.event(api.EventStore, api.Warning, "the store had lost the network's definition, put back", nil)
	return nil
}

// inForce returns n with the indexes that the store has it under now.
func (r *runner) inForce(n registry.Network) registry.Network {
	if now := r.shown().definition; now.Name == n.Name && len(definition.Differences(now, n)) == 0 {
		return now
	}
	return n
}
