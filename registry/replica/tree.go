package replica

import (
	"maps"
	"slices"
	"sort"
	"strings"
	"time"
)

// Record is one record of a store. It is immutable, and its zero value, nil, stands for none.
type Record[R any] interface {
	comparable
	Key() string
	Modified() uint64 // the revision of this version
	Same(R) bool      // both say the same
	Follows(R) bool   // it can be a later version than the other one in the same history
}

// Tree is all records of a store as of one revision of one cluster. It is immutable: a change makes another tree.
//
// Every list of the store is complete and current. What remains uncertain is whether the store itself still knows what
// it was told. A tree counts as set back when it has another cluster id than the tree before, a lower revision, an
// older version of a record, or the same version with other content: a snapshot was restored. A restored store may also
// have continued beyond the revision that is known here, so a record counts as deleted only if its deletion was seen.
type Tree[R Record[R]] struct {
	Cluster  uint64 // 0 in a store that does not tell
	Revision uint64
	Records  []R    // sorted by key
	SetBack  uint64 // how often the store was found to be set back, including this time
	// Vanished are the records that were there when the records were read before, and whose deletion was not seen (yet).
	Vanished map[string]Vanished[R]
}

// Vanished is a record as it was last.
type Vanished[R any] struct {
	Record R
	At     time.Time // when it was found to be missing
}

// Change is a change of one record.
type Change[R any] struct {
	Key      string // "" for none: only the revision is news
	Revision uint64
	Record   R // nil if it was deleted
}

// NewTree returns a tree of records in any order, each with another key.
func NewTree[R Record[R]](cluster, revision uint64, records []R) *Tree[R] {
	slices.SortFunc(records, func(a, b R) int { return strings.Compare(a.Key(), b.Key()) })
	return &Tree[R]{Cluster: cluster, Revision: revision, Records: records}
}

// find returns the position of a key, and whether it is there.
func (t *Tree[R]) find(key string) (i int, found bool) {
	return slices.BinarySearchFunc(t.Records, key, func(r R, key string) int { return strings.Compare(r.Key(), key) })
}

// Get returns the record with a key, nil for none.
func (t *Tree[R]) Get(key string) (r R) {
	if i, found := t.find(key); found {
		r = t.Records[i]
	}
	return r
}

// Modified returns the version of a key, 0 if it does not exist.
func (t *Tree[R]) Modified(key string) uint64 {
	if i, found := t.find(key); found {
		return t.Records[i].Modified()
	}
	return 0
}

// Below returns the records whose keys begin with prefix, sorted by key. The caller must not change them.
func (t *Tree[R]) Below(prefix string) []R {
	first, _ := t.find(prefix)
	all := t.Records[first:]
	end := sort.Search(len(all), func(i int) bool { return !strings.HasPrefix(all[i].Key(), prefix) })
	return all[:end:end]
}

// HasLost reports whether a record whose key begins with prefix has vanished so recently.
func (t *Tree[R]) HasLost(prefix string, within time.Duration) bool {
	for key, v := range t.Vanished {
		if strings.HasPrefix(key, prefix) && time.Since(v.At) < within {
			return true
		}
	}
	return false
}

// maxVanished is how long a record that vanished is remembered: longer than any client shows it.
const maxVanished = 48 * time.Hour

// continueFrom compares a tree that was just read with the one before. Records that are the same share their memory.
func (t *Tree[R]) continueFrom(before *Tree[R], now time.Time) {
	isSetBack := t.Cluster != before.Cluster || t.Revision < before.Revision
	t.Vanished = map[string]Vanished[R]{}
	for key, v := range before.Vanished {
		if _, found := t.find(key); !found && now.Sub(v.At) <= maxVanished {
			t.Vanished[key] = v
		}
	}
	for _, r := range before.Records {
		switch i, found := t.find(r.Key()); {
		case !found:
			t.Vanished[r.Key()] = Vanished[R]{r, now}
		case t.Records[i].Same(r):
			t.Records[i] = r
		case !t.Records[i].Follows(r):
			isSetBack = true
		}
	}
	t.SetBack = before.SetBack
	if isSetBack {
		t.SetBack++
	}
}

// Apply returns the tree after changes, or t itself if they are in it already. An earlier deletion explains why a
// record has vanished.
func (t *Tree[R]) Apply(changes ...Change[R]) *Tree[R] {
	next := t
	var none R
	for _, c := range changes {
		i, found := next.find(c.Key)
		_, vanished := next.Vanished[c.Key]
		isOld, isDeleted := c.Revision <= t.Revision, c.Record == none
		switch {
		case isOld && (!vanished || !isDeleted), isDeleted && !found && !vanished:
			continue
		case !isDeleted && found && c.Record.Same(next.Records[i]):
			continue
		}
		if next == t {
			clone := *t
			clone.Records, clone.Vanished = slices.Clone(t.Records), maps.Clone(t.Vanished)
			next = &clone
		}
		delete(next.Vanished, c.Key)
		next.Revision = max(next.Revision, c.Revision)
		switch {
		case isDeleted && found:
			next.Records = slices.Delete(next.Records, i, i+1)
		case !isDeleted && found:
			next.Records[i] = c.Record
		case !isDeleted:
			next.Records = slices.Insert(next.Records, i, c.Record)
		}
	}
	return next
}
