package agent

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
func (r *runner) recallDeletion() {
	d, err := state.LoadDeletion(r.config.DataDir, r.local.Name)
	if err != nil {
		r.log.Warn("starting without what is remembered of the network's deletion", "error", err)
	}
	r.deletion = d
}

// rememberDeletion records that the network was deleted, also for the next process.
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

// forgetDeletion removes what this host remembers of a deletion, because the network is defined.
func (r *runner) forgetDeletion() {
	r.deletion = nil
	if err := state.RemoveDeletion(r.config.DataDir, r.local.Name); err != nil {
		r.log.Warn("the network is defined again, and the file that says that it was deleted cannot be removed", "error", err)
	}
}

// lostDeletion returns the deletion that this host remembers of a network about which the store has no record. It
// returns nil if there is none, if the host remembers the network from a later time, or if the deletion is so old that
// its record may have been removed as usual.
func (r *runner) lostDeletion() *registry.DeletedError {
	switch {
	case r.deletion == nil || time.Since(r.deletion.Time) >= registry.DeletionKept:
		return nil
	case r.known != nil && !r.deletion.Ends(r.known.network, r.known.used):
		return nil
	}
	return &registry.DeletedError{Deletion: *r.deletion}
}

// restoreDeletion writes the record of a deletion to a store that has lost it, unless other hosts take part in the
// network and know its definition. It returns what the store has then, which usually is the deletion, as an error.
func (r *runner) restoreDeletion(ctx context.Context, lost *registry.DeletedError) (registry.Network, error) {
	if err := r.definedElsewhere(ctx); err != nil {
		return registry.Network{}, err
	}
	switch err := r.env.registry.PutDeletion(ctx, lost.Deletion); {
	case err == nil:
		r.log.Warn("the store had lost the record of the network's deletion, put back", "deleted", lost.Time.UTC().Format(time.RFC3339))
	case !errors.Is(err, registry.ErrConflict): // another host was first, or an operator has defined the network
		return registry.Network{}, fmt.Errorf("%w; the store has lost the record of that, and this agent cannot put it back: %w", lost, err)
	}
	return r.env.registry.Network(ctx, r.local.Name)
}
