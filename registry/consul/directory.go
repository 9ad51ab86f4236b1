package consul

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// directory is a client's knowledge of one directory of recent changes. It has no side effects: it evaluates answers
// and makes no requests.
type directory struct {
	prefix string // with a trailing slash

	index   uint64           // of the last answer that was applied; 0: the leases must be read again
	mark    uint64           // the watermark at that index
	cas     uint64           // ModifyIndex of the watermark's key, for the next trim
	entries map[string]entry // by key
	unsure  bool             // entries have vanished of which only the keys were known, perhaps not because of a trim
}

// entry is an entry of the directory that was seen.
type entry struct {
	index uint64    // its ModifyIndex, or an upper bound of it
	exact bool      // index is not just a bound
	seen  time.Time // first time, by our own clock
}

// reading is one answer about the directory. It contains the entries that were not known before; of the others it may
// contain only the key.
type reading struct {
	index uint64
	mark  *api.KVPair // the watermark, nil when it is missing
	keys  []string    // of all entries
	pairs map[string]*api.KVPair
	bare  bool // only the keys have been read yet, including the watermark's
}

// newReading returns a reading of a recursive list.
func newReading(prefix string, pairs api.KVPairs, index uint64) reading {
	a := reading{index: index, pairs: make(map[string]*api.KVPair, len(pairs))}
	for _, p := range pairs {
		if p.Key == prefix+watermarkName {
			a.mark = p
			continue
		}
		a.keys = append(a.keys, p.Key)
		a.pairs[p.Key] = p
	}
	return a
}

// last returns the index of the last change of each subnet in the reading.
func (a *reading) last(prefix string) map[string]uint64 {
	out := map[string]uint64{}
	for _, pair := range a.pairs {
		if ch, ok := newChange(prefix, pair); ok && ch.flags&flagFound == 0 {
			out[ch.subnet] = max(out[ch.subnet], ch.index)
		}
	}
	return out
}

// watermark returns the highest index of any entry that may have been deleted. A watermark that was created again may
// hide deletions up to its creation. A value that could not have been known when it was written counts as the highest
// possible one.
func watermark(mark *api.KVPair) uint64 {
	value, err := strconv.ParseUint(strings.TrimSpace(string(mark.Value)), 10, 64)
	if err != nil || value > mark.ModifyIndex {
		value = mark.ModifyIndex
	}
	return max(value, mark.CreateIndex)
}

// Reasons why a directory could not be followed. The first three mean that the store was set back, or that entries were
// deleted by hand.
const (
	whyBack     = "the directory of changes went back"
	whyPast     = "an entry appeared in the past"
	whyVanished = "an entry vanished"
	whyUnmarked = "the watermark is missing"
	whyMissed   = "entries may have been deleted unseen"
	whyUnread   = "the directory of changes was not read before"
)

// step follows the directory to a newer answer and returns what happened since the last one, in order. When it cannot
// tell what happened, it changes nothing and returns the reason: the leases must be read again.
func (d *directory) step(a reading, now time.Time) (news []change, why string) {
	switch {
	case d.index == 0:
		return nil, whyUnread
	case a.mark == nil:
		return nil, whyUnmarked
	case a.index < d.index:
		return nil, whyBack
	}
	mark := watermark(a.mark)
	switch {
	case mark < d.mark:
		return nil, whyBack
	case mark > d.index:
		return nil, whyMissed
	}
	present := make(map[string]bool, len(a.keys))
	var fresh []*api.KVPair
	for _, key := range a.keys {
		present[key] = true
		pair := a.pairs[key]
		e, known := d.entries[key]
		switch {
		case known && !e.exact && pair != nil && pair.ModifyIndex <= d.index:
			d.entries[key] = entry{index: pair.ModifyIndex, exact: true, seen: e.seen}
			continue
		case known:
			continue
		case pair == nil:
			return nil, whyMissed
		case pair.ModifyIndex <= d.index:
			return nil, whyPast
		}
		fresh = append(fresh, pair)
	}
	var gone []string
	unsure := d.unsure
	for key, e := range d.entries {
		switch {
		case present[key]:
		case e.exact && e.index > mark:
			return nil, whyVanished
		default:
			unsure = unsure || e.index > mark
			gone = append(gone, key)
		}
	}
	for _, key := range gone {
		delete(d.entries, key)
	}
	for _, pair := range fresh {
		d.entries[pair.Key] = entry{index: pair.ModifyIndex, exact: true, seen: now}
		if ch, ok := newChange(d.prefix, pair); ok {
			news = append(news, ch)
		}
	}
	d.index, d.mark, d.cas, d.unsure = a.index, mark, a.mark.ModifyIndex, unsure
	slices.SortStableFunc(news, func(x, y change) int { return cmp.Compare(x.index, y.index) })
	return news, ""
}

// setBack reports whether a reading that could not be followed shows that the store was set back, or that entries were
// deleted by hand.
func (d *directory) setBack(a reading) bool {
	probe := *d
	probe.entries = maps.Clone(d.entries)
	_, why := probe.step(a, time.Time{})
	return setsBack(why)
}

func setsBack(why string) bool { return why == whyBack || why == whyPast || why == whyVanished }

// adopt starts again from an answer after which the leases are read: they include the changes of all its entries.
// Without a watermark the directory cannot be followed and counts as not read.
func (d *directory) adopt(a reading, now time.Time) {
	before := d.entries
	d.index, d.mark, d.cas, d.unsure, d.entries = 0, 0, 0, false, make(map[string]entry, len(a.keys))
	if a.mark == nil {
		return
	}
	d.index, d.mark, d.cas = a.index, watermark(a.mark), a.mark.ModifyIndex
	for _, key := range a.keys {
		switch e, known := before[key]; {
		case known && e.index <= a.index:
			d.entries[key] = e
		case a.pairs[key] != nil:
			d.entries[key] = entry{index: a.pairs[key].ModifyIndex, exact: true, seen: now}
		default:
			d.entries[key] = entry{index: a.index, seen: now}
		}
	}
}

// unknown returns the keys of an answer whose entries must also be read.
func (d *directory) unknown(keys []string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool { _, known := d.entries[key]; return known })
}

// old returns the entries that were first seen at least age ago, oldest first.
func (d *directory) old(now time.Time, age time.Duration) []string {
	keys := slices.DeleteFunc(slices.Collect(maps.Keys(d.entries)), func(key string) bool { return now.Sub(d.entries[key].seen) < age })
	slices.SortFunc(keys, func(x, y string) int {
		return cmp.Or(cmp.Compare(d.entries[x].index, d.entries[y].index), strings.Compare(x, y))
	})
	return keys
}

// trimmed records that this client deleted entries.
func (d *directory) trimmed(keys []string, mark uint64, cas uint64) {
	for _, key := range keys {
		delete(d.entries, key)
	}
	d.mark, d.cas = mark, cas
}

// network returns the name of the directory's network.
func (d *directory) network() string { return lastComponent(strings.TrimSuffix(d.prefix, "/")) }
