package belief

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/lenonet/leno/registry"
)

// shown is what callers see: usable records sorted by slot, and how many are unusable.
type shown struct {
	index   uint64 // that callers get, 0 before the first list
	order   []*Record
	bad     int
	isStale bool // records may be other ones by now
}

// Version returns the index of what callers see, 0 before the first list. It is never reused for other content,
// whatever a restore does to the store's index.
func (b *Belief) Version() uint64 { return b.shown.index }

// Usable returns the number of leases that callers were shown last.
func (b *Belief) Usable() int { return len(b.shown.order) }

func (b *Belief) raise() { b.shown.index = max(b.tree.index, b.shown.index+1) }

// differs reports whether callers see a difference between two versions of a record. They see none when only the
// session changes, or when the record is written again with the same value.
func differs(old, now *Record) bool {
	if old == now {
		return false
	}
	return old == nil || old.Lease.CreateIndex != now.Lease.CreateIndex || !bytes.Equal(old.Value, now.Value) ||
		old.Lease.Held() != now.Lease.Held() || old.Lease.Slot != now.Lease.Slot || (old.Err == nil) != (now.Err == nil) ||
		// The backend of a host with flannel depends on the network.
		!bytes.Equal(old.Lease.Backend.Object, now.Lease.Backend.Object)
}

// replaceAll makes records the known ones, and reports whether callers see a difference. before are the records that
// were missing until now.
func (b *Belief) replaceAll(records map[string]*Record, before map[string]Missing) (visible bool) {
	for key := range b.known {
		visible = visible || records[key] == nil
	}
	for key, r := range records {
		old := b.known[key]
		was, wasMissing := before[key]
		is, isMissing := b.missing[key]
		visible = visible || differs(old, r) || wasMissing != isMissing || was.IsLost() != is.IsLost()
	}
	b.known, b.shown.isStale = records, true
	return visible
}

// Reparse replaces every known record by what parse makes of it: the network has another plan or backend.
func (b *Belief) Reparse(parse func(*Record) *Record) {
	visible := false
	for key, r := range b.known {
		b.known[key] = parse(r)
		visible = visible || differs(r, b.known[key])
	}
	b.shown.isStale = true
	if visible {
		b.raise()
	}
}

// Leases returns the leases, sorted by slot, and the records that were skipped, sorted by key.
func (b *Belief) Leases() registry.LeaseSet {
	if b.shown.isStale {
		b.rebuild()
	}
	set := registry.LeaseSet{SetBack: b.tree.setBack}
	if len(b.shown.order) > 0 {
		set.Leases = make([]registry.Lease, len(b.shown.order))
	}
	for i, r := range b.shown.order {
		set.Leases[i] = r.Lease
		if m, ok := b.missing[r.Key]; ok {
			set.Leases[i].Missing, set.Leases[i].Lost = true, m.IsLost()
		}
	}
	if b.shown.bad > 0 {
		for key, r := range b.known {
			if _, isMissing := b.missing[key]; r.Err != nil && !isMissing {
				reason := registry.Shorten(r.Err.Error(), registry.MaxShownReason)
				set.Bad = append(set.Bad, registry.BadRecord{Key: key, Reason: reason})
			}
		}
	}
	for key, m := range b.missing {
		if l := b.known[key].Lease; m.IsLost() && l.Foreign && b.foreign > 0 {
			set.Bad = append(set.Bad, registry.BadRecord{Key: key, Reason: fmt.Sprintf(
				"the store has lost it, and flanneld on %s may not write it again for a day: a host with leno "+
					"restores it within a minute; if none does, restart flanneld there; its routes stay until %s",
				l.PublicIPs[0], m.Since.Add(b.foreign).UTC().Format(time.RFC3339))})
		}
	}
	slices.SortFunc(set.Bad, func(x, y registry.BadRecord) int { return cmp.Compare(x.Key, y.Key) })
	return set
}

// rebuild determines what callers see from all known records.
func (b *Belief) rebuild() {
	s := &b.shown
	s.order, s.bad, s.isStale = make([]*Record, 0, len(b.known)), 0, false
	taken := map[netip.Prefix]bool{}
	for key, r := range b.known {
		_, isMissing := b.missing[key]
		switch {
		case isMissing:
		case r.Err != nil:
			s.bad++
		default:
			s.order = append(s.order, r)
			taken[r.Lease.Subnet()] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(b.missing)) {
		if r := b.known[key]; r.Err == nil && !taken[r.Lease.Subnet()] {
			s.order = append(s.order, r)
			taken[r.Lease.Subnet()] = true
		}
	}
	slices.SortFunc(s.order, func(a, b *Record) int {
		return cmp.Or(cmp.Compare(a.Lease.Slot, b.Lease.Slot), cmp.Compare(a.Key, b.Key))
	})
}
