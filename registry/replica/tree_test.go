package replica

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// text is a record for tests, given as "key" or "key:value".
type text struct {
	key, value string
	modified   uint64
}

func (r *text) Key() string          { return r.key }
func (r *text) Modified() uint64     { return r.modified }
func (r *text) Same(o *text) bool    { return r.value == o.value }
func (r *text) Follows(o *text) bool { return r.modified > o.modified }

func newText(revision uint64, given string) *text {
	key, value, _ := strings.Cut(given, ":")
	return &text{key, value, revision}
}

// list returns a tree of one cluster.
func list(revision uint64, given ...string) *Tree[*text] {
	var records []*text
	for _, g := range given {
		records = append(records, newText(revision, g))
	}
	return NewTree(1, revision, records)
}

func dump(t *Tree[*text]) string {
	var out []string
	for _, r := range t.Records {
		out = append(out, r.key+r.value)
	}
	for _, key := range slices.Sorted(maps.Keys(t.Vanished)) {
		out = append(out, "-"+key)
	}
	return strings.Join(out, " ")
}

func TestTreeContinues(t *testing.T) {
	t.Parallel()
	now := time.Now()
	elsewhere := list(7, "a")
	elsewhere.Cluster = 2
	for _, tt := range []struct {
		name    string
		lists   []*Tree[*text]
		want    string
		setBack uint64
	}{
		{"first list", []*Tree[*text]{list(5, "b", "a")}, "a b", 0},
		{"a record vanished", []*Tree[*text]{list(5, "a", "b"), list(7, "a")}, "a -b", 0},
		{"it stays missing", []*Tree[*text]{list(5, "a", "b"), list(7, "a"), list(8, "a")}, "a -b", 0},
		{"it is back", []*Tree[*text]{list(5, "a", "b"), list(7, "a"), list(8, "a", "b:2")}, "a b2", 0},
		{"an emptied store", []*Tree[*text]{list(5, "a", "b"), list(7)}, "-a -b", 0},
		{"a store that was set back", []*Tree[*text]{list(5, "a", "b"), list(3, "a", "c")}, "a c -b", 1},
		{"a record that was set back", []*Tree[*text]{list(5, "a:1"), NewTree(1, 6, []*text{newText(3, "a:2")})}, "a2", 1},
		{"another cluster", []*Tree[*text]{list(5, "a"), elsewhere}, "a", 1},
	} {
		var got *Tree[*text]
		for _, next := range tt.lists {
			if got != nil {
				next.continueFrom(got, now)
			}
			got = next
		}
		if dump(got) != tt.want || got.SetBack != tt.setBack {
			t.Errorf("%s: %q, set back %d times; want %q, %d", tt.name, dump(got), got.SetBack, tt.want, tt.setBack)
		}
		later := list(got.Revision, "a")
		later.continueFrom(got, now.Add(maxVanished+time.Second))
		if strings.Contains(dump(got), "-b") && strings.Contains(dump(later), "-b") {
			t.Errorf("%s: a record is missing for ever: %q", tt.name, dump(later))
		}
	}
	before, after := list(5, "a"), list(7, "a")
	if after.continueFrom(before, now); after.Get("a") != before.Get("a") {
		t.Error("a record that is the same takes memory twice")
	}
}

func TestTreeApplies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		key      string
		revision uint64
		deleted  bool
		want     string // revision and content
	}{
		{"a new record", "n", 11, false, "11 a n -b"},
		{"another value", "a:2", 11, false, "11 a2 -b"},
		{"an older change than the list", "n", 9, false, "10 a -b"},
		{"deleted", "a", 11, true, "11 -b"},
		{"deleted before it was listed", "a", 9, true, "10 a -b"},
		{"deleted without being there", "n", 11, true, "10 a -b"},
		{"only a revision", "", 11, true, "10 a -b"},
		{"a deletion from before the list explains why a record vanished", "b", 9, true, "10 a"},
		{"an older change of a record that vanished", "b", 9, false, "10 a -b"},
		{"a record that vanished is back", "b", 11, false, "11 a b"},
		{"the same again", "a", 12, false, "10 a -b"},
	} {
		before := list(10, "a")
		before.continueFrom(list(5, "a", "b"), time.Now())
		r := newText(tt.revision, tt.key)
		change := Change[*text]{Key: r.key, Revision: tt.revision, Record: r}
		if tt.deleted {
			change.Record = nil
		}
		after := before.Apply(change)
		if got := fmt.Sprint(after.Revision, " ", dump(after)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if got := dump(before); got != "a -b" {
			t.Errorf("%s: the tree before has changed: %q", tt.name, got)
		}
		if isSame := dump(after) == dump(before); isSame != (after == before) {
			t.Errorf("%s: another tree: %t", tt.name, after != before)
		}
	}
}

func TestTreeBelow(t *testing.T) {
	t.Parallel()
	tree := list(5, "a/1", "b/1", "b/2", "c")
	for prefix, want := range map[string]int{"": 4, "b/": 2, "b/2": 1, "bb": 0, "d": 0} {
		if got := tree.Below(prefix); len(got) != want {
			t.Errorf("%q: %d records, want %d", prefix, len(got), want)
		}
	}
	if tree.Modified("b/1") != 5 || tree.Modified("x") != 0 || tree.Get("x") != nil {
		t.Error("a record that is not there")
	}
}
