package kubernetes

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// list returns a tree of Nodes, each given as "name" or "name:uid".
func list(revision uint64, nodes ...string) *tree {
	t := &tree{revision: revision, nodes: map[string]*node{}, vanished: map[string]vanished{}}
	for _, text := range nodes {
		name, uid, _ := strings.Cut(text, ":")
		t.nodes[name] = &node{name: name, uid: uid, modified: revision}
	}
	return t
}

func dump(t *tree) string {
	out := strings.Join(slices.Sorted(maps.Keys(t.nodes)), " ")
	for _, name := range slices.Sorted(maps.Keys(t.vanished)) {
		out += " -" + name
	}
	return out
}

func TestTreeContinues(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name    string
		lists   []*tree
		want    string
		setBack uint64
	}{
		{"first list", []*tree{list(5, "a", "b")}, "a b", 0},
		{"a node vanished", []*tree{list(5, "a", "b"), list(7, "a")}, "a -b", 0},
		{"it stays missing", []*tree{list(5, "a", "b"), list(7, "a"), list(8, "a")}, "a -b", 0},
		{"it is back", []*tree{list(5, "a", "b"), list(7, "a"), list(8, "a", "b:2")}, "a b", 0},
		{"an emptied store", []*tree{list(5, "a", "b"), list(7)}, " -a -b", 0},
		{"a store that was set back", []*tree{list(5, "a", "b"), list(3, "a", "c")}, "a c -b", 1},
		{"a node that was set back", []*tree{list(5, "a:1"), list(3, "a:2")}, "a", 1},
	} {
		var got *tree
		for _, next := range tt.lists {
			next.continueFrom(got, now, time.Minute)
			got = next
		}
		if dump(got) != tt.want || got.setBack != tt.setBack {
			t.Errorf("%s: %q, set back %d times; want %q, %d", tt.name, dump(got), got.setBack, tt.want, tt.setBack)
		}
		later := list(got.revision, "a")
		later.continueFrom(got, now.Add(2*time.Minute), time.Minute)
		if len(got.vanished) > 0 && strings.Contains(dump(later), "-b") {
			t.Errorf("%s: a node is missing for ever: %q", tt.name, dump(later))
		}
	}
}

func TestTreeApplies(t *testing.T) {
	const listed = 10
	for _, tt := range []struct {
		name    string
		deleted bool
		node    node
		want    string
	}{
		{"a new node", false, node{name: "n", modified: 11}, "a n -b"},
		{"an older change than the list", false, node{name: "n", modified: 9}, "a -b"},
		{"deleted", true, node{name: "a", modified: 11}, " -b"},
		{"deleted before it was listed", true, node{name: "a", modified: 9}, "a -b"},
		{"a deletion from before the list explains why a node vanished", true, node{name: "b", modified: 9}, "a"},
		{"an older change of a node that vanished", false, node{name: "b", modified: 9}, "a -b"},
		{"a node that vanished is back", false, node{name: "b", modified: 11}, "a b"},
	} {
		before := list(listed, "a")
		before.continueFrom(list(5, "a", "b"), time.Now(), time.Minute)
		if got := dump(before.apply(tt.deleted, &tt.node, map[string]uint64{"a": listed}, listed)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if got := dump(before); got != "a -b" {
			t.Errorf("%s: the tree before has changed: %q", tt.name, got)
		}
	}
	kept := list(listed, "a")
	if kept.apply(false, &node{name: "a", modified: 12}, map[string]uint64{}, listed) != kept {
		t.Error("a change of something else in a node makes another tree")
	}
}
