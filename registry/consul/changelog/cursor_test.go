package changelog

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/internal/testkit/seed"
)

const dirPrefix = "leno/changes/default/"

// entryAt returns an entry of the directory, named after its index.
func entryAt(index uint64) *api.KVPair {
	return &api.KVPair{
		Key:         fmt.Sprintf("%s%024x_10.5.%d.0-24", dirPrefix, index, index%256),
		Value:       []byte("v"),
		CreateIndex: index,
		ModifyIndex: index,
	}
}

func markAt(created, modified, value uint64) *api.KVPair {
	return &api.KVPair{
		Key:         dirPrefix + WatermarkName,
		Value:       []byte(strconv.FormatUint(value, 10)),
		CreateIndex: created,
		ModifyIndex: modified,
	}
}

func listOf(p ...*api.KVPair) api.KVPairs { return p }

func newCursor() *Cursor {
	c := NewCursor(dirPrefix)
	return &c
}

// keysReading returns a reading of which only the keys and the watermark were read.
func keysReading(index uint64, mark *api.KVPair, keys ...string) Reading {
	r := NewKeysReading(dirPrefix, keys, index)
	r.Mark = mark
	return r
}

// TestCursorAdvances: a cursor moves from a reading at index 10, with entries 7 and 9 and a watermark of 5, to the next
// reading.
func TestCursorAdvances(t *testing.T) {
	garbage := &api.KVPair{Key: dirPrefix + "hello", ModifyIndex: 12}
	removal := entryAt(12)
	removal.Value, removal.Flags = nil, FlagRevoked
	for _, tt := range []struct {
		name   string
		index  uint64
		pairs  api.KVPairs
		want   []uint64 // indexes of the changes
		reason Reason
	}{
		{"nothing new", 10, listOf(markAt(2, 6, 5), entryAt(7), entryAt(9)), nil, ""},
		{"one more", 11, listOf(markAt(2, 6, 5), entryAt(7), entryAt(9), entryAt(11)), []uint64{11}, ""},
		{
			"several, in order", 14, listOf(markAt(2, 6, 5), entryAt(14), entryAt(7), entryAt(12), entryAt(9)),
			[]uint64{12, 14}, "",
		},
		{"a removal", 12, listOf(markAt(2, 6, 5), entryAt(7), entryAt(9), removal), []uint64{12}, ""},
		{"known entries trimmed", 13, listOf(markAt(2, 13, 7), entryAt(9)), nil, ""},
		{"trimmed all, one more", 15, listOf(markAt(2, 14, 9), entryAt(15)), []uint64{15}, ""},
		{"a key that is no entry", 12, listOf(markAt(2, 6, 5), entryAt(7), entryAt(9), garbage), nil, ""},
		{"a lagging server", 9, listOf(markAt(2, 6, 5), entryAt(7), entryAt(9)), nil, WentBack},
		{"no watermark", 12, listOf(entryAt(7), entryAt(9)), nil, WatermarkMissing},
		{"nothing at all", 1, nil, nil, WatermarkMissing},
		{"unknown entries trimmed", 30, listOf(markAt(2, 30, 20)), nil, EntriesMissed},
		{"an older watermark", 11, listOf(markAt(2, 4, 3), entryAt(7), entryAt(9)), nil, EntriesMissed},
		{"a watermark created again", 20, listOf(markAt(20, 20, 0), entryAt(7), entryAt(9)), nil, EntriesMissed},
		{"the last entry deleted", 12, listOf(markAt(2, 6, 5), entryAt(7)), nil, EntryVanished},
		{"an earlier entry deleted by hand", 12, listOf(markAt(2, 6, 5), entryAt(9), entryAt(12)), []uint64{12}, ""},
		{"an entry restored", 12, listOf(markAt(2, 6, 5), entryAt(7), entryAt(8), entryAt(9)), nil, EntryInPast},
		{"a watermark from the future", 12, listOf(markAt(2, 11, 1<<62), entryAt(7), entryAt(9)), nil, EntriesMissed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCursor()
			now := time.Now()
			c.Adopt(NewReading(dirPrefix, listOf(markAt(2, 6, 5), entryAt(7), entryAt(9)), 10), now)
			changes, reason := c.Advance(NewReading(dirPrefix, tt.pairs, tt.index), now)
			var got []uint64
			for _, ch := range changes {
				got = append(got, ch.Index)
			}
			if reason != tt.reason || !slices.Equal(got, tt.want) {
				t.Errorf("got changes %v and %q, want %v and %q", got, reason, tt.want, tt.reason)
			}
			if want := uint64(10); reason != "" && c.index != want {
				t.Errorf("the index moved to %d", c.index)
			}
			if reason == "" && c.index != tt.index {
				t.Errorf("index %d, want %d", c.index, tt.index)
			}
		})
	}
}

// TestForgedWatermark: a watermark above the index is not believed when the directory was read less than half a minute
// ago, as entries stay for a minute. One that was created again may hide entries that were deleted by hand.
func TestForgedWatermark(t *testing.T) {
	start := time.Now()
	for _, tt := range []struct {
		name  string
		mark  *api.KVPair
		pause time.Duration
		want  Reason
	}{
		{"forged", markAt(2, 30, 29), time.Second, ""},
		{"after a long pause", markAt(2, 30, 29), 30 * time.Second, EntriesMissed},
		{"created again", markAt(30, 30, 0), time.Second, EntriesMissed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCursor()
			first := NewReading(dirPrefix, listOf(markAt(2, 6, 5), entryAt(7)), 10)
			first.Asked, first.Answered, first.Kept = start.Add(-time.Hour), start, time.Minute // a blocking query
			c.Adopt(first, start)
			next := NewReading(dirPrefix, listOf(tt.mark, entryAt(7), entryAt(31)), 31)
			next.Asked, next.Answered, next.Kept = start.Add(tt.pause), start.Add(tt.pause), time.Minute
			changes, reason := c.Advance(next, start)
			if reason != tt.want || reason == "" && (len(changes) != 1 || changes[0].Index != 31) {
				t.Errorf("got %v and %q, want %q", changes, reason, tt.want)
			}
		})
	}
}

func TestCursorUnread(t *testing.T) {
	c := newCursor()
	if _, reason := c.Advance(NewReading(dirPrefix, listOf(markAt(2, 6, 5)), 10), time.Now()); reason != NeverRead {
		t.Errorf("got %q", reason)
	}
	c.Adopt(NewReading(dirPrefix, listOf(entryAt(7)), 10), time.Now())
	if c.index != 0 || len(c.entries) != 0 {
		t.Errorf("followed without a watermark: %+v", c)
	}
}

// TestForeignKeys: keys of other programs are not read, say nothing, and are deleted like entries, even if only their
// beginning is known.
func TestForeignKeys(t *testing.T) {
	start := time.Now()
	c := newCursor()
	c.Adopt(keysReading(10, markAt(2, 6, 5), entryAt(7).Key), start)
	short, long := dirPrefix+"junk", dirPrefix+strings.Repeat("k", 200)
	r := NewKeysReading(dirPrefix, []string{entryAt(7).Key, entryAt(12).Key, short, long}, 14)
	if got, want := c.Unread(r), []string{entryAt(12).Key, dirPrefix + WatermarkName}; !slices.Equal(got, want) {
		t.Errorf("unread: %v, want %v", got, want)
	}
	r.Complete([]*api.KVPair{entryAt(12), markAt(2, 6, 5)})
	changes, reason := c.Advance(r, start)
	if reason != "" || len(changes) != 1 || changes[0].Index != 12 {
		t.Fatalf("%v, %q", changes, reason)
	}
	ops, mark := c.TrimOps(c.Trimmable(start.Add(time.Minute), time.Minute))
	verbs := map[string]api.KVOp{}
	for _, op := range ops[:len(ops)-1] {
		verbs[op.Key] = op.Verb
	}
	want := map[string]api.KVOp{entryAt(7).Key: api.KVDelete, entryAt(12).Key: api.KVDelete, short: api.KVDelete, long: api.KVDeleteTree}
	if diff := cmp.Diff(want, verbs); diff != "" || mark != 14 {
		t.Errorf("mark %d, %s", mark, diff)
	}
	// That they are deleted by hand says nothing either.
	changes, reason = c.Advance(keysReading(15, markAt(2, 6, 5), entryAt(7).Key, entryAt(12).Key), start)
	if reason != "" || len(changes) != 0 || c.HasVanishedUnread() || c.Len() != 2 {
		t.Errorf("%v, %q, %+v", changes, reason, c)
	}
}

// TestCursorKnowsOnlyKeys: an entry of which only the key was adopted may vanish without an error, and counts as
// written no later than it was adopted.
func TestCursorKnowsOnlyKeys(t *testing.T) {
	c := newCursor()
	start := time.Now()
	c.Adopt(keysReading(10, markAt(2, 6, 5), entryAt(7).Key, entryAt(9).Key), start)
	if got := c.Trimmable(start.Add(time.Minute), time.Minute); len(got) != 2 || c.entries[got[0]].index != 10 {
		t.Errorf("old: %v of %+v", got, c.entries)
	}
	if got := c.Trimmable(start.Add(time.Minute-1), time.Minute); len(got) != 0 {
		t.Errorf("old too soon: %v", got)
	}
	unread := c.Unread(NewKeysReading(dirPrefix, []string{entryAt(7).Key, dirPrefix + WatermarkName, entryAt(12).Key}, 12))
	if want := []string{entryAt(12).Key, dirPrefix + WatermarkName}; !slices.Equal(unread, want) {
		t.Errorf("unread: %v, want %v", unread, want)
	}
	changes, reason := c.Advance(NewReading(dirPrefix, listOf(markAt(2, 6, 5), entryAt(9), entryAt(12)), 12), start)
	if reason != "" || len(changes) != 1 || changes[0].Index != 12 {
		t.Errorf("%v, %q", changes, reason)
	}
	// An entry was in the list of keys but could not be read any more.
	unreadable := keysReading(14, markAt(2, 6, 5), entryAt(9).Key, entryAt(12).Key, entryAt(13).Key)
	if _, reason := c.Advance(unreadable, start); reason != EntriesMissed {
		t.Errorf("got %q", reason)
	}
}

func TestChangeNames(t *testing.T) {
	for key, want := range map[string]string{
		"1879f3c5a2d9b7e04d1c22af_10.5.201.0-24":   "10.5.201.0-24",
		"1879f3c5a2d9b7e04d1c22af_fd00.5.0.2..-64": "fd00.5.0.2..-64",
		"_": "", "": "", "x": "",
		"1879f3c5a2d9b7e04d1c22af_":                      "",
		"1879f3c5a2d9b7e04d1c22a_10.5.201.0-24":          "",
		"1879f3c5a2d9b7e04d1c22af_fd00:5:0:2::-64":       "",
		"1879f3c5a2d9b7e04d1c22af~10.5.201.0-24":         "",
		"1879f3c5a2d9b7e04d1c22af_10.5.201.0-24/a":       "",
		"1879f3c5a2d9b7e04d1c22af_../networks/default":   "",
		"1879f3c5a2d9b7e04d1c22af_10.5.201.0-24\x1b[31m": "",
	} {
		ch, ok := Parse(dirPrefix, &api.KVPair{Key: dirPrefix + key})
		if ok != (want != "") || ch.Subnet != want {
			t.Errorf("%q: got %q, %t", key, ch.Subnet, ok)
		}
	}
}

// TestCursorFollows: a follower that steps whenever it can, and otherwise reads everything, knows the content of the
// store, whatever writers, trimmers, restores and manual edits do to it.
func TestCursorFollows(t *testing.T) {
	for i := range 25 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			rnd := seed.Rand(t) // another sequence for each name
			type state struct {
				entries map[string]*api.KVPair
				leases  map[string]uint64 // by subnet, the index of the last write
				mark    *api.KVPair
				index   uint64 // of the directory
			}
			clone := func(s state) state {
				out := s
				out.entries, out.leases = map[string]*api.KVPair{}, map[string]uint64{}
				for k, v := range s.entries {
					out.entries[k] = v
				}
				for k, v := range s.leases {
					out.leases[k] = v
				}
				return out
			}
			raft := uint64(100)
			now := state{entries: map[string]*api.KVPair{}, leases: map[string]uint64{}, mark: markAt(100, 100, 0), index: 100}
			saved := clone(now)
			c := newCursor()
			view := map[string]uint64{}
			steps, lists := 0, 0
			for range 400 {
				raft++
				switch p := rnd.IntN(100); {
				case p < 60: // a write or removal with its entry
					e := entryAt(raft)
					ch, _ := Parse(dirPrefix, e)
					if rnd.IntN(3) == 0 {
						e.Value = nil
						delete(now.leases, ch.Subnet)
					} else {
						now.leases[ch.Subnet] = raft
					}
					now.entries[e.Key], now.index = e, raft
				case p < 75: // a trim of the oldest half
					keys := make([]string, 0, len(now.entries))
					for key := range now.entries {
						keys = append(keys, key)
					}
					slices.Sort(keys)
					mark := Watermark(now.mark)
					for _, key := range keys[:len(keys)/2] {
						mark = max(mark, now.entries[key].ModifyIndex)
						delete(now.entries, key)
					}
					now.mark, now.index = markAt(now.mark.CreateIndex, raft, mark), raft
				case p < 77:
					saved = clone(now)
				case p < 79:
					now = clone(saved)
				case p < 80: // wiped by hand, and the watermark created again
					now.entries, now.mark, now.index = map[string]*api.KVPair{}, markAt(raft, raft, 0), raft
				case p < 95:
					continue // the follower is late
				}
				var all api.KVPairs
				for _, e := range now.entries {
					all = append(all, e)
				}
				a := NewReading(dirPrefix, append(all, now.mark), now.index)
				changes, reason := c.Advance(a, time.Now())
				if reason != "" {
					lists++
					c.Adopt(a, time.Now())
					view = clone(now).leases
				} else {
					steps++
					for _, ch := range changes {
						if len(ch.Value) == 0 {
							delete(view, ch.Subnet)
						} else {
							view[ch.Subnet] = ch.Index
						}
					}
				}
				if !maps.Equal(now.leases, view) {
					t.Fatalf("at %d (%q) (-store +view):\n%s", raft, reason, cmp.Diff(now.leases, view))
				}
			}
			if steps < 4*lists {
				t.Errorf("%d steps and %d lists: the directory is hardly followed", steps, lists)
			}
		})
	}
}

// TestUnreadEntriesVanish: the cursor remembers that entries of which only the keys were known vanished without a trim.
func TestUnreadEntriesVanish(t *testing.T) {
	var keys []string
	var rest api.KVPairs
	for i := uint64(60); i < 100; i++ {
		keys = append(keys, entryAt(i).Key)
		if i < 90 {
			rest = append(rest, entryAt(i))
		}
	}
	bare := keysReading(100, markAt(2, 6, 5), keys...)
	c := newCursor()
	c.Adopt(bare, time.Now())
	some := NewReading(dirPrefix, append(rest, markAt(2, 6, 5), entryAt(120)), 120)
	if _, reason := c.Advance(some, time.Now()); reason != "" || !c.HasVanishedUnread() {
		t.Errorf("got %q, vanished unread %t", reason, c.HasVanishedUnread())
	}
	c.Adopt(bare, time.Now())
	if c.HasVanishedUnread() {
		t.Error("entries still count as vanished after everything was read")
	}
	trimmed := NewReading(dirPrefix, listOf(markAt(2, 121, 100), entryAt(120)), 121)
	if _, reason := c.Advance(trimmed, time.Now()); reason != "" || c.HasVanishedUnread() {
		t.Errorf("after a trim: got %q, vanished unread %t", reason, c.HasVanishedUnread())
	}
}
