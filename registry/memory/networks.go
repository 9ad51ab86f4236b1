package memory

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lenonet/leno/registry"
)

// Client is a host's own view of a store: it has watched lapsed leases for as
// long as it exists.
type Client struct {
	store *Store
	clock *registry.LapseClock
}

var _ registry.Registry = (*Client)(nil)

// As is the same client: a store in one process has no tokens.
func (c *Client) As(string) registry.Registry { return c }

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
	return n, wrap(err, "network %s", name)
}

func (s *Store) networkLocked(name string) (registry.Network, error) {
	r, ok := s.records[networksDir+name]
	if !ok {
		return registry.Network{}, registry.ErrNetworkNotFound
	}
	n, err := registry.ParseNetwork(name, r.value)
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
		return wrap(err, "put network %s", n.Name)
	}
	s := c.store
	return wrap(s.do(ctx, func() error {
		r, ok := s.records[networksDir+n.Name]
		switch {
		case n.ModifyIndex == 0 && ok:
			return registry.ErrNetworkExists
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

// markLocked makes sure of the marker of a network's leases: while it stands,
// an empty list is the truth.
func (s *Store) markLocked(network string) {
	if key := leasesDir + network + "/" + marker; s.records[key].modifyIndex == 0 {
		s.putLocked(key, []byte(`{}`), "")
	}
}

// DeleteNetwork implements registry.Networks.
func (c *Client) DeleteNetwork(ctx context.Context, name string) error {
	s := c.store
	return wrap(s.do(ctx, func() error {
		reservations := s.keysLocked(reservationsDir + name + "/")
		if _, ok := s.records[networksDir+name]; !ok && len(reservations) == 0 {
			return registry.ErrNetworkNotFound
		}
		s.deleteLocked(networksDir + name)
		for _, key := range reservations {
			s.deleteLocked(key)
		}
		return nil
	}), "delete network %s", name)
}

// WatchNetworks implements registry.Networks.
func (c *Client) WatchNetworks(ctx context.Context, after uint64) (set registry.NetworkSet, index uint64, err error) {
	s := c.store
	index, err = s.watch(ctx, after, func() (uint64, error) {
		set = registry.NetworkSet{}
		for _, key := range s.keysLocked(networksDir) {
			n, err := s.networkLocked(strings.TrimPrefix(key, networksDir))
			if err != nil {
				set.Bad = append(set.Bad, registry.BadRecord{Key: key, Reason: err.Error()})
				continue
			}
			set.Networks = append(set.Networks, n)
		}
		return s.dirLocked(networksDir), nil
	})
	if err != nil {
		return registry.NetworkSet{}, index, wrap(err, "watch networks")
	}
	return set, index, nil
}

// wrap says what was being done; a context's own error stays as it is.
func wrap(err error, format string, args ...any) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}
