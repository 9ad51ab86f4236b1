package memory

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/claim"
)

// Client is a host's own view of a store: it has watched lapsed leases for as long as it has existed.
type Client struct {
	store *Store
	clock *registry.LapseClock
	lost  *claim.LostLeases
}

var _ registry.Registry = (*Client)(nil)

// As returns the same client: a store in one process has no tokens.
func (c *Client) As(string) registry.Registry { return c }

// Reconnect implements registry.Registry. There are no connections.
func (*Client) Reconnect() {}

// Abilities implements registry.Registry: a store in one process has none.
func (*Client) Abilities() registry.Abilities { return registry.Abilities{} }

const (
	networksDir     = Prefix + "/networks/"
	leasesDir       = Prefix + "/leases/"
	reservationsDir = Prefix + "/reservations/"
	marker          = "_"
)

// Network implements registry.Networks.
func (c *Client) Network(ctx context.Context, name string) (n registry.Network, err error) {
	err = c.store.do(ctx, func() error {
		n, err = c.store.networkLocked(name)
		return err
	})
	return n, registry.Wrap(err, "network %s", name)
}

func (s *Store) networkLocked(name string) (registry.Network, error) {
	r, ok := s.records[networksDir+name]
	if !ok {
		return registry.Network{}, registry.ErrNetworkNotFound
	}
	n, err := registry.ParseNetwork(name, r.value)
	if deleted, ok := errors.AsType[*registry.DeletedError](err); ok {
		deleted.CreateIndex, deleted.ModifyIndex = r.createIndex, r.modifyIndex
	}
	n.CreateIndex, n.ModifyIndex = r.createIndex, r.modifyIndex
	return n, err
}

// PutNetwork implements registry.Networks.
func (c *Client) PutNetwork(ctx context.Context, n registry.Network, kept ...registry.Reservation) error {
	value, err := registry.FormatNetwork(n)
	if err == nil {
		n.Plan, err = n.Plan.Normalize()
	}
	if err == nil {
		kept, err = registry.CheckKept(n, kept)
	}
	if err != nil {
		return registry.Wrap(err, "put network %s", n.Name)
	}
	s := c.store
	return registry.Wrap(s.do(ctx, func() error {
		r := s.records[networksDir+n.Name]
		_, err := s.networkLocked(n.Name)
		switch {
		case n.ModifyIndex == 0 && !errors.Is(err, registry.ErrNetworkNotFound):
			return registry.ErrNetworkExists
		case n.ModifyIndex == registry.Absent && r.modifyIndex == 0:
		case n.ModifyIndex != 0 && n.ModifyIndex != r.modifyIndex:
			return registry.ErrConflict
		}
		if err := s.reserveLocked(n, false, kept...); err != nil {
			return err
		}
		s.putLocked(networksDir+n.Name, value, "")
		s.markLocked(n.Name)
		return nil
	}), "put network %s", n.Name)
}

// markLocked creates the marker of a network's leases if it is missing. While the marker exists, an empty list can be
// trusted.
func (s *Store) markLocked(network string) {
	if key := leasesDir + network + "/" + marker; s.records[key].modifyIndex == 0 {
		s.putLocked(key, []byte(`{}`), "")
	}
}

// Holders implements registry.Networks.
func (c *Client) Holders(ctx context.Context, network string) (out []registry.Holder, err error) {
	s := c.store
	err = s.do(ctx, func() error {
		out = s.holdersLocked(network)
		return nil
	})
	return out, registry.Wrap(err, "list sessions")
}

func (s *Store) holdersLocked(network string) (out []registry.Holder) {
	for id, open := range s.sessions {
		if open.network == network {
			out = append(out, registry.Holder{Node: open.node, Session: id, CreateIndex: open.createIndex})
		}
	}
	slices.SortFunc(out, func(a, b registry.Holder) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Session, b.Session))
	})
	return out
}

// DeleteNetwork implements registry.Networks.
func (c *Client) DeleteNetwork(ctx context.Context, name string) error {
	s := c.store
	return registry.Wrap(s.do(ctx, func() error {
		reservations := s.keysLocked(reservationsDir + name + "/")
		old, err := s.networkLocked(name)
		_, isDeleted := errors.AsType[*registry.DeletedError](err)
		switch {
		case !errors.Is(err, registry.ErrNetworkNotFound), !isDeleted && s.leftLocked(name):
			value, err := registry.FormatDeletion(registry.NewDeletion(name, old))
			if err != nil {
				return err
			}
			s.putLocked(networksDir+name, value, "")
		case len(reservations) == 0:
			return err
		}
		for _, key := range reservations {
			s.deleteLocked(key)
		}
		for _, d := range registry.OldDeletions(s.networksLocked().Deleted) {
			if !s.leftLocked(d.Network) {
				s.deleteLocked(networksDir + d.Network)
			}
		}
		return nil
	}), "delete network %s", name)
}

// PutDeletion implements registry.Networks.
func (c *Client) PutDeletion(ctx context.Context, d registry.Deletion) error {
	value, err := registry.FormatDeletion(d)
	if err == nil {
		err = registry.CheckNetworkName(d.Network)
	}
	if err != nil {
		return registry.Wrap(err, "put back the deletion of network %s", d.Network)
	}
	s := c.store
	return registry.Wrap(s.do(ctx, func() error {
		if s.records[networksDir+d.Network].modifyIndex != 0 {
			return registry.ErrConflict
		}
		s.putLocked(networksDir+d.Network, value, "")
		return nil
	}), "put back the deletion of network %s", d.Network)
}

// leftLocked reports whether there are leases of a network, usable or not.
func (s *Store) leftLocked(network string) bool {
	dir := leasesDir + network + "/"
	return slices.ContainsFunc(s.keysLocked(dir), func(key string) bool { return key != dir+marker })
}

// WatchNetworks implements registry.Networks.
func (c *Client) WatchNetworks(ctx context.Context, after uint64) (set registry.NetworkSet, index uint64, err error) {
	s := c.store
	index, err = s.watch(ctx, after, func() (uint64, error) {
		set = s.networksLocked()
		return s.dirLocked(networksDir), nil
	})
	return set, index, registry.Wrap(err, "watch networks")
}

func (s *Store) networksLocked() (set registry.NetworkSet) {
	for _, key := range s.keysLocked(networksDir) {
		name := strings.TrimPrefix(key, networksDir)
		n, err := s.networkLocked(name)
		set.Add(key, name, n, err)
	}
	return set
}
