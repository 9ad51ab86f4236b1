package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/internal/testkit/etcdtest"
	"github.com/lenonet/leno/internal/testkit/waiting"
	"github.com/lenonet/leno/registry"
)

// restores are the ways to restore a snapshot. In the last one, only records that are older reveal it.
var restores = map[string][]string{
	"same cluster":    nil,
	"another cluster": {"--initial-cluster-token=other"},
	"bumped":          {"--bump-revision=1000000", "--mark-compacted"},
}

// TestSnapshotRestored: host 1 has its lease in the snapshot, host 2 changed its lease after it, and host 3 got its
// lease after it.
func TestSnapshotRestored(t *testing.T) {
	t.Parallel()
	for name, args := range restores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, server := ownStore(t, etcdtest.Options{})
			n := s.define(t, "10.5.0.0/16")
			watcher, host := s.open(t), s.open(t)
			claims := []registry.Claim{claimOn(n, 1, 10), claimOn(n, 2, 20), claimOn(n, 3, 30)}
			leases := []registry.Lease{acquire(t, host, n, claims[0]), acquire(t, host, n, claims[1])}
			snapshot := server.SaveSnapshot(t)
			claims[1].MTU = 1400
			leases[1] = acquire(t, host, n, claims[1])
			leases = append(leases, acquire(t, host, n, claims[2]))
			before, index := follow(t, watcher, n, 0, []string{"10", "20", "30"})
			seen := map[uint64]string{index: fmt.Sprint(before)}

			server.RestoreSnapshot(t, snapshot, args...)
			set, index := reach(t, watcher, n, []string{"10", "20?", "30?"}, 10, 20, 30)
			if set.SetBack != 1 {
				t.Errorf("set back %d times, want 1", set.SetBack)
			}
			if l := set.Leases[1]; l.Slot != 20 || l.MTU != 1400 {
				t.Errorf("the version of the snapshot is shown: %+v", l)
			}
			checkIndex(t, seen, index, set)
			// Other changes do not bring the older version of host 2 to the fore.
			acquire(t, s.open(t), n, claimOn(n, 4, 40))
			set, index = follow(t, watcher, n, index, []string{"10", "20?", "30?", "40"}, 10, 20, 30)
			checkIndex(t, seen, index, set)

			// A host that knows of the leases takes none of them, even if it wants to.
			newcomer := claimOn(n, 5, 30)
			newcomer.TTL = 5 * time.Second
			fifth, err := watcher.Acquire(testContext(t), n, newcomer)
			if err != nil || slices.Contains([]uint64{10, 20, 30, 40}, fifth.Slot) {
				t.Fatalf("a newcomer got slot %d, %v", fifth.Slot, err)
			}
			if err := watcher.Release(testContext(t), fifth); err != nil {
				t.Fatal(err)
			}

			err = host.Renew(testContext(t), leases[2])
			wantErr(t, err, registry.ErrLeaseLost)
			for i := range leases {
				leases[i] = acquire(t, host, n, again(claims[i], leases[i]))
			}
			set, index = follow(t, watcher, n, index, []string{"10", "20", "30", "40"}, 10, 20, 30)
			checkIndex(t, seen, index, set)
			for _, l := range leases {
				if err := host.Renew(testContext(t), l); err != nil {
					t.Errorf("slot %d: %v", l.Slot, err)
				}
			}
		})
	}
}

// checkIndex fails if an index was used for other content.
func checkIndex(t *testing.T, seen map[uint64]string, index uint64, set registry.LeaseSet) {
	t.Helper()
	content := fmt.Sprint(set)
	if other, ok := seen[index]; ok && other != content {
		t.Errorf("index %d was used for other content:\n%s\n%s", index, other, content)
	}
	seen[index] = content
}

// TestLostLeasesAreGivenUp: after Settle, leases that the store has lost are not shown any more.
func TestLostLeasesAreGivenUp(t *testing.T) {
	t.Parallel()
	for name, args := range restores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, server := ownStore(t, etcdtest.Options{})
			n := s.define(t, "10.5.0.0/16")
			watcher, host := s.open(t, settle(4*time.Second)), s.open(t)
			acquire(t, host, n, claimOn(n, 1, 10))
			snapshot := server.SaveSnapshot(t)
			acquire(t, host, n, claimOn(n, 2, 20))
			follow(t, watcher, n, 0, []string{"10", "20"})
			server.RestoreSnapshot(t, snapshot, args...)
			set, index := reach(t, watcher, n, []string{"10", "20?"}, 10, 20)
			// Where the revision goes on, the deletion may be one that was compacted away.
			if wanted := name != "bumped"; set.Leases[0].Lost || set.Leases[1].Lost != wanted {
				t.Errorf("lost: %t, %t", set.Leases[0].Lost, set.Leases[1].Lost)
			}
			follow(t, watcher, n, index, []string{"10"})
			acquire(t, watcher, n, claimOn(n, 3, 20))
		})
	}
}

// TestOvertaken: after a restore, other hosts write so much that the revision is the same again, and a record has the
// same version with other content.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	s, server := ownStore(t, etcdtest.Options{})
	n := s.define(t, "10.5.0.0/16")
	link := newLink(t, s)
	watcher, host := s.open(t, link.config), s.open(t)
	snapshot := server.SaveSnapshot(t)
	key := s.keys.definition("blue")
	s.Put(t, key, []byte(`{"version":1}`))
	other := acquire(t, host, n, claimOn(n, 1, 10))
	_, index := watchList(t, watcher)
	_, leases := follow(t, watcher, n, 0, []string{"10"})
	revision := s.revision(t)
	link.cut()
	awaitNotFollowing(t, watcher)
	server.RestoreSnapshot(t, snapshot)
	s.Put(t, key, []byte(`{"version":2}`))
	for s.revision(t) < revision {
		if _, err := s.admin.Put(testContext(t), s.keys.prefix+"/any", ""); err != nil {
			t.Fatal(err)
		}
	}
	link.mend()
	retry(t, func(ctx context.Context) error { _, _, err := watcher.WatchNetworks(ctx, 0); return err })
	set, next := watchList(t, watcher)
	if next == index || len(set.Bad) != 1 || !strings.Contains(set.Bad[0].Reason, "version 2") {
		t.Errorf("index %d before and %d now: %+v", index, next, set)
	}
	got, after := follow(t, watcher, n, registry.Known, []string{"10?"}, 10)
	if after == leases || got.SetBack != 1 {
		t.Errorf("index %d before and %d now, set back %d times", leases, after, got.SetBack)
	}
	acquire(t, host, n, again(claimOn(n, 1, 10), other))
	follow(t, watcher, n, after, []string{"10"}, 10)
}

// TestRestoredUnnoticed: a host learns that it has lost its connections only when the store is restored, from one after
// the other, so that it always has one. In one case, the revision is the same again by then.
func TestRestoredUnnoticed(t *testing.T) {
	t.Parallel()
	for _, overtaken := range []bool{false, true} {
		t.Run(fmt.Sprint("overtaken=", overtaken), func(t *testing.T) {
			t.Parallel()
			s, server := ownStore(t, etcdtest.Options{})
			n := s.define(t, "10.5.0.0/16")
			links := []*link{newLink(t, s), newLink(t, s)}
			watcher, host := s.open(t, func(c *Config) {
				c.Endpoints = []string{"http://" + links[0].listener.Addr().String(), "http://" + links[1].listener.Addr().String()}
			}), s.open(t)
			acquire(t, host, n, claimOn(n, 1, 10))
			snapshot := server.SaveSnapshot(t)
			acquire(t, host, n, claimOn(n, 2, 20))
			_, index := follow(t, watcher, n, 0, []string{"10", "20"})
			for _, l := range links {
				waiting.Until(t, "the host has both connections", func() bool { return l.connections() > 0 })
			}
			revision := s.revision(t)
			for _, l := range links {
				l.halfOpen.Lock()
			}
			server.RestoreSnapshot(t, snapshot)
			for overtaken && s.revision(t) <= revision {
				if _, err := s.admin.Put(testContext(t), s.keys.prefix+"/any", ""); err != nil {
					t.Fatal(err)
				}
			}
			for _, l := range links {
				l.halfOpen.Unlock()
				waiting.Until(t, "the host connects again", func() bool { // the other one does not answer yet
					ctx, cancel := context.WithTimeout(testContext(t), 200*time.Millisecond)
					defer cancel()
					return watcher.Probe(ctx) == nil
				})
			}
			// The changes may still be watched over the second connection.
			retry(t, func(ctx context.Context) error { _, _, err := watcher.WatchLeases(ctx, n, index); return err })
			set, _ := follow(t, watcher, n, registry.Known, []string{"10", "20?"}, 10, 20)
			if set.SetBack != 1 && !overtaken {
				t.Errorf("set back %d times, want 1", set.SetBack)
			}
		})
	}
}

func watchList(t *testing.T, c *Client) (registry.NetworkSet, uint64) {
	t.Helper()
	set, index, err := c.WatchNetworks(testContext(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	return set, index
}

func (s *store) revision(t *testing.T) int64 {
	t.Helper()
	resp, err := s.admin.Get(testContext(t), "any")
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}

// TestLostBeforeWatched: a host that has seen the leases only while it watched the networks takes none that was lost.
func TestLostBeforeWatched(t *testing.T) {
	t.Parallel()
	s, server := ownStore(t, etcdtest.Options{})
	n := s.define(t, "10.5.0.0/22")
	newcomer, host := s.open(t), s.open(t)
	snapshot := server.SaveSnapshot(t)
	for i := range 3 {
		acquire(t, host, n, claimOn(n, i+1, uint64(i+1)))
	}
	watchList(t, newcomer)
	server.RestoreSnapshot(t, snapshot)
	retry(t, func(ctx context.Context) error {
		_, err := newcomer.Acquire(ctx, n, claim(9))
		if errors.Is(err, registry.ErrNetworkFull) {
			return nil
		}
		if err == nil {
			t.Error("a newcomer got a slot that is in use")
		}
		return err
	})
}

// TestLostSlotsAreGivenUp: a host without a lease follows no leases, and gets a subnet whose lease the store has lost
// when Settle is over.
func TestLostSlotsAreGivenUp(t *testing.T) {
	t.Parallel()
	s, server := ownStore(t, etcdtest.Options{})
	n := s.define(t, "10.5.0.0/22")
	newcomer, host := s.open(t, settle(2*time.Second)), s.open(t)
	snapshot := server.SaveSnapshot(t)
	for i := range 3 {
		acquire(t, host, n, claimOn(n, i+1, uint64(i+1)))
	}
	follow(t, newcomer, n, 0, []string{"1", "2", "3"})
	server.RestoreSnapshot(t, snapshot)
	ctx := testContext(t)
	for _, err := newcomer.Acquire(ctx, n, claim(9)); err != nil; _, err = newcomer.Acquire(ctx, n, claim(9)) {
		if !errors.Is(err, registry.ErrUnavailable) && !errors.Is(err, registry.ErrNetworkFull) ||
			registry.Sleep(ctx, 50*time.Millisecond) != nil {
			t.Fatal(err)
		}
	}
}

// TestEmptied: all keys are deleted. No reader believes that there are no leases, hosts take their subnets back at once,
// and newcomers wait for them.
func TestEmptied(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]*etcdtest.Shared{"new": &common, "old": &old} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "old" {
				etcdtest.OldProgram(t) // or fail
			}
			s := newStore(t, shared.Get(t))
			n := s.define(t, "10.5.0.0/16")
			watcher, host := s.open(t), s.open(t)
			claims := []registry.Claim{claimOn(n, 1, 10), claimOn(n, 2, 20)}
			leases := []registry.Lease{acquire(t, host, n, claims[0]), acquire(t, host, n, claims[1])}
			_, index := follow(t, watcher, n, 0, []string{"10", "20"})
			failed := make(chan error, 1)
			go func() {
				_, _, err := watcher.WatchLeases(testContext(t), n, index)
				failed <- err
			}()
			s.empty(t)
			wantErr(t, <-failed, registry.ErrUncertain)
			for _, after := range []uint64{0, registry.Known, index} {
				_, _, err := watcher.WatchLeases(testContext(t), n, after)
				wantErr(t, err, registry.ErrUncertain)
			}
			if at := watcher.Followed(n.Name); at.IsZero() {
				t.Error("never followed")
			} else if time.Sleep(50 * time.Millisecond); watcher.Followed(n.Name) != at {
				t.Error("Followed advances while the leases are uncertain")
			}
			_, _, err := s.open(t).WatchLeases(testContext(t), n, 0)
			wantErr(t, err, registry.ErrUncertain)

			newcomer := s.open(t)
			n.ModifyIndex = 0
			if err := newcomer.PutNetwork(testContext(t), n); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				_, err = newcomer.Acquire(testContext(t), n, claim(3))
				wantErr(t, err, registry.ErrLeasesLost)
			}
			set, index := follow(t, watcher, n, registry.Known, []string{"10?", "20?"}, 10, 20)
			if set.SetBack != 1 {
				t.Errorf("set back %d times", set.SetBack)
			}

			leases[0] = acquire(t, host, n, again(claims[0], leases[0]))
			_, err = newcomer.Acquire(testContext(t), n, claim(3))
			wantErr(t, err, registry.ErrLeasesLost)
			leases[1] = acquire(t, host, n, again(claims[1], leases[1]))
			follow(t, watcher, n, index, []string{"10", "20"}, 10, 20)
			for _, l := range leases {
				if err := host.Renew(testContext(t), l); err != nil {
					t.Error(err)
				}
			}
			holders, err := newcomer.Holders(testContext(t), n.Name)
			if err != nil || len(holders) != 2 || holders[0].Node != "host-1" || holders[1].Node != "host-2" {
				t.Errorf("%+v, %v", holders, err)
			}
			other := claim(3)
			other.TTL = 5 * time.Second
			third, err := newcomer.Acquire(testContext(t), n, other)
			if err != nil || third.Slot == 10 || third.Slot == 20 {
				t.Errorf("%+v, %v", third, err)
			}
		})
	}
}

// TestSetBackBeforeItWasEmptied: all keys were deleted, a host changed its lease when it wrote it again, and then a snapshot
// from before was restored. The lease is shown as its host wrote it last.
func TestSetBackBeforeItWasEmptied(t *testing.T) {
	t.Parallel()
	for name, args := range restores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, server := ownStore(t, etcdtest.Options{})
			n := s.define(t, "10.5.0.0/16")
			watcher, host := s.open(t), s.open(t)
			c := claimOn(n, 1, 10)
			lease := acquire(t, host, n, c)
			snapshot := server.SaveSnapshot(t)
			follow(t, watcher, n, 0, []string{"10"})
			s.empty(t)
			n.ModifyIndex = 0
			if err := host.PutNetwork(testContext(t), n); err != nil {
				t.Fatal(err)
			}
			c = again(c, lease)
			c.MTU = 1300
			lease = acquire(t, host, n, c)
			set, index := follow(t, watcher, n, registry.Known, []string{"10"}, 10)
			for set.Leases[0].MTU != c.MTU {
				set, index = follow(t, watcher, n, index, []string{"10"}, 10)
			}
			server.RestoreSnapshot(t, snapshot, args...)
			set, index = reach(t, watcher, n, []string{"10?"}, 10)
			if got := set.Leases[0].MTU; got != c.MTU {
				t.Errorf("the version of the snapshot is shown, with an MTU of %d", got)
			}
			acquire(t, host, n, again(c, lease))
			set, _ = follow(t, watcher, n, index, []string{"10"}, 10)
			if got := set.Leases[0].MTU; got != c.MTU {
				t.Errorf("the host has written an MTU of %d", got)
			}
		})
	}
}

// TestEmptiedAfterItWasSetBack: the store has an older version of a lease, from a snapshot, when all keys are deleted. The
// lease is kept until its host writes it again.
func TestEmptiedAfterItWasSetBack(t *testing.T) {
	t.Parallel()
	for name, args := range restores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, server := ownStore(t, etcdtest.Options{})
			n := s.define(t, "10.5.0.0/16")
			watcher, host := s.open(t), s.open(t)
			changed, unchanged := claimOn(n, 1, 10), claimOn(n, 2, 20)
			lease := acquire(t, host, n, changed)
			other := acquire(t, host, n, unchanged)
			snapshot := server.SaveSnapshot(t)
			changed = again(changed, lease)
			changed.MTU = 1300
			lease = acquire(t, host, n, changed)
			follow(t, watcher, n, 0, []string{"10", "20"})
			server.RestoreSnapshot(t, snapshot, args...)
			reach(t, watcher, n, []string{"10?", "20"}, 10, 20)
			s.empty(t)
			n.ModifyIndex = 0
			retry(t, func(ctx context.Context) error { return host.PutNetwork(ctx, n) })
			retry(t, func(ctx context.Context) error {
				_, _, err := watcher.WatchLeases(ctx, n, registry.Known)
				if errors.Is(err, registry.ErrUncertain) {
					return registry.ErrUnavailable // the network is not read yet
				}
				return err
			})
			_, index := follow(t, watcher, n, registry.Known, []string{"10?", "20?"}, 10, 20)
			acquire(t, host, n, again(unchanged, other))
			_, index = follow(t, watcher, n, index, []string{"10?", "20"}, 10, 20)
			acquire(t, host, n, again(changed, lease))
			set, _ := follow(t, watcher, n, index, []string{"10", "20"}, 10, 20)
			if got := set.Leases[0].MTU; got != changed.MTU {
				t.Errorf("an MTU of %d", got)
			}
		})
	}
}

// empty deletes all keys of the store.
func (s *store) empty(t *testing.T) {
	t.Helper()
	if _, err := s.admin.Delete(testContext(t), s.keys.root(), clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
}

// TestEmptiedForNewcomer: a newcomer whose claim finds no definition and no marker waits too.
func TestEmptiedForNewcomer(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	n := s.define(t, "10.5.0.0/16")
	host := s.open(t)
	c := claimOn(n, 1, 10)
	l := acquire(t, host, n, c)
	s.empty(t)
	newcomer := s.open(t)
	for range 3 {
		_, err := newcomer.Acquire(testContext(t), n, claim(3))
		wantErr(t, err, registry.ErrLeasesLost)
	}
	acquire(t, host, n, again(c, l))
}

// TestKeptWhileAway: a host is away while a snapshot brings back an older record of it. When the time to write it again has
// passed, the host is still known as it was before, and lapsed, until that record is removed.
func TestKeptWhileAway(t *testing.T) {
	t.Parallel()
	for name, args := range restores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, server := ownStore(t, etcdtest.Options{})
			n := s.define(t, "10.5.0.0/16")
			const kept = 4 * time.Second
			watcher, host := s.open(t, settle(kept)), s.open(t)
			c := claimOn(n, 1, 10)
			lease := acquire(t, host, n, c)
			snapshot := server.SaveSnapshot(t)
			c = again(c, lease)
			c.MTU = 1300
			acquire(t, host, n, c)
			set, index := follow(t, watcher, n, 0, []string{"10"})
			for set.Leases[0].MTU != c.MTU {
				set, index = follow(t, watcher, n, index, []string{"10"}, 10)
			}
			server.RestoreSnapshot(t, snapshot, args...)
			reach(t, watcher, n, []string{"10?"}, 10)
			s.EndSession(t, lease.Session) // before the time to write the record again has passed
			set, _ = follow(t, watcher, n, registry.Known, []string{"10-?"}, 10)
			for end := time.Now().Add(kept + time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				if set, _, _ = watcher.WatchLeases(testContext(t), n, registry.Known); len(set.Leases) != 1 || set.Leases[0].MTU != c.MTU || set.Leases[0].Held() {
					t.Fatalf("%+v", set.Leases)
				}
			}
			if err := watcher.Expire(testContext(t), set.Leases[0]); err != nil {
				t.Error(err)
			}
			follow(t, watcher, n, registry.Known, []string{})
		})
	}
}

// TestLostFlannelHost: a store that was set back to before a flannel host joined does not take its routes, since flanneld
// writes its record once a day. The operator is told so until a host with leno has put the record back. The record ends
// the wait, as does that of a leno host with the address.
func TestLostFlannelHost(t *testing.T) {
	t.Parallel()
	for name, args := range restores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, server := ownStore(t, etcdtest.Options{})
			c := s.open(t, settle(time.Second))
			n := s.flannelNetwork(t, c, strings.ReplaceAll(oneFamily, "/22", "/16"))
			host := vxlanClaim(t, 1)
			host.Prefer = n.Plan.Subnets(10)[0]
			acquire(t, s.open(t), n, host)
			snapshot := server.SaveSnapshot(t)
			before, err := s.admin.Get(testContext(t), s.flannelLease(t, "10.5.20.0-24", "192.0.2.99", false))
			if err != nil {
				t.Fatal(err)
			}
			written := string(before.Kvs[0].Value)
			s.flannelLease(t, "10.5.30.0-24", "192.0.2.98", false)
			s.flannelLease(t, "10.5.40.0-24", "192.0.2.97", false)
			follow(t, c, n, 0, []string{"10", "20", "30", "40"})
			server.RestoreSnapshot(t, snapshot, args...)
			reach(t, c, n, []string{"10", "20?", "30?", "40?"})
			s.flannelLease(t, "10.5.31.0-24", "192.0.2.98", false)
			taken := vxlanClaim(t, 97)
			taken.Prefer = n.Plan.Subnets(41)[0]
			acquire(t, s.open(t), n, taken)
			reach(t, c, n, []string{"10", "20?", "31", "41"})
			set, _ := reach(t, c, n, []string{"10", "20?", "31", "41"})
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end); { // past Settle
				time.Sleep(50 * time.Millisecond)
				set, _ = reach(t, c, n, []string{"10", "20?", "31", "41"})
			}
			want := "restart flanneld there"
			if len(set.Bad) != 1 || !strings.Contains(set.Bad[0].Reason, want) || !strings.Contains(set.Bad[0].Reason, "192.0.2.99") {
				t.Errorf("%+v, want %q", set.Bad, want)
			}
			newcomer := vxlanClaim(t, 5)
			newcomer.Prefer = n.Plan.Subnets(20)[0]
			if l, err := c.Acquire(testContext(t), n, newcomer); err != nil || l.Slot == 20 {
				t.Errorf("a newcomer got %+v, %v", l, err)
			} else if err := c.Release(testContext(t), l); err != nil {
				t.Fatal(err)
			}
			// Any host puts the record back as flanneld wrote it.
			lost := set.Leases[slices.IndexFunc(set.Leases, func(l registry.Lease) bool { return l.Slot == 20 })]
			if err := s.open(t).Restore(testContext(t), n, lost, time.Minute); err != nil {
				t.Fatal(err)
			}
			if set, _ := reach(t, c, n, []string{"10", "20", "31", "41"}); len(set.Bad) > 0 {
				t.Errorf("%+v", set.Bad)
			}
			resp, err := s.admin.Get(testContext(t), s.keys.prefix+"/subnets/10.5.20.0-24")
			if err != nil || len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != written {
				t.Fatalf("%v, %v, want %s", resp, err, written)
			}
			ttl, err := s.admin.TimeToLive(testContext(t), clientv3.LeaseID(resp.Kvs[0].Lease))
			if err != nil || ttl.GrantedTTL != int64(registry.FlannelTTL/time.Second) {
				t.Errorf("%+v, %v, want a day", ttl, err)
			}
			wantErr(t, s.open(t).Restore(testContext(t), n, lost, time.Minute), registry.ErrConflict)
		})
	}
}

// TestRestoreFlannelHost: the lease of a flannel host is not put back if another host has its IPv6 subnet by now, which may
// be at another position of its pool than the IPv4 subnet.
func TestRestoreFlannelHost(t *testing.T) {
	t.Parallel()
	s := newStore(t, common.Get(t))
	c := s.open(t)
	n := s.flannelNetwork(t, c, bothFamilies)
	key := s.flannelLease(t, "10.5.1.0-24&fd00:5:0:2::-64", "192.0.2.99", false)
	set, _, err := c.WatchLeases(testContext(t), n, 0)
	if err != nil || len(set.Leases) != 1 {
		t.Fatalf("%+v, %v", set, err)
	}
	acquire(t, c, n, vxlanClaim(t, 3)) // makes the marker
	s.Delete(t, key)
	taken := s.flannelLease(t, "10.5.2.0-24&fd00:5:0:2::-64", "192.0.2.98", false)
	wantErr(t, c.Restore(testContext(t), n, set.Leases[0], time.Minute), registry.ErrConflict)
	s.Delete(t, taken)
	if err := c.Restore(testContext(t), n, set.Leases[0], time.Minute); err != nil {
		t.Error(err)
	}
	follow(t, c, n, 0, []string{"1", "3"})
}

// TestRestoreOfATakenSubnet: all hosts try to restore the same leases, so those that find one restored write nothing.
func TestRestoreOfATakenSubnet(t *testing.T) {
	t.Parallel()
	s, _ := ownStore(t, etcdtest.Options{})
	n := s.define(t, "10.5.0.0/16")
	lost := acquire(t, s.open(t), n, claimOn(n, 1, 10))
	c := s.open(t)
	written := func() uint64 {
		status, err := s.admin.Status(testContext(t), s.admin.Endpoints()[0])
		if err != nil {
			t.Fatal(err)
		}
		return status.RaftIndex
	}
	wantErr(t, c.Restore(testContext(t), n, lost, time.Minute), registry.ErrConflict)
	before := written()
	for range 10 {
		wantErr(t, c.Restore(testContext(t), n, lost, time.Minute), registry.ErrConflict)
	}
	if after := written(); after != before {
		t.Errorf("%d writes", after-before)
	}
}
