package belief

import (
	"bytes"

	"github.com/lenonet/leno/registry"
)

// Change is what an announcement says of one record.
type Change struct {
	Key    string
	Index  uint64  // of the change
	Record *Record // as it was written, without an index of its creation; nil if it was removed
	Later  bool    // found and announced by another host later than it took place
}

// Unproven returns, by the key of its record, the position of every change after which the record must be read: the
// last one of each known record, and those that add a record of a known host or were found later.
func (b *Belief) Unproven(changes []Change) map[string]int {
	out := map[string]int{}
	var hosts map[string]bool // by node id, with known records
	for key, i := range lastOf(changes) {
		ch, known := changes[i], b.known[key]
		if known == nil && ch.Record != nil && hosts == nil {
			hosts = b.hosts()
		}
		switch {
		case b.isListed(ch):
		case known != nil, ch.Record != nil && (ch.Later || hosts[ch.Record.Lease.NodeID]):
			out[key] = i
		}
	}
	return out
}

// lastOf returns the position of the last change of each record.
func lastOf(changes []Change) map[string]int {
	last := make(map[string]int, len(changes))
	for i, ch := range changes {
		last[ch.Key] = i
	}
	return last
}

// hosts returns the node ids of the known records.
func (b *Belief) hosts() map[string]bool {
	out := make(map[string]bool, len(b.known))
	for _, r := range b.known {
		out[r.Lease.NodeID] = r.Lease.NodeID != ""
	}
	return out
}

// isListed reports whether the last list was read after a change and shows it.
func (b *Belief) isListed(ch Change) bool {
	_, isMissing := b.missing[ch.Key]
	return !isMissing && ch.Index <= b.tree.listed
}

// says reports whether a record is as a change says.
func (ch Change) says(r *Record) bool {
	return ch.Record != nil && bytes.Equal(r.Value, ch.Record.Value)
}

// Apply applies changes to the known state. read has the records that had to be read (Unproven), nil for those that do
// not exist. One that says something else than its change is left alone: that has a change of its own, or is found by a
// list, which tells other hosts.
func (b *Belief) Apply(changes []Change, read map[string]*Record) {
	visible := false
	b.shown.isStale, b.tree.isWhole = true, b.tree.isWhole && len(changes) == 0
	last := lastOf(changes)
	for i, ch := range changes {
		if last[ch.Key] != i || b.isListed(ch) {
			continue
		}
		r, isRead := read[ch.Key]
		m, isMissing := b.missing[ch.Key]
		switch {
		case isRead && r != nil:
			known := b.known[ch.Key]
			if ch.says(r) || known != nil && bytes.Equal(r.Value, known.Value) {
				visible = b.applyRead(r) || visible
			}
		case isRead && ch.Record == nil && (!isMissing || m.older != nil && !ch.Later):
			delete(b.known, ch.Key)
			delete(b.missing, ch.Key)
			visible = true
		case !isRead && ch.Record != nil && b.known[ch.Key] == nil:
			visible = b.learn(ch.Record) || visible
		}
	}
	if visible {
		b.raise()
	}
}

// applyRead makes a record that the store has the known one, unless a list must tell whether it is an older one, and
// reports whether callers see a difference.
func (b *Belief) applyRead(r *Record) (visible bool) {
	known := b.known[r.Key]
	m, isMissing := b.missing[r.Key]
	switch isOlder := known != nil && r.Lease.ModifyIndex <= known.Lease.ModifyIndex; {
	case isMissing && (m.isOlder(r) || isOlder && r.Lease.ModifyIndex <= b.tree.listed):
		return false
	case !isMissing && isOlder && known.Lease.Session != registry.UnknownSession:
		return false
	}
	b.tree.index = max(b.tree.index, r.Lease.ModifyIndex)
	delete(b.missing, r.Key)
	return b.learn(r) || isMissing
}

// learn makes a record a known one, and reports whether callers see a difference.
func (b *Belief) learn(r *Record) (visible bool) {
	visible = differs(b.known[r.Key], r)
	if b.known == nil {
		b.known = map[string]*Record{}
	}
	b.known[r.Key] = r
	return visible
}

// Unexplained returns the records of a list that differ from the known ones although no change tells why; those without
// a value were removed.
func (b *Belief) Unexplained(l List, changes []Change) []*Record {
	explained := map[string]bool{}
	for _, ch := range changes {
		explained[ch.Key] = true
	}
	var out []*Record
	for key, r := range l.Records {
		if explained[key] || b.missing[key].isOlder(r) {
			continue
		}
		if known := b.known[key]; known == nil || !bytes.Equal(known.Value, r.Value) {
			out = append(out, r)
		}
	}
	for key := range b.known {
		if _, isMissing := b.missing[key]; !explained[key] && !isMissing && l.Records[key] == nil {
			out = append(out, &Record{Key: key})
		}
	}
	return out
}

// Announced returns the lease in an announcement at an index, which does not tell the session that holds the record.
func Announced(l registry.Lease, index uint64, held bool) registry.Lease {
	l.Session, l.CreateIndex, l.ModifyIndex = "", index, index
	if held {
		l.Session = registry.UnknownSession
	}
	return l
}
