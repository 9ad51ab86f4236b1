package belief

import (
	"net/netip"
	"slices"
	"time"

	"github.com/lenonet/leno/registry"
)

// Remembered are the leases of other hosts that an earlier process of this host knew. The kernel still has their
// routes. The store may have been set back, or running hosts may be about to fill it again, so leases that are missing
// from the store at first stay in use for a while. Within one process a Belief takes care of that.
type Remembered struct {
	Leases  []registry.Lease // those that the store has not had since, after Merge
	Created uint64           // the CreateIndex of the definition when they were read
	Settle  time.Duration    // how long leases that the store lacks stay
	Foreign time.Duration    // those of hosts that run flannel, if that is longer
	Since   time.Time        // of the first read of the store, zero before it
}

// Merge returns leases, which the store had at read, completed with the remembered leases that the store lacks or has
// in an older version, and the time until which the first of those stays, zero if there are none. A record in the store
// about the same host, subnet, name or address replaces a remembered lease unless the record is older. A remembered
// lease is dropped when the store has been read after its time, because by then its host has written it again.
func (m *Remembered) Merge(
	n registry.Network, leases []registry.Lease, read time.Time,
) (all []registry.Lease, until time.Time) {
	if len(m.Leases) == 0 {
		return leases, time.Time{}
	}
	if m.Since.IsZero() {
		m.Since = read
	}
	m.Leases = slices.DeleteFunc(m.Leases, func(l registry.Lease) bool { return !read.Before(m.end(l)) })
	newest := map[any]uint64{} // of the latest record in the store by subnet, host, name or address
	for _, l := range leases {
		for _, about := range subjects(l) {
			version := l.ModifyIndex
			if _, isSubnet := about.(netip.Prefix); !l.Held() && !isSubnet {
				version = l.CreateIndex // a later lapse does not show where its host is
			}
			newest[about] = max(newest[about], version)
		}
	}
	replaced := map[netip.Prefix]bool{} // subnets of which the store has an older record
	var lacking []registry.Lease
	for _, l := range m.Leases {
		if slices.ContainsFunc(subjects(l), func(about any) bool {
			version, known := newest[about]
			return known && (m.Created != n.CreateIndex || version >= l.ModifyIndex)
		}) {
			continue
		}
		lacking = append(lacking, l)
		if end := m.end(l); until.IsZero() || end.Before(until) {
			until = end
		}
		for _, s := range l.Subnets {
			replaced[s] = true
		}
	}
	m.Leases = lacking // the store has the others, so it decides about them from now on
	for _, l := range leases {
		if !slices.ContainsFunc(l.Subnets, func(s netip.Prefix) bool { return replaced[s] }) {
			all = append(all, l)
		}
	}
	return append(all, lacking...), until
}

// end returns until when a lease stays that the store lacks.
func (m *Remembered) end(l registry.Lease) time.Time {
	if l.Foreign {
		return m.Since.Add(max(m.Settle, m.Foreign))
	}
	return m.Since.Add(m.Settle)
}

// subjects returns what a lease is about and no lease of another live host can share: its subnets, node id, name and
// addresses, with the port behind NAT.
func subjects(l registry.Lease) []any {
	type id string
	type name string
	out := []any{id(l.NodeID), name(l.Node)}
	for _, s := range l.Subnets {
		out = append(out, s)
	}
	for _, e := range l.Endpoints() {
		out = append(out, e)
	}
	return out
}
