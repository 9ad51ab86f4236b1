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

// Unproven returns, by the key of its record, the position of every change that the record must confirm: a removal, a
// record that was written earlier than its announcement, and another value of a known record. Only the last change of
// each record counts.
func (b *Belief) Unproven(changes []Change) map[string]int {
	last := map[string]int{}
	for i, ch := range changes {
		last[ch.Key] = i
	}
	out := map[string]int{}
	for i, ch := range changes {
		known := b.known[ch.Key]
		switch {
		case last[ch.Key] != i, ch.Index <= b.tree.listed:
		case ch.Record == nil && known == nil:
		case ch.Record == nil, ch.Later, known != nil && !bytes.Equal(ch.Record.Value, known.Value):
			out[ch.Key] = i
		}
	}
	return out
}

// Apply applies changes to the known state, and then what the store said of the records that were read to confirm them.
func (b *Belief) Apply(changes []Change, verified []*Record) {
	visible := false
	b.shown.isStale = true
	for _, ch := range changes {
		known := b.known[ch.Key]
		m, isMissing := b.missing[ch.Key]
		switch {
		case !isMissing && ch.Index <= b.tree.listed:
			continue // the list was read after that change
		case known != nil && ch.Index <= known.Lease.ModifyIndex && (!isMissing || ch.Index <= b.tree.listed):
			continue
		case isMissing && ch.Later && (ch.Record == nil || m.older != nil && bytes.Equal(ch.Record.Value, m.older.Value)):
			continue // the record is known to be missing, or an older one to be there, but the reason is in doubt
		}
		if !ch.Later {
			b.tree.index = max(b.tree.index, ch.Index)
		}
		if isMissing {
			delete(b.missing, ch.Key)
			visible = true
		}
		if ch.Record == nil {
			if known != nil {
				delete(b.known, ch.Key)
				visible = true
			}
			continue
		}
		visible = b.learn(ch.Record.continuing(known)) || visible
	}
	for _, r := range verified {
		_, isMissing := b.missing[r.Key]
		if known := b.known[r.Key]; known != nil && !isMissing && bytes.Equal(r.Value, known.Value) {
			visible = b.learn(r) || visible
		}
	}
	if visible {
		b.raise()
	}
}

// continuing returns an announced record as the successor of known.
func (r *Record) continuing(known *Record) *Record {
	if known == nil || known.Lease.CreateIndex == r.Lease.CreateIndex {
		return r
	}
	copied := *r
	copied.Lease.CreateIndex = known.Lease.CreateIndex
	return &copied
}

// learn makes a record a known one, and reports whether callers see a difference.
func (b *Belief) learn(r *Record) (visible bool) {
	old := b.known[r.Key]
	if b.known == nil {
		b.known = map[string]*Record{}
	}
	b.known[r.Key] = r
	visible = differs(old, r)
	var of []string
	for key := range b.missing {
		if r.Err == nil && r.Lease.Held() && b.known[key].Lease.NodeID == r.Lease.NodeID {
			of = append(of, key)
		}
	}
	return b.replace(b.known, r, of, func(Missing) bool { return true }) || visible
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

// Of returns the keys of the usable known records of hosts with the given node ids, each with its host's.
func (b *Belief) Of(ids map[string]int) map[string]string {
	out := map[string]string{}
	if len(ids) == 0 {
		return out
	}
	for key, r := range b.known {
		if _, wanted := ids[r.Lease.NodeID]; wanted && r.Err == nil {
			out[key] = r.Lease.NodeID
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
