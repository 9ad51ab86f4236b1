package consul

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"
)

const dirPrefix = "leno/changes/default/"

// entryAt returns an entry of the directory, named after its index.
func entryAt(index uint64) *api.KVPair {
	return &api.KVPair{Key: fmt.Sprintf("%s%024x_10.5.%d.0-24", dirPrefix, index, index%256), Value: []byte("v"), CreateIndex: index, ModifyIndex: index}
}

func markAt(created, modified, value uint64) *api.KVPair {
	return &api.KVPair{Key: dirPrefix + watermarkName, Value: []byte(strconv.FormatUint(value, 10)), CreateIndex: created, ModifyIndex: modified}
}

func listOf(p ...*api.KVPair) api.KVPairs { return p }

// TestDirectoryStep: from a directory read at index 10, with entries 7 and 9 and a watermark of 5, to the next reading.
func TestDirectoryStep(t *testing.T) {
	garbage := &api.KVPair{Key: dirPrefix + "hello", ModifyIndex: 12}
	removal := entryAt(12)
	removal.Value, removal.Flags = nil, flagRevoked
	for _, tt := range []struct {
		name  string
		index uint64
		pairs api.KVPairs
		want  []uint64 // indexes of the changes
		why   string
	}{
		{"nothing new", 10, listOf(markAt(2, 6, 5), entryAt(7), entryAt(9)), nil, ""},
		{"one more", 11, listOf(markAt(2, 6, 5), entryAt(7), entryAt(9), entryAt(11)), []uint64{11}, ""},
		{"several, in order", 14, listOf(markAt(2, 6, 5), entryAt(14), entryAt(7), entryAt(12), entryAt(9)), []uint64{12, 14}, ""},
		{"a removal", 12, listOf(markAt(2, 6, 5), entryAt(7), entryAt(9), removal), []uint64{12}, ""},
		{"trimmed what was seen", 13, listOf(markAt(2, 13, 7), entryAt(9)), nil, ""},
		{"trimmed all, one more", 15, listOf(markAt(2, 14, 9), entryAt(15)), []uint64{15}, ""},
		{"what is no entry", 12, listOf(markAt(2, 6, 5), entryAt(7), entryAt(9), garbage), nil, ""},
		{"a lagging server", 9, listOf(markAt(2, 6, 5), entryAt(7), entryAt(9)), nil, whyBack},
		{"no watermark", 12, listOf(entryAt(7), entryAt(9)), nil, whyUnmarked},
		{"nothing at all", 1, nil, nil, whyUnmarked},
		{"trimmed what was not seen", 30, listOf(markAt(2, 30, 20)), nil, whyMissed},
		{"an older watermark", 11, listOf(markAt(2, 4, 3), entryAt(7), entryAt(9)), nil, whyBack},
		{"a watermark made anew", 20, listOf(markAt(20, 20, 0), entryAt(7), entryAt(9)), nil, whyMissed},
		{"an entry deleted by hand", 12, listOf(markAt(2, 6, 5), entryAt(7)), nil, whyVanished},
		{"an entry restored", 12, listOf(markAt(2, 6, 5), entryAt(7), entryAt(8), entryAt(9)), nil, whyPast},
		{"a watermark from the future", 12, listOf(markAt(2, 11, 1<<62), entryAt(7), entryAt(9)), nil, whyMissed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &directory{prefix: dirPrefix, entries: map[string]entry{}}
			now := time.Now()
			d.adopt(newReading(dirPrefix, listOf(markAt(2, 6, 5), entryAt(7), entryAt(9)), 10), now)
			news, why := d.step(newReading(dirPrefix, tt.pairs, tt.index), now)
			var got []uint64
			for _, ch := range news {
				got = append(got, ch.index)
			}
			if why != tt.why || !slices.Equal(got, tt.want) {
				t.Errorf("got changes %v and %q, want %v and %q", got, why, tt.want, tt.why)
			}
			if want := uint64(10); why != "" && d.index != want {
				t.Errorf("the index moved to %d", d.index)
			}
			if why == "" && d.index != tt.index {
				t.Errorf("index %d, want %d", d.index, tt.index)
			}
		})
	}
}

func TestDirectoryUnread(t *testing.T) {
	d := &directory{prefix: dirPrefix, entries: map[string]entry{}}
	if _, why := d.step(newReading(dirPrefix, listOf(markAt(2, 6, 5)), 10), time.Now()); why != whyUnread {
		t.Errorf("got %q", why)
	}
	d.adopt(newReading(dirPrefix, listOf(entryAt(7)), 10), time.Now())
	if d.index != 0 || len(d.entries) != 0 {
		t.Errorf("followed without a watermark: %+v", d)
	}
}

// TestDirectoryBareKeys: an entry of which only the key was adopted may vanish without an error, and counts as written
// no later than it was adopted.
func TestDirectoryBareKeys(t *testing.T) {
	d := &directory{prefix: dirPrefix, entries: map[string]entry{}}
	start := time.Now()
	d.adopt(reading{index: 10, mark: markAt(2, 6, 5), keys: []string{entryAt(7).Key, entryAt(9).Key}}, start)
	if got := d.old(start.Add(time.Minute), time.Minute); len(got) != 2 || d.entries[got[0]].index != 10 {
		t.Errorf("old: %v of %+v", got, d.entries)
	}
	if got := d.old(start.Add(time.Minute-1), time.Minute); len(got) != 0 {
		t.Errorf("old too soon: %v", got)
	}
	if got := d.unknown([]string{entryAt(7).Key, entryAt(12).Key}); !slices.Equal(got, []string{entryAt(12).Key}) {
		t.Errorf("unknown: %v", got)
	}
	news, why := d.step(newReading(dirPrefix, listOf(markAt(2, 6, 5), entryAt(9), entryAt(12)), 12), start)
	if why != "" || len(news) != 1 || news[0].index != 12 {
		t.Errorf("%v, %q", news, why)
	}
	// An entry was in the list of keys but could not be read any more.
	if _, why := d.step(reading{index: 14, mark: markAt(2, 6, 5), keys: []string{entryAt(9).Key, entryAt(12).Key, entryAt(13).Key}}, start); why != whyMissed {
		t.Errorf("got %q", why)
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
		ch, ok := newChange(dirPrefix, &api.KVPair{Key: dirPrefix + key})
		if ok != (want != "") || ch.subnet != want {
			t.Errorf("%q: got %q, %t", key, ch.subnet, ok)
		}
	}
}

// TestDirectoryFollows: a follower that steps whenever it can, and otherwise reads everything, knows the content of the
// store, whatever writers, trimmers, restores and manual edits do to it.
func TestDirectoryFollows(t *testing.T) {
	for seed := range uint64(25) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
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
			d := &directory{prefix: dirPrefix, entries: map[string]entry{}}
			view := map[string]uint64{}
			steps, lists := 0, 0
			for range 400 {
				raft++
				switch p := rnd.IntN(100); {
				case p < 60: // a write or removal with its entry
					e := entryAt(raft)
					ch, _ := newChange(dirPrefix, e)
					if rnd.IntN(3) == 0 {
						e.Value = nil
						delete(now.leases, ch.subnet)
					} else {
						now.leases[ch.subnet] = raft
					}
					now.entries[e.Key], now.index = e, raft
				case p < 75: // a trim of the oldest half
					keys := make([]string, 0, len(now.entries))
					for key := range now.entries {
						keys = append(keys, key)
					}
					slices.Sort(keys)
					mark := watermark(now.mark)
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
				a := newReading(dirPrefix, append(all, now.mark), now.index)
				news, why := d.step(a, time.Now())
				if why != "" {
					lists++
					d.adopt(a, time.Now())
					view = clone(now).leases
				} else {
					steps++
					for _, ch := range news {
						if len(ch.value) == 0 {
							delete(view, ch.subnet)
						} else {
							view[ch.subnet] = ch.index
						}
					}
				}
				if !maps.Equal(now.leases, view) {
					t.Fatalf("at %d (%q) (-store +view):\n%s", raft, why, cmp.Diff(now.leases, view))
				}
			}
			if steps < 4*lists {
				t.Errorf("%d steps and %d lists: the directory is hardly followed", steps, lists)
			}
		})
	}
}
