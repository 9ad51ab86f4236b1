package network

import (
	"context"
	"errors"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// restore writes n to a store that has lost it, or its last change.
func (d *definitionKeeper) restore(ctx context.Context, n registry.Network) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	have, err := d.deps.Store.Registry.Network(ctx, n.Name)
	deleted := &registry.DeletedError{}
	version := have.ModifyIndex
	switch {
	case errors.As(err, &deleted) && deleted.Ends(n, d.known.used):
		return nil // it was deleted in the meantime
	case errors.As(err, &deleted):
		version = deleted.ModifyIndex
	case errors.Is(err, registry.ErrNetworkNotFound):
		version = registry.Absent // a record that is written from now on may be a deletion
	case err != nil:
		return err
	case !d.known.supersedes(have):
		return nil // another host has restored it, or it was defined differently
	}
	n = n.Restoring()
	n.ModifyIndex = version
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

// markSetBack writes n, which the store has, as restored, after the store was set back. Hosts that start now see in no
// other way that the store may lack leases, and wait for their hosts. One host does so for all.
func (d *definitionKeeper) markSetBack(ctx context.Context, n registry.Network) {
	if n.Foreign || time.Since(d.lossSeen) < d.config.Lease.TTL {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	marked := n.Restoring()
	marked.ModifyIndex = n.ModifyIndex
	if err := d.deps.Store.Registry.PutNetwork(ctx, marked); err != nil {
		d.report.Log().Debug("could not write that the store was set back, another host may have", "error", err)
		return
	}
	d.report.Log().Warn("the store was set back: new hosts wait until the others have claimed again")
}
