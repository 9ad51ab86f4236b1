package consul

import (
	"bytes"
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// view contains the leases of one tree, parsed and sorted. A read of the tree brings every record or a few, and seldom
// a new one. Parsing a record costs more than everything else done with it, so each record is parsed once.
type view struct {
	mu      sync.Mutex
	network registry.Network
	records map[string]*record // by key
	order   []*record          // usable ones, by slot
	bad     int
	kept    bool // some records were kept when the view was last updated
}

type record struct {
	key   string
	value []byte
	lease registry.Lease
	err   error
}

// isOf reports whether the view was parsed with the plan of n.
func (v *view) isOf(n registry.Network) bool {
	return v.records != nil && v.network.Name == n.Name && slices.Equal(v.network.Plan, n.Plan)
}

// reset drops what was parsed with another plan, and reports whether the plan is still the same.
func (v *view) reset(n registry.Network) (same bool) {
	if v.isOf(n) {
		return true
	}
	v.network, v.records, v.order, v.bad = n, map[string]*record{}, nil, 0
	return false
}

// usable returns the number of leases in the view.
func (v *view) usable() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.order)
}

// holdersOf returns the keys of the usable records of hosts with the given node ids, each with its host's.
func (v *view) holdersOf(ids map[string]int) map[string]string {
	if len(ids) == 0 {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	out := map[string]string{}
	for _, r := range v.order {
		if _, wanted := ids[r.lease.NodeID]; wanted {
			out[r.key] = r.lease.NodeID
		}
	}
	return out
}

// parse parses a pair, or reuses the earlier result.
func (v *view) parse(prefix string, pair *api.KVPair) *record {
	r := &record{key: pair.Key}
	if old := v.records[pair.Key]; old != nil && bytes.Equal(old.value, pair.Value) {
		r.value, r.lease, r.err = old.value, old.lease, old.err
	} else {
		r.value = pair.Value // which the belief keeps as well
		r.lease, r.err = registry.ParseLease(v.network, pair.Key[len(prefix):], r.value)
	}
	r.lease = stored(r.lease, pair)
	return r
}

// read parses one list of leases of n, without the marker and independently of what the view shows. The leases share
// memory with others.
func (v *view) read(n registry.Network, prefix string, pairs []*api.KVPair) []*record {
	v.mu.Lock()
	defer v.mu.Unlock()
	cache := v
	if v.records != nil && !v.isOf(n) {
		cache = &view{network: n}
	} else {
		v.reset(n)
	}
	out := make([]*record, len(pairs))
	for i, pair := range pairs {
		out[i] = cache.parse(prefix, pair)
	}
	return out
}

// leases returns what a belief shows, while its follower is locked: all leases sorted by slot, and the records that
// had to be skipped. Of the kept records it shows the latest of each host, unless the host has written another one
// since. An earlier record of the host, which a restore brought back, tells less than what was known.
func (v *view) leases(n registry.Network, b *belief) registry.LeaseSet {
	v.mu.Lock()
	defer v.mu.Unlock()
	same := v.reset(n)
	if !same || v.kept || len(b.kept) > 0 || 4*len(b.touched) > len(b.known) {
		v.rebuild(b)
	} else {
		for key := range b.touched {
			v.update(b.prefix, key, b.known[key])
		}
	}
	v.kept = len(b.kept) > 0
	clear(b.touched)

	set := registry.LeaseSet{SetBack: b.setBack}
	if len(v.order) > 0 {
		set.Leases = make([]registry.Lease, len(v.order))
	}
	for i, r := range v.order {
		set.Leases[i] = r.lease
		kept, isKept := b.kept[r.key]
		set.Leases[i].Missing, set.Leases[i].Lost = isKept, isKept && kept.certain && kept.older == nil
	}
	if v.bad > 0 {
		for _, r := range v.records {
			if r.err != nil {
				set.Bad = append(set.Bad, badRecord(r.key, r.err))
			}
		}
		slices.SortFunc(set.Bad, func(x, y registry.BadRecord) int { return cmp.Compare(x.Key, y.Key) })
	}
	return set
}

// rebuild rebuilds the view from all known records.
func (v *view) rebuild(b *belief) {
	next := make(map[string]*record, len(b.known))
	here := map[string]uint64{} // by node id, a lower bound of the index at which the host last wrote a stored record
	v.order, v.bad = v.order[:0], 0
	for key, pair := range b.known {
		r := v.parse(b.prefix, pair)
		next[key] = r
		if _, kept := b.kept[key]; kept || r.err != nil {
			continue
		}
		written := r.lease.ModifyIndex
		if !r.lease.Held() {
			written = r.lease.CreateIndex // the last write was by the store, when the lease lapsed
		}
		here[r.lease.NodeID] = max(here[r.lease.NodeID], written)
	}
	latest := map[string]*record{} // by node id, of those that are kept
	for key, r := range next {
		kept, isKept := b.kept[key]
		switch {
		case r.err != nil && isKept:
		case r.err != nil:
			v.bad++
		case !isKept:
			v.order = append(v.order, r)
		default:
			if since, elsewhere := here[r.lease.NodeID]; elsewhere && since >= r.lease.ModifyIndex && !kept.replaced {
				kept.replaced = true
				if kept.older != nil { // the record that is there counts
					kept.until = time.Now()
				}
				b.kept[key] = kept
			}
			if other := latest[r.lease.NodeID]; !kept.replaced && (other == nil || b.isKeptLater(r, other)) {
				latest[r.lease.NodeID] = r
			}
		}
	}
	for _, r := range latest {
		v.order = append(v.order, r)
	}
	v.records = next
	slices.SortFunc(v.order, bySlot)
}

// isKeptLater reports whether r, of two kept records of one host, is the later one: of a later tree, else held when it
// was lost, else written later.
func (b *belief) isKeptLater(r, other *record) bool {
	x, y := b.kept[r.key], b.kept[other.key]
	if x.recreated != y.recreated {
		return x.recreated > y.recreated
	}
	if r.lease.Held() != other.lease.Held() {
		return r.lease.Held()
	}
	return x.index > y.index
}

func bySlot(a, b *record) int { return cmp.Compare(a.lease.Slot, b.lease.Slot) }

// update updates one record; pair is nil when it was deleted.
func (v *view) update(prefix, key string, pair *api.KVPair) {
	if old := v.records[key]; old != nil {
		if old.err != nil {
			v.bad--
		} else if i, ok := slices.BinarySearchFunc(v.order, old, bySlot); ok {
			v.order = slices.Delete(v.order, i, i+1)
		}
	}
	if pair == nil {
		delete(v.records, key)
		return
	}
	r := v.parse(prefix, pair)
	v.records[key] = r
	if r.err != nil {
		v.bad++
		return
	}
	i, _ := slices.BinarySearchFunc(v.order, r, bySlot)
	v.order = slices.Insert(v.order, i, r)
}
