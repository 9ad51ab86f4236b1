package kubernetes

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/lenonet/leno/registry"
)

// defined explains why the network cannot be changed.
func (c *Client) defined(what, network string) error {
	return fmt.Errorf("%s network %s: %w: with Kubernetes, the network is defined in %s", what, network,
		registry.ErrNotSupported, c.conf.source())
}

// assigned explains why other hosts' subnets cannot be changed.
func assigned(what string, subnet netip.Prefix) error {
	return fmt.Errorf("%s %s: %w: Kubernetes assigns subnets to nodes, and frees them when a node is deleted", what,
		subnet, registry.ErrNotSupported)
}

// PutNetwork returns registry.ErrNotSupported.
func (c *Client) PutNetwork(_ context.Context, n registry.Network, _ ...registry.Reservation) error {
	return c.defined("define", n.Name)
}

// DeleteNetwork returns registry.ErrNotSupported.
func (c *Client) DeleteNetwork(_ context.Context, name string) error {
	return c.defined("delete", name)
}

// PutDeletion returns registry.ErrNotSupported.
func (c *Client) PutDeletion(_ context.Context, d registry.Deletion) error {
	return c.defined("delete", d.Network)
}

// Revoke returns registry.ErrNotSupported.
func (c *Client) Revoke(_ context.Context, _ string, subnet netip.Prefix) error {
	return assigned("revoke lease", subnet)
}

// Expire returns registry.ErrNotSupported: leases do not lapse.
func (c *Client) Expire(_ context.Context, l registry.Lease) error {
	return assigned("expire lease", l.Subnet())
}

// Restore returns registry.ErrNotSupported: a lease is lost with its Node.
func (c *Client) Restore(_ context.Context, _ registry.Network, l registry.Lease, _ time.Duration) error {
	return assigned("restore lease", l.Subnet())
}

// AddReservation returns registry.ErrNotSupported.
func (c *Client) AddReservation(_ context.Context, _ registry.Network, r registry.Reservation, _ bool) error {
	return assigned("reserve", r.Subnet)
}

// RemoveReservation returns registry.ErrNotSupported.
func (c *Client) RemoveReservation(_ context.Context, _ string, subnet netip.Prefix) error {
	return assigned("remove reservation", subnet)
}

// WatchReservations returns an empty set with index 1, and blocks until ctx ends after that.
func (c *Client) WatchReservations(ctx context.Context, _ registry.Network, after uint64) (
	registry.ReservationSet, uint64, error) {
	if after != 1 {
		return registry.ReservationSet{}, 1, nil
	}
	<-ctx.Done()
	return registry.ReservationSet{}, 0, ctx.Err()
}
