package consul

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// Network implements registry.Networks.
func (c *Client) Network(ctx context.Context, name string) (registry.Network, error) {
	if err := registry.CheckNetworkName(name); err != nil {
		return registry.Network{}, err
	}
	pair, _, err := c.getSurely(ctx, c.layout.network(name), read{})
	if err != nil {
		return registry.Network{}, fmt.Errorf("network %s: %w", name, err)
	}
	if pair == nil {
		return registry.Network{}, fmt.Errorf("network %s: %w", name, registry.ErrNetworkNotFound)
	}
	n, err := parseNetwork(name, pair)
	if err != nil {
		return registry.Network{}, fmt.Errorf("network %s: %w", name, err)
	}
	return n, nil
}

// PutNetwork implements registry.Networks. The token needs the right to write
// below networks/; without the right to write below leases/ and changes/ what
// marks those is left to the first host that acquires a lease.
func (c *Client) PutNetwork(ctx context.Context, n registry.Network, kept ...registry.Reservation) error {
	if err := c.putNetwork(ctx, n, kept); err != nil {
		return fmt.Errorf("put network %s: %w", n.Name, err)
	}
	return nil
}

func (c *Client) putNetwork(ctx context.Context, n registry.Network, kept []registry.Reservation) error {
	plan, err := n.Plan.Normalize()
	if err != nil {
		return err
	}
	n.Plan = plan
	value, err := registry.FormatNetwork(n)
	if err != nil {
		return err
	}
	if kept, err = registry.CheckKept(n, kept); err != nil {
		return err
	}
	if len(kept) == 0 {
		return c.writeNetwork(ctx, n, value)
	}
	switch _, err := c.Network(ctx, n.Name); {
	case err == nil:
		return registry.ErrNetworkExists
	case !errors.Is(err, registry.ErrNetworkNotFound):
		return err
	}
	k := c.reserve(n, kept)
	open := false // whether the definition was written is
	if err = k.write(ctx); err == nil {
		err = c.writeNetwork(ctx, n, value)
		open = errors.Is(err, registry.ErrUnavailable) || errors.Is(err, context.Canceled)
	}
	if err != nil && !open {
		err = errors.Join(err, k.undo(ctx))
	}
	return err
}

// writeNetwork stores value, the definition n.
func (c *Client) writeNetwork(ctx context.Context, n registry.Network, value []byte) error {
	// Markers come first: whoever sees the network can trust its trees.
	if _, err := c.ensureMarker(ctx, c.layout.networks()); err != nil {
		return err
	}
	if _, err := c.ensureMarker(ctx, c.layout.leases(n.Name)); err != nil && !errors.Is(err, registry.ErrDenied) {
		return err
	}
	if err := c.ensureWatermark(ctx, n.Name); err != nil && !errors.Is(err, registry.ErrDenied) {
		return err
	}
	opts, cancel := c.write(ctx)
	defer cancel()
	key := c.layout.network(n.Name)
	ok, _, err := c.api.KV().CAS(&api.KVPair{Key: key, Value: value, ModifyIndex: n.ModifyIndex}, opts)
	switch {
	case err != nil:
		err = classify(err)
		// It may have taken place all the same, and whoever tries again must not
		// stumble over his own write.
		if errors.Is(err, registry.ErrUnavailable) {
			if pair, _, readErr := c.get(ctx, key, read{consistent: true}); readErr == nil && pair != nil && bytes.Equal(pair.Value, value) {
				return nil
			}
		}
		return fmt.Errorf("write %s: %w", key, err)
	case !ok && n.ModifyIndex == 0:
		return registry.ErrNetworkExists
	case !ok:
		return registry.ErrConflict
	}
	return nil
}

// DeleteNetwork implements registry.Networks.
func (c *Client) DeleteNetwork(ctx context.Context, name string) error {
	if err := registry.CheckNetworkName(name); err != nil {
		return err
	}
	// Watchers believe that a definition is gone only beside a marker.
	if _, err := c.ensureMarker(ctx, c.layout.networks()); err != nil {
		return fmt.Errorf("delete network %s: %w", name, err)
	}
	key := c.layout.network(name)
	// The get fails when there is no such key.
	_, err := c.transact(ctx,
		&api.KVTxnOp{Verb: api.KVGet, Key: key},
		&api.KVTxnOp{Verb: api.KVDelete, Key: key},
		&api.KVTxnOp{Verb: api.KVDeleteTree, Key: c.layout.reservations(name)})
	if isRefused(err) {
		err = c.deleteReservations(ctx, name)
	}
	if err != nil {
		return fmt.Errorf("delete network %s: %w", name, err)
	}
	return nil
}

// deleteReservations deletes those of a network that is not defined.
func (c *Client) deleteReservations(ctx context.Context, network string) error {
	prefix := c.layout.reservations(network)
	pairs, _, err := c.listSurely(ctx, prefix)
	if err != nil {
		return err
	}
	if len(pairs) == 0 {
		return registry.ErrNetworkNotFound
	}
	_, err = c.transact(ctx,
		&api.KVTxnOp{Verb: api.KVCheckNotExists, Key: c.layout.network(network)},
		&api.KVTxnOp{Verb: api.KVDeleteTree, Key: prefix})
	if isRefused(err) {
		err = fmt.Errorf("%w: it was defined just now", registry.ErrConflict)
	}
	return err
}

func parseNetwork(name string, pair *api.KVPair) (registry.Network, error) {
	n, err := registry.ParseNetwork(name, pair.Value)
	if err != nil {
		return registry.Network{}, err
	}
	n.CreateIndex, n.ModifyIndex = pair.CreateIndex, pair.ModifyIndex
	return n, nil
}
