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

// directory is what a client knows of one directory of recent changes. It is
// pure: it judges answers and asks for nothing.
type directory struct {
	prefix string // with its last slash

	index   uint64           // of the last answer that was followed; 0: the leases must be read anew
	mark    uint64           // watermark then
	cas     uint64           // ModifyIndex of the watermark's key, for the next trim
	entries map[string]entry // by key
	unsure  bool             // entries went that were known by their keys alone: perhaps not by a trim
}

// entry is one that was seen.
type entry struct {
	index uint64    // its ModifyIndex, or an upper bound of it
	exact bool      // it is no bound
	seen  time.Time // for the first time, by our own clock
}

// reading is one answer about the directory. It brings the entries that were not
// known before; of the others it may bring the key alone.
type reading struct {
	index uint64
	mark  *api.KVPair // the watermark, nil when it is missing
	keys  []string    // of all entries
	pairs map[string]*api.KVPair
	bare  bool // only the keys were read yet, the watermark's among them
}

// newReading sorts a recursive list.
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

// last is the index of the last change of each subnet that the reading tells of.
func (a *reading) last(prefix string) map[string]uint64 {
	out := map[string]uint64{}
	for _, pair := range a.pairs {
		if ch, ok := newChange(prefix, pair); ok && ch.flags&flagFound == 0 {
			out[ch.subnet] = max(out[ch.subnet], ch.index)
		}
	}
	return out
}

// watermark is the highest index of any entry that may have been deleted. One
// that was created anew may hide deletions up to its creation; and a value that
// nobody could have known when it was written is read as the highest possible.
func watermark(mark *api.KVPair) uint64 {
	value, err := strconv.ParseUint(strings.TrimSpace(string(mark.Value)), 10, 64)
	if err != nil || value > mark.ModifyIndex {
		value = mark.ModifyIndex
	}
	return max(value, mark.CreateIndex)
}

// Why a directory could not be followed. After the first three the store was
// set back, or somebody deleted entries by hand.
const (
	whyBack     = "the directory of changes went back"
	whyPast     = "an entry appeared in the past"
	whyVanished = "an entry vanished"
	whyUnmarked = "the watermark is missing"
	whyMissed   = "entries may have been deleted unseen"
	whyUnread   = "the directory of changes was not read before"
)

// step follows the directory to a newer answer and returns what happened since
// the last one, in order. When that cannot be told it changes nothing and says
// why: the leases must be read anew.
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

// setBack says of a reading that could not be followed whether it shows that the
// store was set back, or that entries were deleted by hand.
func (d *directory) setBack(a reading) bool {
	probe := *d
	probe.entries = maps.Clone(d.entries)
	_, why := probe.step(a, time.Time{})
	return setsBack(why)
}

func setsBack(why string) bool { return why == whyBack || why == whyPast || why == whyVanished }

// adopt starts over from an answer after which the leases are read: they show
// whatever its entries say. Without a watermark nothing can be followed, and
// the directory is as if it had not been read.
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

// unknown is the keys of an answer that it must also bring the entries of.
func (d *directory) unknown(keys []string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool { _, known := d.entries[key]; return known })
}

// old is the entries that were seen for longer than age, oldest first.
func (d *directory) old(now time.Time, age time.Duration) []string {
	keys := slices.DeleteFunc(slices.Collect(maps.Keys(d.entries)), func(key string) bool { return now.Sub(d.entries[key].seen) < age })
	slices.SortFunc(keys, func(x, y string) int {
		return cmp.Or(cmp.Compare(d.entries[x].index, d.entries[y].index), strings.Compare(x, y))
	})
	return keys
}

// trimmed follows our own deletion of entries.
func (d *directory) trimmed(keys []string, mark uint64, cas uint64) {
	for _, key := range keys {
		delete(d.entries, key)
	}
	d.mark, d.cas = mark, cas
}

// network is whose directory it is.
func (d *directory) network() string { return lastComponent(strings.TrimSuffix(d.prefix, "/")) }
