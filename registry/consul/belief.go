package consul

import (
	"bytes"
	"math/rand/v2"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/changelog"
)

// belief is what a client believes the leases of one network to be. It judges lists: a record that is missing from a
// list is given up only when the tree is known to be the same one and to have continued from its last known state. It
// makes no requests, and is not safe for concurrent use.
type belief struct {
	prefix  string // of the records' keys, with a trailing slash
	backend string // the type in the network's definition, "" while it is not known

	version   uint64                 // the index that callers get, 0 before the first list
	index     uint64                 // Consul's index of the known state
	listed    uint64                 // Consul's index of the last list
	marker    uint64                 // CreateIndex of the marker, 0 when there was none
	known     map[string]*api.KVPair // the records of version, including kept ones
	kept      map[string]keptRecord  // records that the store lost when it was emptied or set back
	recreated uint64                 // how often the store re-created the tree
	setBack   uint64                 // how often the tree was re-created or set back
	touched   map[string]bool        // keys that changed since the view was last updated
	evidence  evidence
}

// evidence is what is known about the next list before it is read.
type evidence struct {
	setBack     bool              // the directory of changes shows that the store was set back
	suspectLoss bool              // records missing from the list may have been lost, without any other sign
	changes     map[string]uint64 // by subnet, the last change in the directory when all leases were read last
}

// keptRecord describes a record that the store has lost. The record itself has ModifyIndex 0 once the tree was
// re-created, so its index is kept here.
type keptRecord struct {
	until     time.Time // the record is kept until then
	recreated uint64    // the value of the belief's recreated when the record was stored
	index     uint64    // its ModifyIndex then
	// older is what is there instead since the store was set back, nil for nothing. Its memory is its own.
	older    *api.KVPair
	replaced bool // its host has written another one since
	certain  bool // the store has lost it; otherwise it is only missing
}

func newBelief(prefix string) belief {
	return belief{
		prefix:  prefix,
		known:   map[string]*api.KVPair{},
		kept:    map[string]keptRecord{},
		touched: map[string]bool{},
	}
}

// list is Consul's answer to one read of the whole tree.
type list struct {
	pairs  map[string]*api.KVPair // without the marker
	marker uint64                 // CreateIndex, 0 when it is missing
	index  uint64
}

func (b *belief) newList(pairs api.KVPairs, index uint64) list {
	l := list{pairs: make(map[string]*api.KVPair, len(pairs)), index: index}
	for _, p := range pairs {
		if p.Key == b.prefix+markerName {
			l.marker = p.CreateIndex
		} else {
			l.pairs[p.Key] = p
		}
	}
	return l
}

// missing returns how many known records a list lacks, except those that are already kept.
func (b *belief) missing(l list) int {
	n := 0
	for key := range b.known {
		if _, kept := b.kept[key]; l.pairs[key] == nil && !kept {
			n++
		}
	}
	return n
}

// isLost reports whether a list lacks a known record, or has an older one in its place, from the time when a snapshot
// was saved. A record with a later change in the directory is not lost. In a re-created tree every writer is running
// now; earlier indexes, which cannot be compared, are 0 there. An earlier tree has come back with a snapshot, unless it is
// that of a new cluster: a record that differs there is lost until it is written again. The end of an older record's
// session is no evidence, because it needs no host.
func (b *belief) isLost(l list, key string) bool {
	old, now := b.known[key], l.pairs[key]
	kept, isKept := b.kept[key]
	switch {
	case isKept && kept.isOlder(now):
		return b.outranks(old, now)
	case b.evidence.changes[lastComponent(key)] > old.ModifyIndex:
		return false
	case now == nil:
		return true
	}
	return l.marker <= b.marker && now.ModifyIndex < old.ModifyIndex && b.outranks(old, now)
}

// isOlder reports whether a record is the older one that is there instead of the kept one, held as it was or lapsed. A host
// that has locked it with another session runs.
func (k keptRecord) isOlder(now *api.KVPair) bool {
	return k.older != nil && now != nil && bytes.Equal(now.Value, k.older.Value) &&
		(now.Session == "" || now.Session == k.older.Session)
}

// outranks reports whether a known record stays in place of one with a lower index. It need not if they say the same.
func (b *belief) outranks(old, now *api.KVPair) bool {
	leaseIn := func(p *api.KVPair) registry.Lease {
		kind := registry.Backend{Type: registry.BackendTypeOf(p.Value)}
		return registry.Lease{NodeID: registry.NodeIDOf(p.Value), Session: p.Session, Backend: kind}
	}
	return !bytes.Equal(now.Value, old.Value) && leaseIn(old).Outranks(leaseIn(now), b.backend)
}

// mayBeSetBack reports whether the list may be of a tree that was emptied and written again, or set back to an earlier
// state. The index alone does not prove that: a deletion raises it, and 15 minutes later it falls again.
func (b *belief) mayBeSetBack(l list) bool {
	return l.marker != b.marker || l.index < b.index || b.evidence.setBack || b.evidence.suspectLoss
}

// isOlder reports whether a list is of an earlier state of the tree than the known one: records that a list or a read has
// shown are missing or have a lower index, or records have appeared at an earlier index. The directory of changes alone
// proves nothing, because its entries can be deleted by hand.
func (b *belief) isOlder(l list) bool {
	for key, old := range b.known {
		if _, kept := b.kept[key]; kept || old.Session == registry.UnknownSession {
			continue
		}
		now := l.pairs[key]
		if now != nil && now.ModifyIndex < old.ModifyIndex || now == nil && b.isLost(l, key) {
			return true
		}
	}
	for key, now := range l.pairs {
		if b.known[key] == nil && now.ModifyIndex <= b.listed {
			return true
		}
	}
	return false
}

// isDoubtful reports whether a list must be confirmed by a second, consistent read and by a read of the marker alone.
func (b *belief) isDoubtful(l list) bool {
	if l.marker == 0 {
		return true
	}
	missing := b.missing(l)
	if missing == 0 {
		return false
	}
	before := len(b.known) - len(b.kept)
	return b.mayBeSetBack(l) || 2*(before-missing) < before
}

// accept makes a confirmed list the known state. Records that it has lost are kept until the given time, and in place of
// older ones that have lapsed until those are removed.
func (b *belief) accept(l list, until time.Time) {
	differs := b.version == 0
	var lost map[string]bool // now
	if !differs && b.mayBeSetBack(l) {
		if l.marker != b.marker || b.evidence.setBack && b.isOlder(l) {
			b.setBack++
			differs = true
		}
		lost = b.keepLost(l, until)
	}
	now := time.Now()
	for key, kept := range b.kept {
		stored := l.pairs[key]
		switch {
		case !lost[key] && !b.isLost(l, key):
		case now.Before(kept.until):
			l.pairs[key] = b.known[key]
			continue
		case stored != nil && stored.Session == "" && kept.isOlder(stored) && !kept.replaced:
			// The host is away, and is still reached as it was known. The older record says how long it has been away.
			kept.until = until.Add(rand.N(max(until.Sub(now)/4, 1))) // not on all hosts at the same time
			b.kept[key] = kept
			pair := *stored
			pair.Value = b.known[key].Value
			l.pairs[key] = &pair
			continue
		}
		delete(b.kept, key)
		b.touched[key] = true
	}
	for key := range b.known {
		if l.pairs[key] == nil {
			b.touched[key], differs = true, true
		}
	}
	for key, pair := range l.pairs {
		shareMemory(b.known[key], pair, b.listed != 0)
		touched, visible := compare(b.known[key], pair)
		if touched {
			b.touched[key] = true
		}
		differs = differs || visible
	}
	b.known, b.marker, b.index, b.listed = l.pairs, l.marker, l.index, l.index
	b.evidence.setBack, b.evidence.suspectLoss = false, false
	if differs {
		b.raiseVersion()
	}
}

// keepLost keeps the records that a list has lost, when its tree may have been set back. Another loss keeps those of an
// earlier one for longer, even if their time has passed: this process may have been suspended in between, while their
// hosts wrote them again. It returns the keys of the records that it keeps from now on.
func (b *belief) keepLost(l list, until time.Time) (lost map[string]bool) {
	lost = map[string]bool{}
	certain := l.marker != b.marker || b.isOlder(l)
	again := l.marker != b.marker || b.evidence.setBack
	for key, known := range b.known {
		kept, isKept := b.kept[key]
		now := l.pairs[key]
		switch {
		case isKept && !again, !isKept && !b.isLost(l, key):
			continue
		case isKept:
			kept.until = until
		default:
			kept = keptRecord{until: until, recreated: b.recreated, index: known.ModifyIndex}
			b.touched[key], lost[key] = true, true
		}
		if now != nil && l.marker <= b.marker && now.ModifyIndex < kept.index && b.outranks(known, now) {
			kept.older = &api.KVPair{Value: cloneValue(now.Value), Session: now.Session}
		}
		kept.certain = kept.certain || certain
		b.kept[key] = kept
	}
	if l.marker == b.marker {
		return lost
	}
	b.recreated++
	for key := range b.kept {
		pair := *b.known[key]
		pair.ModifyIndex = 0
		b.known[key] = &pair
	}
	return lost
}

// apply applies entries of the directory to the known state, and then what Consul said of the records that were read to
// verify them, by key: they say which session holds a record, which entries do not.
func (b *belief) apply(changes []changelog.Change, verified map[string]*api.KVPair) {
	differs := false
	for _, ch := range changes {
		key := b.prefix + ch.Subnet
		old := b.known[key]
		lost, kept := b.kept[key]
		switch {
		case old != nil && ch.Index <= old.ModifyIndex && (!kept || ch.Index <= b.listed), !kept && ch.Index <= b.listed:
			continue // the list was read after that change
		case kept && ch.Has(changelog.FlagManual) && (ch.IsRemoval() || lost.older != nil && bytes.Equal(ch.Value, lost.older.Value)):
			continue // the record is known to be missing, or an older one to be there, but the reason is in doubt
		}
		if !ch.Has(changelog.FlagManual) {
			b.index = max(b.index, ch.Index)
		}
		if kept {
			delete(b.kept, key)
			b.touched[key] = true
		}
		if ch.IsRemoval() {
			if old != nil {
				delete(b.known, key)
				b.touched[key], differs = true, true
			}
			continue
		}
		differs = b.learn(recordOf(key, ch, old)) || differs
	}
	for key, pair := range verified {
		if _, kept := b.kept[key]; kept || b.known[key] == nil || !bytes.Equal(pair.Value, b.known[key].Value) {
			continue
		}
		shareMemory(b.known[key], pair, true)
		differs = b.learn(pair) || differs
	}
	if differs {
		b.raiseVersion()
	}
}

// learn makes a record a known one, and reports whether callers see a difference.
func (b *belief) learn(pair *api.KVPair) (visible bool) {
	touched, visible := compare(b.known[pair.Key], pair)
	if touched {
		b.touched[pair.Key] = true
	}
	b.known[pair.Key] = pair
	return visible
}

// recordOf returns the record that a change has written in place of old.
func recordOf(key string, ch changelog.Change, old *api.KVPair) *api.KVPair {
	pair := &api.KVPair{
		Key:         key,
		Value:       cloneValue(ch.Value),
		Session:     registry.UnknownSession,
		CreateIndex: ch.Index,
		ModifyIndex: ch.Index,
	}
	if ch.Has(changelog.FlagUnheld) {
		pair.Session = ""
	}
	if old != nil {
		pair.CreateIndex = old.CreateIndex
	}
	return pair
}

// shareMemory makes a listed pair use the value and the session of the known one, if they are equal. The values of a
// list share one allocation, and a value of an earlier list that is still in use would keep all of that list. So a
// value that is new, in a list that is not the first, is copied.
func shareMemory(old, now *api.KVPair, again bool) {
	switch {
	case old == now: // it was kept, and others may be reading it
		return
	case old != nil && bytes.Equal(now.Value, old.Value):
		now.Value = old.Value
	case again:
		now.Value = cloneValue(now.Value)
	}
	if old != nil && now.Session == old.Session {
		now.Session = old.Session
	}
}

// compare reports whether a record was touched, and whether callers see a difference. They see none when only the
// session changes, or when the record is written again with the same value.
func compare(old, now *api.KVPair) (touched, visible bool) {
	if old == nil || old.CreateIndex != now.CreateIndex || !bytes.Equal(old.Value, now.Value) ||
		(old.Session == "") != (now.Session == "") {
		return true, true
	}
	return old.ModifyIndex != now.ModifyIndex || old.Session != now.Session, false
}

// raiseVersion assigns an index to the known state. The index is never reused for other content, whatever a restore
// does to Consul's index.
func (b *belief) raiseVersion() { b.version = max(b.index, b.version+1) }

// keptUntil returns when the first kept record may be given up, or the zero time when there is none.
func (b *belief) keptUntil() time.Time {
	var first time.Time
	for _, kept := range b.kept {
		if first.IsZero() || kept.until.Before(first) {
			first = kept.until
		}
	}
	return first
}

// unconfirmed returns the known records that are not in pairs, although they are not known to have been deleted: their
// hosts may be about to write them again. It is empty while the tree is intact.
func (b *belief) unconfirmed(pairs api.KVPairs) []*api.KVPair {
	l := b.newList(pairs, b.index)
	var out []*api.KVPair
	for key, pair := range b.known {
		_, kept := b.kept[key]
		if l.pairs[key] == nil && (kept || b.mayBeSetBack(l)) {
			out = append(out, pair)
		}
	}
	return out
}

// unexplained returns the records of a list that differ from the known ones although no entry tells why; those without
// a value are deleted.
func (b *belief) unexplained(l list, changes []changelog.Change) []*api.KVPair {
	explained := map[string]bool{}
	for _, ch := range changes {
		explained[b.prefix+ch.Subnet] = true
	}
	var out []*api.KVPair
	for key, pair := range l.pairs {
		if b.kept[key].isOlder(pair) {
			continue
		}
		if old := b.known[key]; !explained[key] && (old == nil || string(old.Value) != string(pair.Value)) {
			out = append(out, pair)
		}
	}
	for key := range b.known {
		if _, kept := b.kept[key]; !explained[key] && !kept && l.pairs[key] == nil {
			out = append(out, &api.KVPair{Key: key})
		}
	}
	return out
}

// unproven returns, by the key of its record, the position of every change that the record must confirm: a removal, a
// record that was written earlier than its entry, and another value of a known record. An entry only says where to look:
// one that was restored from a backup, or forged, must not cost a live host its routes. Only the last change of each
// record counts.
func (b *belief) unproven(changes []changelog.Change) map[string]int {
	last := map[string]int{} // by subnet
	for i, ch := range changes {
		last[ch.Subnet] = i
	}
	out := map[string]int{}
	for i, ch := range changes {
		key := b.prefix + ch.Subnet
		old := b.known[key]
		switch {
		case last[ch.Subnet] != i, ch.Index <= b.listed:
		case ch.IsRemoval() && old == nil:
		case ch.IsRemoval(), ch.Has(changelog.FlagManual), old != nil && !bytes.Equal(ch.Value, old.Value):
			out[key] = i
		}
	}
	return out
}
