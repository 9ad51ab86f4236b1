package etcd

import (
	"bytes"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/registry"
)

// record is one key as of the revision of its tree.
type record struct {
	key      string
	value    []byte
	lease    clientv3.LeaseID // the etcd lease that the key is attached to, 0 for none
	created  uint64
	modified uint64
}

// maxKey is the length of the longest key that is kept as it is. Leno's keys are far shorter.
const maxKey = 4 << 10

// keyOf returns the key under which a record is kept.
func keyOf(kv *mvccpb.KeyValue) string { return registry.Shorten(string(kv.Key), maxKey) }

// newRecord returns a record whose size is bounded, whatever another program wrote.
func newRecord(kv *mvccpb.KeyValue) *record {
	return &record{
		key:      keyOf(kv),
		value:    registry.Bounded(kv.Value),
		lease:    clientv3.LeaseID(kv.Lease),
		created:  uint64(kv.CreateRevision),
		modified: uint64(kv.ModRevision),
	}
}

func (r *record) equal(o *record) bool {
	return r.modified == o.modified && r.created == o.created && r.lease == o.lease && bytes.Equal(r.value, o.value)
}

// follows reports whether r can be a later version of the key than o in the same history.
func (r *record) follows(o *record) bool {
	return r.modified > o.modified && (r.created == o.created || r.created > o.modified)
}

// tree is all keys below the prefix as of one revision of one cluster. It is immutable: a change makes another tree.
//
// Every answer of etcd is complete and current, or an error. What remains uncertain is whether etcd itself still knows
// what it was told. A tree counts as set back when it has another cluster id than the tree before, a lower revision, an
// older version of a record, or the same version with other content: a snapshot was restored. A restored store may also
// have continued beyond the revision that is known here, so a record counts as deleted only if its deletion was seen.
type tree struct {
	cluster  uint64
	revision uint64
	records  map[string]*record
	sorted   []*record // the same ones, by key
	setBack  uint64    // how often the store was found to be set back, including this time
	// vanished are the records that were there when the records were read before, and whose deletion was not seen (yet).
	vanished map[string]vanished
}

type vanished struct {
	record *record
	at     time.Time // when it was found to be missing
}

// hasJustLost reports whether records have vanished so recently that the reason may become known at any moment.
func (t *tree) hasJustLost() bool {
	for _, v := range t.vanished {
		if time.Since(v.at) < explainTime {
			return true
		}
	}
	return false
}

// below returns the records whose keys begin with prefix, sorted by key. The caller must not change them.
func (t *tree) below(prefix string) []*record {
	first, _ := t.find(prefix)
	all := t.sorted[first:]
	end := sort.Search(len(all), func(i int) bool { return !strings.HasPrefix(all[i].key, prefix) })
	return all[:end:end]
}

// find returns the position of a key in t.sorted, and whether it is there.
func (t *tree) find(key string) (i int, found bool) {
	return slices.BinarySearchFunc(t.sorted, key, func(r *record, key string) int { return strings.Compare(r.key, key) })
}

// sort sets t.sorted from t.records.
func (t *tree) sort() {
	t.sorted = slices.SortedFunc(maps.Values(t.records), func(a, b *record) int { return strings.Compare(a.key, b.key) })
}

// put adds a record, or replaces the one with the same key.
func (t *tree) put(r *record) {
	i, found := t.find(r.key)
	if found {
		t.sorted[i] = r
	} else {
		t.sorted = slices.Insert(t.sorted, i, r)
	}
	t.records[r.key] = r
}

// remove removes the record with a key, if there is one.
func (t *tree) remove(key string) {
	if i, found := t.find(key); found {
		t.sorted = slices.Delete(t.sorted, i, i+1)
	}
	delete(t.records, key)
}

// modified returns the version of a key, 0 if it does not exist.
func (t *tree) modified(key string) uint64 {
	if r := t.records[key]; r != nil {
		return r.modified
	}
	return 0
}

// hasAttached reports whether a record is attached to an etcd lease.
func (t *tree) hasAttached(id clientv3.LeaseID) bool {
	for _, r := range t.records {
		if r.lease == id {
			return true
		}
	}
	return false
}

// maxVanished is how long a record that vanished is remembered: longer than any client shows it.
const maxVanished = 48 * time.Hour

// continueFrom compares a tree that was just read with the one before, nil for none. Records that are the same share
// their memory.
func (t *tree) continueFrom(before *tree) {
	if before == nil {
		return
	}
	t.vanished = maps.Clone(before.vanished)
	for key, v := range t.vanished {
		if t.records[key] != nil || time.Since(v.at) > maxVanished {
			delete(t.vanished, key)
		}
	}
	isSetBack := t.cluster != before.cluster || t.revision < before.revision
	for key, r := range before.records {
		now := t.records[key]
		if now == nil {
			if t.vanished == nil {
				t.vanished = map[string]vanished{}
			}
			t.vanished[key] = vanished{r, time.Now()}
			continue
		}
		switch {
		case now.equal(r):
			t.records[key] = r
		case !now.follows(r):
			isSetBack = true
		}
	}
	t.setBack = before.setBack
	if isSetBack {
		t.setBack++
	}
}

// apply returns the tree after changes, or t itself if they are in it already.
func (t *tree) apply(events []*clientv3.Event) *tree {
	next := t
	for _, e := range events {
		revision, key := uint64(e.Kv.ModRevision), keyOf(e.Kv)
		_, missing := t.vanished[key]
		explains := missing && e.Type == mvccpb.DELETE
		if revision <= t.revision && !explains {
			continue
		}
		if next == t {
			clone := *t
			clone.records, clone.vanished = maps.Clone(t.records), maps.Clone(t.vanished)
			clone.sorted = slices.Clone(t.sorted)
			next = &clone
		}
		delete(next.vanished, key)
		if revision <= t.revision {
			continue
		}
		next.revision = max(next.revision, revision)
		if e.Type == mvccpb.DELETE {
			next.remove(key)
		} else {
			next.put(newRecord(e.Kv))
		}
	}
	return next
}
