package changelog

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"
)

// Cursor is a client's position in one directory of recent changes. It is not safe for concurrent use.
type Cursor struct {
	prefix string // with a trailing slash

	index   uint64           // of the last answer that was applied; 0: the leases must be read again
	mark    uint64           // the watermark at that index
	cas     uint64           // ModifyIndex of the watermark's key, for the next trim
	entries map[string]entry // by key

	answered time.Time // when the reading at that index arrived

	// Entries of which only the keys were known have vanished, perhaps not because of a trim.
	vanishedUnread bool
}

// entry is an entry of the directory that was seen.
type entry struct {
	index uint64    // its ModifyIndex, or an upper bound of it
	exact bool      // index is not just a bound
	seen  time.Time // first time, by our own clock
}

// NewCursor returns a cursor for the directory at prefix that has read nothing.
func NewCursor(prefix string) Cursor { return Cursor{prefix: prefix, entries: map[string]entry{}} }

// Prefix returns the prefix of the directory's keys, with a trailing slash.
func (c *Cursor) Prefix() string { return c.prefix }

// Index returns the index of the last reading, or 0 if all leases must be read before the directory can be followed.
func (c *Cursor) Index() uint64 { return c.index }

// Len returns the number of known entries.
func (c *Cursor) Len() int { return len(c.entries) }

// HasVanishedUnread reports whether entries have vanished that this client never read, so it cannot tell whether they
// were trimmed or the store was set back.
func (c *Cursor) HasVanishedUnread() bool { return c.vanishedUnread }

// Reset makes the cursor require that all leases are read again.
func (c *Cursor) Reset() { c.index = 0 }

// Reason tells why the directory could not be followed; it is "" when it could.
type Reason string

// Reasons. The first three mean that the store was probably set back, or that the latest entries were deleted by hand.
const (
	WentBack         Reason = "the directory of changes went back"
	EntryInPast      Reason = "an entry appeared in the past"
	EntryVanished    Reason = "an entry vanished"
	WatermarkMissing Reason = "the watermark is missing"
	EntriesMissed    Reason = "entries may have been deleted unseen"
	NeverRead        Reason = "the directory of changes was not read before"
)

// IsSetBack reports whether the reason means that the store was probably set back, or that the latest entries were
// deleted by hand.
func (r Reason) IsSetBack() bool { return r == WentBack || r == EntryInPast || r == EntryVanished }

// Unread returns the keys that must be read and passed to Reading.Complete before the cursor can advance to a reading:
// new entries and the watermark, or none when the reading is complete. What keys of other programs say does not matter.
func (c *Cursor) Unread(r Reading) []string {
	if !r.keysOnly {
		return nil
	}
	needless := func(key string) bool { _, known := c.entries[key]; return known || !isEntry(c.prefix, key) }
	return append(slices.DeleteFunc(slices.Clone(r.keys), needless), c.prefix+WatermarkName)
}

// Advance moves the cursor to a newer reading and returns the changes since the last one, in order. When it cannot tell
// what happened, it changes nothing and returns the reason: the leases must be read again.
func (c *Cursor) Advance(r Reading, now time.Time) ([]Change, Reason) {
	switch {
	case c.index == 0:
		return nil, NeverRead
	case r.Mark == nil:
		return nil, WatermarkMissing
	case r.Index < c.index:
		return nil, WentBack
	}
	mark := Watermark(r.Mark)
	if mark > c.index && (r.Mark.CreateIndex > c.index || !r.Follows(c.answered)) {
		return nil, EntriesMissed
	}
	added, reason := c.newEntries(r)
	if reason != "" {
		return nil, reason
	}
	gone, unread, reason := c.goneEntries(r, mark)
	if reason != "" {
		return nil, reason
	}
	if mark < c.mark {
		return nil, EntriesMissed
	}
	for _, key := range gone {
		delete(c.entries, key)
	}
	var changes []Change
	for _, pair := range added {
		c.entries[pair.Key] = entry{index: pair.ModifyIndex, exact: r.entries[pair.Key] != nil, seen: now}
		if ch, ok := Parse(c.prefix, pair); ok {
			changes = append(changes, ch)
		}
	}
	c.index, c.mark, c.cas, c.vanishedUnread = r.Index, mark, r.Mark.ModifyIndex, c.vanishedUnread || unread
	c.answered = r.Answered
	slices.SortStableFunc(changes, func(x, y Change) int { return cmp.Compare(x.Index, y.Index) })
	return changes, ""
}

// newEntries returns the entries of a reading that are not known yet. It notes the index of those of which only the key
// was known.
func (c *Cursor) newEntries(r Reading) ([]*api.KVPair, Reason) {
	var out []*api.KVPair
	for _, key := range r.keys {
		pair := r.entries[key]
		e, known := c.entries[key]
		switch {
		case known && !e.exact && pair != nil && pair.ModifyIndex <= c.index:
			c.entries[key] = entry{index: pair.ModifyIndex, exact: true, seen: e.seen}
		case known:
		case pair == nil && !isEntry(c.prefix, key):
			out = append(out, &api.KVPair{Key: key, ModifyIndex: r.Index})
		case pair == nil:
			return nil, EntriesMissed
		case pair.ModifyIndex <= c.index:
			return nil, EntryInPast
		default:
			out = append(out, pair)
		}
	}
	return out, ""
}

// goneEntries returns the known entries that a reading lacks, and whether some of them were never read and are not
// below its watermark. An entry that is followed by one that is still there was deleted by hand. The store was not set
// back then, and the entry has been read.
func (c *Cursor) goneEntries(r Reading, mark uint64) (keys []string, unread bool, reason Reason) {
	present := make(map[string]bool, len(r.keys))
	last := uint64(0)
	for _, key := range r.keys {
		present[key] = true
		if e := c.entries[key]; e.exact {
			last = max(last, e.index)
		}
	}
	for key, e := range c.entries {
		switch {
		case present[key]:
		case e.exact && e.index > mark && e.index > last:
			return nil, false, EntryVanished
		default:
			unread = unread || e.index > mark && isEntry(c.prefix, key)
			keys = append(keys, key)
		}
	}
	return keys, unread, ""
}

// ShowsSetBack reports whether a reading that cannot be followed shows that the store was probably set back.
func (c *Cursor) ShowsSetBack(r Reading) bool {
	probe := *c
	probe.entries = maps.Clone(c.entries)
	_, reason := probe.Advance(r, time.Time{})
	return reason.IsSetBack()
}

// Adopt starts again from a reading after which the leases are read: they include the changes of all its entries.
// Without a watermark the directory cannot be followed and counts as not read.
func (c *Cursor) Adopt(r Reading, now time.Time) {
	before := c.entries
	c.index, c.mark, c.cas, c.vanishedUnread, c.entries = 0, 0, 0, false, make(map[string]entry, len(r.keys))
	if r.Mark == nil {
		return
	}
	c.index, c.mark, c.cas, c.answered = r.Index, Watermark(r.Mark), r.Mark.ModifyIndex, r.Answered
	for _, key := range r.keys {
		switch e, known := before[key]; {
		case known && e.index <= r.Index:
			c.entries[key] = e
		case r.entries[key] != nil:
			c.entries[key] = entry{index: r.entries[key].ModifyIndex, exact: true, seen: now}
		default:
			c.entries[key] = entry{index: r.Index, seen: now}
		}
	}
}
