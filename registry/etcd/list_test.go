package etcd

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/internal/testkit/etcdtest"
	"github.com/lenonet/leno/registry"
)

// TestLargeValues: large values that other programs have written below the prefix stop nothing, and are not kept.
func TestLargeValues(t *testing.T) {
	t.Parallel()
	s, _ := ownStore(t, etcdtest.Options{})
	n := s.define(t, "10.5.0.0/16")
	follower := s.open(t)
	acquire(t, follower, n, claimOn(n, 1, 10))
	_, index := follow(t, follower, n, 0, []string{"10"})
	const count, size = 40, 1 << 20 // more than fits into one answer
	large := bytes.Repeat([]byte("x"), size)
	for i := range count {
		key := s.keys.prefix + fmt.Sprint("/rubbish/", i)
		if i%2 == 0 {
			key = s.LeaseKey(n, uint64(100+i))
		}
		s.Put(t, key, large)
	}
	s.Put(t, s.keys.prefix+"/"+strings.Repeat("k", size), nil)

	c := s.open(t)
	acquire(t, c, n, claimOn(n, 2, 20))
	follow(t, follower, n, index, []string{"10", "20"})
	for name, c := range map[string]*Client{"new": c, "following": follower} {
		set, _ := follow(t, c, n, 0, []string{"10", "20"})
		if len(set.Bad) != count/2 {
			t.Errorf("%s: %d records were skipped, want %d", name, len(set.Bad), count/2)
		}
		for _, bad := range set.Bad {
			if !strings.Contains(bad.Reason, fmt.Sprintf("%d bytes, at most %d are read", size, registry.MaxRecordSize)) {
				t.Errorf("%s: %+v", name, bad)
			}
		}
		if holders, err := c.Holders(testContext(t), n.Name); err != nil || len(holders) != 2 {
			t.Errorf("%s: holders %+v, %v", name, holders, err)
		}
		all, _ := c.own.mirror.Current()
		for _, r := range all.Records {
			isKept := len(r.value) > registry.MaxRecordSize && &r.value[0] != &registry.TooLarge(1)[0]
			if isKept || len(r.key) > 8<<10 {
				t.Fatalf("%s: %.80s is kept with %d bytes, its key has %d", name, r.key, len(r.value), len(r.key))
			}
		}
	}
}

// TestLongKeys: keys that are too long to be leno's, with the same beginning, say nothing about the store.
func TestLongKeys(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	c := s.open(t)
	c.own.mirror.Idle = 0 // only reads
	long := s.keys.prefix + "/" + strings.Repeat("k", 20<<10)
	for _, name := range []string{"a", "b"} {
		s.Put(t, long+name, nil)
	}
	for range 2 {
		if all, err := c.own.mirror.Refresh(testContext(t)); err != nil || all.SetBack != 0 {
			t.Errorf("%+v, %v", all, err)
		}
		s.Delete(t, long+"b")
	}
}

// TestPages: a list that is read in many pages is the same as one that is read at once.
func TestPages(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	s.define(t, "10.5.0.0/16")
	for i := range 30 {
		s.Put(t, s.keys.prefix+fmt.Sprint("/rubbish/", i), []byte(fmt.Sprint(i)))
	}
	c := s.open(t)
	once, err := c.own.list(testContext(t), s.keys.root())
	if err != nil {
		t.Fatal(err)
	}
	c.own.page.Store(1)
	paged, err := c.own.list(testContext(t), s.keys.root())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(once.Records, paged.Records, func(a, b *record) bool { return a.key == b.key && a.Same(b) }) {
		t.Errorf("%d records at once, other %d in pages", len(once.Records), len(paged.Records))
	}
	if size := c.own.page.Load(); size <= 1 || len(once.Records) < 30 {
		t.Errorf("%d records, and the next page has %d", len(once.Records), size)
	}
}

// TestPageOfCompacted: a list begins again when the revision of its first page is not known any more.
func TestPageOfCompacted(t *testing.T) {
	t.Parallel()
	s, _ := ownStore(t, etcdtest.Options{})
	s.define(t, "10.5.0.0/16")
	c := s.open(t)
	before, err := c.own.list(testContext(t), s.keys.root())
	if err != nil {
		t.Fatal(err)
	}
	s.Put(t, s.keys.prefix+"/more", nil)
	now := s.revision(t)
	if _, err := s.admin.Compact(testContext(t), int64(now), clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	for name, revision := range map[string]uint64{"compacted": before.Revision, "future": uint64(now) + uint64(time.Hour)} {
		if _, err := c.own.readPage(testContext(t), s.keys.root(), s.keys.root(), 10, revision); !errors.Is(err, errOtherState) {
			t.Errorf("a page of a %s revision: %v", name, err)
		}
	}
}
