package peers

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
)

// A peerCache holds the leases of other hosts that an earlier process of this host knew. The kernel still has their
// routes. The store may have been set back, or running hosts may be about to fill it again, so leases that are missing
// from the store at first stay in use for a while. Within one process the registry takes care of that.
type peerCache struct {
	path    string
	written [sha256.Size]byte // of the content of the file
	created uint64            // the CreateIndex of the definition in the file
	leases  []registry.Lease
	ranks   map[netip.Prefix]uint64 // of the leases in the file, see seniority
	since   time.Time               // of the first read of the store, zero before it
	stays   time.Duration           // how long leases that the store lacks stay
	foreign time.Duration           // those of hosts that run flannel, if that is longer
}

// SettleTime returns how long leases stay that are missing from a store that was emptied or set back. That is longer
// than a session in such a store can live without its host, and longer than a host may wait for such a session to end
// before it writes its own lease.
func SettleTime(l config.Lease) time.Duration { return 3 * l.TTL }

// loadCache reads the file. If it is missing or damaged, the result has no leases.
func loadCache(dataDir string, n registry.Network, stays time.Duration) *peerCache {
	c := &peerCache{path: state.PeersPath(dataDir, n.Name), stays: stays}
	if file, err := state.LoadPeers(dataDir, n.Name); err == nil {
		c.written, c.created, c.leases, c.ranks = file.Sum, file.Created, file.ParseLeases(n), file.Seniority()
	}
	return c
}

// resume continues with what before, the cache of an earlier Run, has not yet left to the store. The definition may
// be another one since, so the leases are those in the file that fit it.
func (c *peerCache) resume(before *peerCache) {
	stays := map[netip.Prefix]bool{}
	for _, l := range before.leases {
		stays[l.Subnet()] = true
	}
	c.created, c.since = before.created, before.since
	c.leases = slices.DeleteFunc(c.leases, func(l registry.Lease) bool { return !stays[l.Subnet()] })
}

// merge returns leases, which the store had at read, completed with the remembered leases that the store lacks or has
// in an older version, and the time until which the first of those stays, zero if there are none. A record in the store
// about the same host, slot, name or address replaces a remembered lease unless the record is older. A remembered lease
// is dropped when the store has been read after its time, because by then its host has written it again.
func (c *peerCache) merge(
	n registry.Network, leases []registry.Lease, read time.Time,
) (all []registry.Lease, until time.Time) {
	if len(c.leases) == 0 {
		return leases, time.Time{}
	}
	if c.since.IsZero() {
		c.since = read
	}
	c.leases = slices.DeleteFunc(c.leases, func(l registry.Lease) bool { return !read.Before(c.end(l)) })
	newest := map[any]uint64{} // of the latest record in the store by slot, host, name or address
	for _, l := range leases {
		for _, about := range subjects(l) {
			version := l.ModifyIndex
			if !l.Held() && about != any(l.Slot) {
				version = l.CreateIndex // a later lapse does not show where its host is
			}
			newest[about] = max(newest[about], version)
		}
	}
	replaced := map[any]bool{}
	var lacking []registry.Lease
	for _, l := range c.leases {
		if slices.ContainsFunc(subjects(l), func(about any) bool {
			version, known := newest[about]
			return known && (c.created != n.CreateIndex || version >= l.ModifyIndex)
		}) {
			continue
		}
		lacking = append(lacking, l)
		if end := c.end(l); until.IsZero() || end.Before(until) {
			until = end
		}
		for _, about := range subjects(l) {
			replaced[about] = true
		}
	}
	c.leases = lacking // the store has the others, so it decides about them from now on
	for _, l := range leases {
		if !slices.ContainsFunc(subjects(l), func(about any) bool { return replaced[about] }) {
			all = append(all, l)
		}
	}
	return append(all, lacking...), until
}

// end returns until when a lease stays that the store lacks.
func (c *peerCache) end(l registry.Lease) time.Time {
	if l.Foreign {
		return c.since.Add(max(c.stays, c.foreign))
	}
	return c.since.Add(c.stays)
}

// subjects returns what a lease is about and no lease of another live host can share: its slot, node id, name and
// addresses, with the port behind NAT.
func subjects(l registry.Lease) []any {
	type id string
	type name string
	out := []any{l.Slot, id(l.NodeID), name(l.Node)}
	for _, e := range l.Endpoints() {
		out = append(out, e)
	}
	return out
}

// save writes the leases to the file if they differ from its content.
func (c *peerCache) save(v *View) error {
	n := v.Network
	definition, err := registry.FormatNetwork(n)
	if err != nil {
		return fmt.Errorf("remember the network: %w", err)
	}
	now := state.Peers{
		Version:    registry.Version,
		Network:    n.Name,
		Created:    n.CreateIndex,
		Definition: definition,
		Leases:     []state.PeerLease{},
	}
	for _, l := range v.Leases {
		if l.NodeID == v.Own.NodeID || l.Slot == v.Own.Slot {
			continue
		}
		record, err := registry.FormatLease(l)
		if err != nil {
			return fmt.Errorf("remember the lease of %s: %w", l.Node, err)
		}
		now.Leases = append(now.Leases, state.PeerLease{
			Key:         registry.SubnetKey(l.Subnet()),
			Record:      record,
			Held:        l.Held(),
			Flannel:     l.Foreign,
			CreateIndex: l.CreateIndex,
			ModifyIndex: l.ModifyIndex,
			Seniority:   v.Seniority[l.Subnet()],
		})
	}
	data, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("remember the peers: %w", err)
	}
	sum := sha256.Sum256(data)
	if sum == c.written {
		return nil
	}
	if err := state.WriteFile(c.path, data, 0o600); err != nil {
		return fmt.Errorf("remember the peers: %w", err)
	}
	c.written = sum
	return nil
}

// isEmpty reports whether no remembered leases are left.
func (c *peerCache) isEmpty() bool { return len(c.leases) == 0 }
