package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
)

// A host that has seen the deletion of a network writes it down. A store that has lost
// everything has lost the record of the deletion too, and the block of a host would
// define the network again.

// recallDeletion reads what an earlier process wrote down.
func (r *runner) recallDeletion() {
	d, err := state.LoadDeletion(r.config.DataDir, r.local.Name)
	if err != nil {
		r.log.Warn("starting without what is remembered of the network's deletion", "error", err)
	}
	r.deletion = d
}

// rememberDeletion notes that the network was deleted.
func (r *runner) rememberDeletion(d registry.Deletion) {
	if r.deletion != nil && r.deletion.Time.Equal(d.Time) {
		return
	}
	r.deletion = &d
	if err := state.SaveDeletion(r.config.DataDir, d); err != nil {
		r.log.Warn("the network's deletion cannot be written down: if the store loses the record of it, "+
			"this host may define the network again", "error", err)
	}
}

// forgetDeletion notes that the network is defined.
func (r *runner) forgetDeletion() {
	r.deletion = nil
	if err := state.RemoveDeletion(r.config.DataDir, r.local.Name); err != nil {
		r.log.Warn("the network is defined again, and the file that says that it was deleted cannot be removed", "error", err)
	}
}

// lostDeletion returns the deletion that this host remembers of a network of which the
// store has no record, nil when there is none: it remembers the network from a later time,
// or the deletion is so old that its record may be gone in the ordinary way.
func (r *runner) lostDeletion() *registry.DeletedError {
	switch {
	case r.deletion == nil || time.Since(r.deletion.Time) >= registry.DeletionKept:
		return nil
	case r.known != nil && !r.deletion.Ends(r.known.network, r.known.used):
		return nil
	}
	return &registry.DeletedError{Deletion: *r.deletion}
}

// restoreDeletion puts the record of a deletion back into a store that has lost it,
// unless hosts that take part in the network know better. The error is what the store has
// then, the deletion as a rule.
func (r *runner) restoreDeletion(ctx context.Context, lost *registry.DeletedError) (registry.Network, error) {
	if err := r.definedElsewhere(ctx); err != nil {
		return registry.Network{}, err
	}
	switch err := r.env.registry.PutDeletion(ctx, lost.Deletion); {
	case err == nil:
		r.log.Warn("the store had lost the record of the network's deletion, put back", "deleted", lost.Time.UTC().Format(time.RFC3339))
	case !errors.Is(err, registry.ErrConflict): // another host was first, or someone has defined it
		return registry.Network{}, fmt.Errorf("%w; the store has lost the record of that, and this agent cannot put it back: %w", lost, err)
	}
	return r.env.registry.Network(ctx, r.local.Name)
}
