// Package belief decides what is believed of the leases and the definition of one network, whatever the store says of
// itself. It is pure: its input is what was observed, and it makes no requests. All stores and hosts use it, and these
// are its rules.
//
// What a client believes of the store (Belief):
//
//  1. A record that a list contains is as the list says, unless rule 5 applies. Of records with a subnet in common only
//     the oldest counts, held or not (Disown).
//  2. A record that a list lacks was removed only if that is known: the store is the same one, it has continued from
//     its last known state, and the store shows the removal or cannot hide one. Otherwise the record is missing, and
//     its lease stays.
//  3. The store was re-created if the network's marker was, and set back if an index, a record or the store itself is
//     of an earlier state than one that a list has shown. What was missed of such a store is lost for certain (Lost),
//     and may be restored. A hint alone, such as a directory of changes that anyone can edit, proves neither.
//  4. A missing record is given up when its host has had time to write it again (settle). Each further loss starts that
//     time again. A host that runs flannel writes its record once a day and has a day.
//  5. A record that a snapshot has brought back does not replace a later one that was known, until its host writes or
//     locks it, which shows that the host runs. It does if both say the same, if the later host had gone and another
//     one holds the subnet, or if only the earlier one has the type of the network's backend. If its session ends
//     before that, the host is away, and stays known as it was, lapsed, until the earlier record is removed.
//  6. In a new tree every writer is running now, so any record there replaces a missing one: the indexes of two trees
//     are not compared. A tree is new if its marker has a higher index than before: one with a lower index may be an
//     earlier tree that is back, so rule 5 applies, also in a store that was rebuilt and counts from the start.
//  7. A missing record is shown unless another record has the same subnet, whatever else its host seems to have
//     written.
//  8. An announced change only says where to look: the record is read, and must say the same (Unproven). Only the first
//     record of a host is shown without that, until the next list, because each host that starts would otherwise be
//     read by all others: 100 million records if 10,000 start. It proves nothing about the store.
//
// What a host believes of the others:
//
//  9. Who wrote a record is not known: anyone can name another host, and use its session, which is no secret. So no
//     record takes anything from another one. A host removes its other records itself.
//  10. Of two records with the same key or MAC address, the one that had it first counts (Seniority), whichever is
//     held, is written again or names other addresses.
//  11. A lease that the store has lost for certain is restored for its host, as lapsed, or as flanneld wrote it, unless
//     the host does it itself, or the store shows an earlier one of it as held (Restorable).
//  12. A lease that an earlier process knew, and the store lacks, stays until its host has had time to write it again,
//     or a later record is about the same host, name, address or subnet (Remembered).
//
// What a host believes of a network's definition (Definition):
//
//  13. A network ends only by a deletion that names the known definition, or one that replaced it: a network that is
//     defined in place of a deleted one replaces that. Without revisions, a later index in the same record decides. A
//     definition that is missing without a deletion was lost, and stays in force. It was not if this host knows it from
//     another location of a store.
//  14. The definition in the store counts, unless the known one is later. It is if it has replaced the stored one, or
//     both are changes of the same definition and it is of a higher generation (registry.Lineage).
//  15. Of two changes of the same generation, made without knowing each other, the stored one counts, and the other one
//     has no effect when it comes back.
//  16. If the lineage tells nothing, the indexes of one record do, if this process has read both. A new host's
//     configuration in a new record replaces nothing.
//  17. What an earlier process wrote down counts as known for as long as the store keeps deletions.
//
// Rules about claims are in registry.Choose and in registry/claim.
//
// A Belief is not safe for concurrent use.
package belief

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/lenonet/leno/registry"
)

// Record is one record about a lease. It is immutable.
type Record struct {
	Key   string
	Value []byte // as stored
	// Lease is what the value says, with the session and the indexes of the store. Of an unusable record it has at
	// least these, and the node id and the type of the backend if they can be read.
	Lease registry.Lease
	Err   error // why the record is unusable, nil otherwise
}

// List is all records of a network at one moment, and what is known of how they came about.
type List struct {
	Records map[string]*Record // by key. The belief keeps the map
	Index   uint64             // the store's index of the list, or of the last change in it
	Marker  uint64             // the index at which the network's marker was created, 0 for none
	SetBack bool               // the store is certain to have been set back since the last list
	Hint    bool               // it may have been, as something says that is no proof
	// Removed reports whether it is known that a record that the list lacks was removed.
	Removed func(*Record) bool
}

// Options are how long a missing record is kept.
type Options struct {
	Settle  time.Duration
	Foreign time.Duration // if its host runs flannel; 0 for Settle
}

// Belief is what a client believes of the leases of one network. The zero value knows nothing and is ready.
type Belief struct {
	backend string        // the type in the network's definition, "" while it is not known
	foreign time.Duration // Options.Foreign of the last list
	tree    tree
	known   map[string]*Record // including missing ones
	missing map[string]Missing // records that the store does not have as they are known
	shown   shown
}

// tree is the state of the store that is known.
type tree struct {
	marker  uint64
	index   uint64
	listed  uint64 // the index of the last list
	isWhole bool   // nothing was applied since that list
	setBack uint64 // how often the store was re-created or set back
}

// Missing is the state of a known record that the store does not have as it is known.
type Missing struct {
	Since, Until time.Time // when it was found to be missing, and when it is given up

	marker uint64  // of the tree in which the record was stored
	index  uint64  // its ModifyIndex there; that of the known record is 0 once the tree was re-created
	older  *Record // what a snapshot has brought back instead, nil for nothing
	lost   bool    // for certain
}

// isOlder reports whether a record is the older one, held as it was or lapsed.
func (m Missing) isOlder(stored *Record) bool {
	return m.older != nil && bytes.Equal(stored.Value, m.older.Value) &&
		(!stored.Lease.Held() || stored.Lease.Session == m.older.Lease.Session)
}

// IsLost reports whether the store has certainly lost the record and has nothing in its place.
func (m Missing) IsLost() bool { return m.lost && m.older == nil }

// SetBackend sets the type of the network's backend.
func (b *Belief) SetBackend(kind string) { b.backend = kind }

// Empty reports whether no list was accepted yet.
func (b *Belief) Empty() bool { return b.shown.index == 0 }

// Marker returns the marker of the last list.
func (b *Belief) Marker() uint64 { return b.tree.marker }

// Index returns the highest index that a list or a read has shown.
func (b *Belief) Index() uint64 { return b.tree.index }

// IsAt reports whether all that is known is from a list at an index.
func (b *Belief) IsAt(index uint64) bool { return b.tree.isWhole && b.tree.listed == index }

// Len returns the number of known records.
func (b *Belief) Len() int { return len(b.known) }

// Records returns the known records by key, including missing ones. The caller must not change the map.
func (b *Belief) Records() map[string]*Record { return b.known }

// Record returns the known record with a key, nil for none.
func (b *Belief) Record(key string) *Record { return b.known[key] }

// Missing returns the missing records by key. The caller must not change the map.
func (b *Belief) Missing() map[string]Missing { return b.missing }

// Due returns when the first missing record may be given up, or the zero time if there is none.
func (b *Belief) Due() time.Time {
	var first time.Time
	for _, m := range b.missing {
		if first.IsZero() || m.Until.Before(first) {
			first = m.Until
		}
	}
	return first
}

// Accept makes a list that was read at a time the known state.
func (b *Belief) Accept(l List, now time.Time, o Options) {
	recreated := b.tree.marker != 0 && l.Marker != b.tree.marker
	lost := !b.Empty() && (recreated || l.SetBack)
	visible := b.Empty() || lost
	b.foreign = o.Foreign
	if lost {
		b.tree.setBack++
	}
	before, after := b.missing, map[string]Missing{}
	kept := map[string]*Record{} // in place of what the list has
	for key, r := range b.known {
		m, wasMissing := before[key]
		stored := l.Records[key]
		if !wasMissing {
			m = Missing{Since: now, marker: b.tree.marker, index: r.Lease.ModifyIndex}
		}
		latest := now.Add(o.Settle + o.Settle/4)
		// Another loss starts the time again, even a finished one: this process may have been suspended.
		if !wasMissing || lost || l.Hint || m.Until.After(latest) {
			m.Until = now.Add(o.Settle)
		}
		switch isOlder := stored != nil && b.isOlder(r, m, stored, (lost || l.Hint) && l.Marker <= m.marker); {
		case stored != nil && !isOlder, stored == nil && l.Removed(r):
			continue
		case isOlder:
			m.older = stored
		default:
			m.older = nil
		}
		m.lost = m.lost || lost
		if !now.Before(m.Until) {
			var ok bool
			if m, r, ok = prolong(m, r, l, now, o); !ok {
				continue
			}
		}
		if recreated && r.Lease.ModifyIndex != 0 {
			copied := *r
			copied.Lease.ModifyIndex = 0
			r = &copied
		}
		kept[key], after[key] = r, m
	}
	maps.Copy(l.Records, kept)
	b.missing = after
	b.tree.marker, b.tree.index, b.tree.listed, b.tree.isWhole = l.Marker, l.Index, l.Index, true
	visible = b.replaceAll(l.Records, before) || visible
	if visible {
		b.raise()
	}
}

// isOlder reports whether a record is an older one than the known one in its place, which stays. isBack means that
// the list is of a store that was set back, not of a new tree.
func (b *Belief) isOlder(r *Record, m Missing, stored *Record, isBack bool) bool {
	if !m.isOlder(stored) && (!isBack || stored.Lease.ModifyIndex >= m.index) {
		return false // written since
	}
	return !bytes.Equal(stored.Value, r.Value) && r.Lease.Outranks(stored.Lease, b.backend)
}

// prolong returns a missing record whose time has passed with more time, or false if it is given up.
func prolong(m Missing, r *Record, l List, now time.Time, o Options) (Missing, *Record, bool) {
	switch stored := l.Records[r.Key]; {
	case stored != nil && !stored.Lease.Held():
		copied := *r // the older record says how long the host has been away
		lease := &copied.Lease
		lease.Session, lease.CreateIndex, lease.ModifyIndex = "", stored.Lease.CreateIndex, stored.Lease.ModifyIndex
		r = &copied
	case stored == nil && r.Lease.Foreign && now.Sub(m.Since) < o.Foreign && !isReplaced(r.Lease, l):
		m.lost = true
	default:
		return m, r, false
	}
	m.Until = now.Add(o.Settle + rand.N(o.Settle/4+1)) // not on all hosts at the same time
	return m, r, true
}

// isReplaced reports whether a list has another record about the host or the subnets of a lease.
func isReplaced(l registry.Lease, list List) bool {
	hasAddress := func(a netip.Addr) bool { return slices.Contains(l.PublicIPs, a) }
	hasSubnet := func(p netip.Prefix) bool { return slices.Contains(l.Subnets, p) }
	for _, r := range list.Records {
		if slices.ContainsFunc(r.Lease.PublicIPs, hasAddress) || slices.ContainsFunc(r.Lease.Subnets, hasSubnet) {
			return true
		}
	}
	return false
}

// Lacks returns how many known records a list lacks, except those that are missing already, of how many.
func (b *Belief) Lacks(records map[string]*Record) (lacking, of int) {
	for key := range b.known {
		if _, isMissing := b.missing[key]; records[key] == nil && !isMissing {
			lacking++
		}
	}
	return lacking, len(b.known) - len(b.missing)
}

// IsSetBack reports whether a list is of an earlier state of the tree than the known one: records that a list or a read
// has shown have a lower index, or records have appeared at an earlier index. suspected means that there is another
// sign, of which missing records are the proof.
func (b *Belief) IsSetBack(l List, suspected bool) bool {
	for key, r := range b.known {
		stored := l.Records[key]
		m, isMissing := b.missing[key]
		switch {
		case isMissing && m.older != nil && stored != nil && stored.Lease.ModifyIndex < m.older.Lease.ModifyIndex:
			return true
		case isMissing, r.Lease.Session == registry.UnknownSession:
			continue
		}
		if stored != nil && stored.Lease.ModifyIndex < r.Lease.ModifyIndex || stored == nil && suspected && !l.Removed(r) {
			return true
		}
	}
	for key, r := range l.Records {
		if b.known[key] == nil && r.Lease.ModifyIndex <= b.tree.listed {
			return true
		}
	}
	return false
}

// Unconfirmed returns the known records that a list lacks, although they are not known to have been removed: their
// hosts may be about to write them again.
func (b *Belief) Unconfirmed(l List) []*Record {
	var out []*Record
	for key, r := range b.known {
		if l.Records[key] == nil && !l.Removed(r) {
			out = append(out, r)
		}
	}
	return out
}
