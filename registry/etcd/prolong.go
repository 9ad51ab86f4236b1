package etcd

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/lenonet/leno/registry"
)

// flannelLeaseTime is how long flannel's leases last. flanneld writes a record when it starts and an hour before the end,
// so the store cannot tell sooner whether a host is alive whose record it has lost.
const flannelLeaseTime = 24 * time.Hour

// prolong returns k, whose time as a missing record is over, with more time, or nil if it is given up. older means that
// the store has an older version instead.
func (v *leaseView) prolong(k *known, t *tree, keys layout, n registry.Network, settle time.Duration, older bool) *known {
	prolonged := *k
	prolonged.until = time.Now().Add(settle)
	switch {
	case older:
		lapsed := v.parse(t, keys, n, t.records[k.record.key], false).lease
		if lapsed.Held() {
			return nil
		}
		// The host is away, and is still reached as it was known. The older record says how long it has been away.
		prolonged.session = ""
		l := &prolonged.lease
		l.Session, l.CreateIndex, l.ModifyIndex = "", lapsed.CreateIndex, lapsed.ModifyIndex
	case k.foreign && k.err == nil && time.Since(k.since) < flannelLeaseTime && !v.isReplaced(k, t, keys, n):
		prolonged.lost = true
	default:
		return nil
	}
	return &prolonged
}

// isReplaced reports whether the store has another record about the host or the subnets of k.
func (v *leaseView) isReplaced(k *known, t *tree, keys layout, n registry.Network) bool {
	hasAddress := func(a netip.Addr) bool { return slices.Contains(k.lease.PublicIPs, a) }
	hasSubnet := func(p netip.Prefix) bool { return slices.Contains(k.lease.Subnets, p) }
	return slices.ContainsFunc(t.below(keys.leases(v.network)), func(r *record) bool {
		l := v.parse(t, keys, n, r, false).lease
		return slices.ContainsFunc(l.PublicIPs, hasAddress) || slices.ContainsFunc(l.Subnets, hasSubnet)
	})
}

// isLostFlannelHost reports whether the store has lost the record of a host that runs flannel.
func (k *known) isLostFlannelHost() bool { return k.missing() && k.lost && k.foreign && k.err == nil }

// lostRecord says what an operator can do about the lost record of a host that runs flannel.
func (k *known) lostRecord() registry.BadRecord {
	return registry.BadRecord{Key: k.record.key, Reason: fmt.Sprintf(
		"the store has lost it, and flanneld on %s may not write it again for a day: restart flanneld there; its routes stay until %s",
		k.lease.PublicIPs[0], k.since.Add(flannelLeaseTime).UTC().Format(time.RFC3339))}
}
