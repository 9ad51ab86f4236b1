package consul

import (
	"bytes"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/consul/changelog"
	"github.com/lenonet/leno/registry/consul/keys"
)

// evidence is what is known about the next list before it is read.
type evidence struct {
	setBack     bool // the directory of changes shows that the store was set back
	suspectLoss bool // records missing from the list may have been lost, without any other sign
}

// use makes n the network whose records are parsed. The caller holds f.mu.
func (f *follower) use(n registry.Network) {
	same := f.network.Name == n.Name && slices.Equal(f.network.Plan, n.Plan)
	f.network = n
	f.belief.SetBackend(n.Backend.Type)
	if !same {
		f.belief.Reparse(func(r *belief.Record) *belief.Record {
			now := f.parse(r.Key, r.Value)
			l := r.Lease
			now.Lease.Session, now.Lease.CreateIndex, now.Lease.ModifyIndex = l.Session, l.CreateIndex, l.ModifyIndex
			return now
		})
	}
}

// parse parses the value of a record below the prefix of the leases.
func (f *follower) parse(key string, value []byte) *belief.Record {
	return parseRecord(f.network, f.leases, &api.KVPair{Key: key, Value: value})
}

// parseRecord parses a pair below prefix.
func parseRecord(n registry.Network, prefix string, pair *api.KVPair) *belief.Record {
	r := &belief.Record{Key: pair.Key, Value: registry.Bounded(pair.Value)}
	if r.Lease, r.Err = registry.ParseLease(n, pair.Key[len(prefix):], pair.Value); r.Err != nil {
		readable := registry.ReadableLease(pair.Value)
		r.Lease = registry.Lease{NodeID: readable.NodeID, Backend: registry.Backend{Type: readable.Backend.Type}}
	}
	r.Lease = stored(r.Lease, pair)
	return r
}

// record returns the record in a pair, parsed once for each value.
func (f *follower) record(pair *api.KVPair) *belief.Record {
	r := f.belief.Record(pair.Key)
	if r == nil || !bytes.Equal(r.Value, pair.Value) {
		return parseRecord(f.network, f.leases, pair)
	}
	l := stored(r.Lease, pair)
	if l.Session == r.Lease.Session && l.CreateIndex == r.Lease.CreateIndex && l.ModifyIndex == r.Lease.ModifyIndex {
		return r
	}
	copied := *r
	copied.Lease = l
	return &copied
}

// changesOf returns what entries of the directory announce.
func (f *follower) changesOf(entries []changelog.Change) []belief.Change {
	out := make([]belief.Change, len(entries))
	for i, ch := range entries {
		out[i] = belief.Change{Key: f.leases + ch.Subnet, Index: ch.Index, Later: ch.Has(changelog.FlagManual)}
		if len(ch.Value) > 0 {
			r := f.parse(out[i].Key, ch.Value)
			r.Lease = belief.Announced(r.Lease, ch.Index, !ch.Has(changelog.FlagUnheld))
			out[i].Record = r
		}
	}
	return out
}

// newList returns Consul's answer to one read of the whole tree.
func (f *follower) newList(pairs api.KVPairs, index uint64) belief.List {
	l := belief.List{Records: make(map[string]*belief.Record, len(pairs)), Index: index}
	for _, p := range pairs {
		if p.Key == f.leases+keys.Marker {
			l.Marker = p.CreateIndex
		} else {
			l.Records[p.Key] = f.record(p)
		}
	}
	return f.judge(l)
}

// judge adds to a list what the store shows of itself.
func (f *follower) judge(l belief.List) belief.List {
	suspect := f.mayBeSetBack(l)
	l.Hint = suspect
	l.Removed = func(r *belief.Record) bool {
		_, isMissing := f.belief.Missing()[r.Key]
		return !isMissing && !suspect
	}
	l.SetBack = suspect && f.belief.IsSetBack(l, f.evidence.setBack)
	return l
}

// mayBeSetBack reports whether the list may be of a tree that was emptied and written again, or set back to an earlier
// state. The index alone does not prove that: a deletion raises it, and 15 minutes later it falls again.
func (f *follower) mayBeSetBack(l belief.List) bool {
	return l.Marker != f.belief.Marker() || l.Index < f.belief.Index() || f.evidence.setBack || f.evidence.suspectLoss
}

// isDoubtful reports whether a list must be confirmed by a second, consistent read and by a read of the marker alone.
func (f *follower) isDoubtful(l belief.List) bool {
	if l.Marker == 0 {
		return true
	}
	lacking, of := f.belief.Lacks(l.Records)
	return lacking > 0 && (f.mayBeSetBack(l) || 2*(of-lacking) < of)
}

// accept makes a confirmed list the known state.
func (f *follower) accept(l belief.List) {
	f.belief.Accept(l, time.Now(), belief.Options{Settle: time.Duration(f.settle.Load())})
	f.evidence.setBack, f.evidence.suspectLoss = false, false
}
