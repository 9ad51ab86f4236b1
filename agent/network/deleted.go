package network

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
)

// A host that has seen the deletion of a network writes it down. A store that has lost everything has lost the record
// of the deletion, too, and the block of a host would define the network again.

// recallDeletion reads the deletion that an earlier process wrote down, if any.
func (d *definitionKeeper) recallDeletion() {
	before, err := state.LoadDeletion(d.config.DataDir, d.local.Name)
	if err != nil {
		d.report.Log().Warn("remembered deletion of the network cannot be read", "error", err)
	}
	d.deletion = before
}

// rememberDeletion records the deletion of the network that err tells of, also for the next process.
func (d *definitionKeeper) rememberDeletion(err error) {
	now, isDeleted := errors.AsType[*registry.DeletedError](err)
	location := d.config.StoreLocation()
	if !isDeleted || d.deletion != nil && d.deletion.Time.Equal(now.Time) && d.deletion.Store == location {
		return
	}
	d.deletion = &state.Deletion{Deletion: now.Deletion, Store: location}
	if err := state.SaveDeletion(d.config.DataDir, *d.deletion); err != nil {
		d.report.Log().Warn("the network's deletion could not be saved: if the store loses the record of it, "+
			"this host may define the network again", "error", err)
	}
}

// forgetDeletion removes what this host remembers of a deletion, because the network is defined.
func (d *definitionKeeper) forgetDeletion() {
	d.deletion = nil
	if err := state.RemoveDeletion(d.config.DataDir, d.local.Name); err != nil {
		d.report.Log().Warn("the network is defined again, and the file that says that it was deleted cannot be removed",
			"error", err)
	}
}

// lostDeletion returns the deletion that this host remembers of a network about which the store has no record. It
// returns nil if there is none, or if the host remembers the network from a later time.
func (d *definitionKeeper) lostDeletion() *registry.DeletedError {
	if d.deletion == nil || d.known != nil && !d.known.IsEndedBy(d.deletion.Deletion) {
		return nil
	}
	return &registry.DeletedError{Deletion: d.deletion.Deletion}
}

// restoreDeletion writes the record of a deletion to a store that has lost it, unless other hosts take part in the
// network and know its definition. It returns what the store has then, which usually is the deletion, as an error.
func (d *definitionKeeper) restoreDeletion(ctx context.Context, lost *registry.DeletedError) (registry.Network, error) {
	if err := d.definedElsewhere(ctx); err != nil {
		return registry.Network{}, err
	}
	switch err := d.deps.Store.Registry.PutDeletion(ctx, lost.Deletion); {
	case err == nil:
		d.report.Log().Warn("the store had lost the record of the network's deletion, restored it",
			"deleted", lost.Time.UTC().Format(time.RFC3339))
	case !errors.Is(err, registry.ErrConflict): // another host was first, or an operator has defined the network
		return registry.Network{}, fmt.Errorf(
			"%w; the store has lost the record of that, and this agent cannot put it back: %w", lost, err)
	}
	return d.deps.Store.Registry.Network(ctx, d.local.Name)
}
