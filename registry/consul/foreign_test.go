package consul

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/changelog"
	"github.com/lenonet/leno/registry/consul/keys"
	"github.com/lenonet/leno/registry/consul/transport"
)

// The directory of changes is foreign input too: any program with the right to write there may write nonsense.

// putRaw writes keys in a transaction, which accepts keys that paths do not.
func putRaw(t *testing.T, s *store, values map[string]string, flags uint64) {
	t.Helper()
	for keys := range slices.Chunk(slices.Sorted(maps.Keys(values)), 64) {
		var ops api.TxnOps
		for _, key := range keys {
			ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: key, Value: []byte(values[key]), Flags: flags}})
		}
		ok, answer, _, err := s.server.admin.Txn().Txn(ops, nil)
		if err != nil || !ok {
			t.Fatalf("%v, %v", err, answer)
		}
	}
}

// stamp is the part of an entry's name before the subnet.
const stamp = "00000000000000000000000"

// keeping watches the leases until the context ends, as agents do, and fails when one of the slots is missing. done is
// closed when it has ended.
func keeping(ctx context.Context, t *testing.T, c *Client, n registry.Network, index uint64, least ...uint64) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			set, next, err := c.WatchLeases(ctx, n, index)
			switch {
			case ctx.Err() != nil:
				return
			case errors.Is(err, registry.ErrUnavailable), errors.Is(err, registry.ErrUncertain):
				_ = registry.Sleep(ctx, 20*time.Millisecond)
				continue
			case err != nil:
				t.Errorf("watching: %v", err)
				return
			}
			index = next
			for _, slot := range least {
				if !slices.Contains(slots(set), slot) {
					t.Errorf("slot %d is missing from %v, skipped %v", slot, slots(set), set.Bad)
					return
				}
			}
		}
	}()
	return done
}

// TestForeignEntries: entries that leno never writes have no effect and are trimmed like others, and real changes
// between them are seen.
func TestForeignEntries(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	watcher, n, _, index := watched(t, s, func(c *Config) { c.Recent = 3 * time.Second })
	folder := s.prefix + "/changes/default/"
	garbage := map[string]string{
		folder:                 "",
		folder + "x":           "{",
		folder + "-":           "{",
		folder + "deeper/down": "{}",
		folder + "deeper/" + stamp + "0_10.5.10.0-24":           "",
		folder + "\x1b[2J\u202e\n_10.5.10.0-24":                 "",
		folder + "abc_10.5.10.0-24":                             "",
		folder + strings.ToUpper("abcdef") + "_10.5.10.0-24":    "",
		folder + stamp + "0_":                                   "",
		folder + stamp + "0__":                                  "",
		folder + stamp + "0_../../networks/default":             "",
		folder + stamp + "0_10.5.10.0-24/x":                     "",
		folder + stamp + "0_10.5.10.0-24 ":                      "",
		folder + stamp + "0_" + strings.Repeat("1", 65):         "",
		folder + stamp + "1_" + strings.Repeat(".", 64):         "",
		folder + stamp + "2_10.9.0.0-24":                        "{}",
		folder + stamp + "3_fd00..-64":                          "\xff\xfe",
		folder + stamp + "4_10.5.77.0-24":                       strings.Repeat("x", 300<<10),
		folder + stamp + "5_10.5.78.0-24":                       strings.Repeat("[", 10000),
		folder + "ffffffffffffffffffffffff_10.5.79.0-24":        `{"version":2}`,
		folder + strings.Repeat("\u202ek", 20000):               "",
		folder + "ffffffffffffffffffffffff_10.5.80.0-24":        "",
		s.prefix + "/changes/other/" + stamp + "0_10.5.10.0-24": "",
	}
	ctx, cancel := context.WithCancel(testContext(t))
	done := keeping(ctx, t, s.open(t, func(c *Config) { c.Recent = 3 * time.Second }), n, 0, 10, 20, 30)
	putRaw(t, s, garbage, 0)
	for i := range 40 {
		putRaw(t, s, map[string]string{fmt.Sprintf("%sjunk-%d", folder, i) + strings.Repeat("\x1b", 2000): "{"}, 1<<63)
	}
	c := claim(7)
	c.Prefer = n.Plan.Subnets(99)[0]
	claimer := s.open(t)
	eventually(t, "a lease", func() bool { // hosts also try again if the entries take too long to read
		_, err := claimer.Acquire(testContext(t), n, c)
		if err != nil && !errors.Is(err, registry.ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
	_, index = follow(t, watcher, n, index, []uint64{10, 20, 30, 99}, []uint64{10, 20, 30})
	watched := keeping(ctx, t, watcher, n, index, 10, 20, 30, 99)
	eventually(t, "the directory to be trimmed", func() bool { return len(s.Keys(t, folder)) == 1 })
	// The watcher finds out that some entries are about records that do not exist.
	eventually(t, "nothing to be skipped", func() bool {
		set, _, err := watcher.WatchLeases(testContext(t), n, 0)
		return err == nil && len(set.Bad) == 0
	})
	cancel()
	<-done
	<-watched
}

// TestLargeEntries: entries of any size are followed, and what is read of them is not kept.
func TestLargeEntries(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	watcher, n, _, index := watched(t, s, never)
	folder, size := s.prefix+"/changes/default/", 300<<10
	var large []string
	for i := range 2 * fewEntries {
		large = append(large, fmt.Sprintf("%s%s%x_10.5.%d.0-24", folder, stamp, i%16, 100+i))
		s.Put(t, large[i], bytes.Repeat([]byte("x"), size))
	}
	c := claim(7)
	c.Prefer = n.Plan.Subnets(99)[0]
	if _, err := s.open(t, never).Acquire(testContext(t), n, c); err != nil {
		t.Fatal(err)
	}
	follow(t, watcher, n, index, []uint64{10, 20, 30, 99}, []uint64{10, 20, 30})
	ctx := testContext(t)
	pairs, err := watcher.kv.GetEach(ctx, transport.Read{}, large)
	for errors.Is(err, registry.ErrUnavailable) && registry.Sleep(ctx, 50*time.Millisecond) == nil { // a busy machine is late
		pairs, err = watcher.kv.GetEach(ctx, transport.Read{}, large)
	}
	if err != nil || len(pairs) != len(large) {
		t.Fatalf("%d of %d entries, %v", len(pairs), len(large), err)
	}
	for _, pair := range pairs {
		if len(pair.Value) != size || &pair.Value[0] != &registry.TooLarge(1)[0] {
			t.Fatalf("%s is kept with %d bytes", pair.Key, len(pair.Value))
		}
	}
}

// TestForeignWatermark: whatever its value, nothing is lost and changes are seen.
func TestForeignWatermark(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	watcher, n, _, index := watched(t, s)
	key := s.prefix + "/changes/default/" + changelog.WatermarkName
	want := []uint64{10, 20, 30}
	for i, value := range []string{"nonsense", "", "-1", "18446744073709551615", "99999999999999999999999", "0", "\xff", strings.Repeat("9", 300<<10)} {
		s.Put(t, key, []byte(value))
		c := claim(10 + i)
		slot := uint64(40 + i)
		c.Prefer = n.Plan.Subnets(slot)[0]
		if _, err := s.open(t).Acquire(testContext(t), n, c); err != nil {
			t.Fatalf("%.20q: %v", value, err)
		}
		want = append(want, slot)
		_, index = follow(t, watcher, n, index, want, want[:len(want)-1])
	}
	s.Delete(t, key)
	c := claim(30)
	c.Prefer = n.Plan.Subnets(99)[0]
	if _, err := s.open(t).Acquire(testContext(t), n, c); err != nil {
		t.Fatal(err)
	}
	follow(t, watcher, n, index, append(want, 99), want)
}

// TestForgedEntries: entries about live leases that contradict the leases' records. An entry that removes a lease is
// never believed. Other entries are corrected by the next audit. What they show looks like records that a store lost
// when it was set back, so it may stay as long as such records do.
func TestForgedEntries(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	watcher, n, leases, index := watched(t, s, settle(300*time.Millisecond))
	folder := s.prefix + "/changes/default/"
	ctx, cancel := context.WithCancel(testContext(t))
	done, watched := keeping(ctx, t, s.open(t), n, 0, 10), keeping(ctx, t, watcher, n, index)
	for i, flags := range []uint64{0, changelog.FlagRevoked, changelog.FlagUnheld, changelog.FlagManual, changelog.FlagManual | changelog.FlagUnheld, ^uint64(0)} {
		name := func(slot uint64) string {
			return fmt.Sprintf("%s%024x_%s", folder, i, registry.SubnetKey(n.Plan.Subnets(slot)[0]))
		}
		putRaw(t, s, map[string]string{
			name(10): "",
			name(20): "{",
			name(30): string(leaseRecord(t, n, 30, 55)),
			name(40): string(leaseRecord(t, n, 40, 56)),
			name(50): strings.Repeat("x", 100<<10),
		}, flags)
		eventually(t, fmt.Sprintf("the truth to be seen again after flags %#x", flags), func() bool {
			set, _, err := watcher.WatchLeases(testContext(t), n, 1)
			if err != nil || len(set.Bad) > 0 || len(set.Leases) != len(leases) {
				return false
			}
			for j, l := range set.Leases {
				if !l.SameValue(leases[j]) {
					return false
				}
			}
			return true
		})
	}
	cancel()
	<-done
	<-watched
	for _, l := range leases {
		if value, session, ok := s.Get(t, s.prefix+"/leases/default/"+registry.SubnetKey(l.Subnet())); !ok || session != l.Session || len(value) == 0 {
			t.Errorf("lease %s: %q under session %q", l.Subnet(), value, session)
		}
	}
}

func formatLease(t *testing.T, l registry.Lease) string {
	t.Helper()
	value, err := registry.FormatLease(l)
	if err != nil {
		t.Fatal(err)
	}
	return string(value)
}

// TestForgedEntriesAboutHosts: entries that move a live host, name a live host on another subnet, or hide what happened
// change nothing. The store is never taken for one that was set back.
func TestForgedEntriesAboutHosts(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	q, through := counted(t, s)
	watcher, n, leases, index := watched(t, s, through, never)
	folder := s.prefix + "/changes/default/"
	entries := 0
	entry := func(slot uint64) string {
		entries++
		return fmt.Sprintf("%s%024x_%s", folder, entries, registry.SubnetKey(n.Plan.Subnets(slot)[0]))
	}
	moved := leases[1]
	moved.PublicIPs = []netip.Addr{netip.MustParseAddr("203.0.113.66")}
	copied := leases[2]
	copied.Slot, copied.Subnets = 40, n.Plan.Subnets(40)
	victim := leases[0]
	victim.Slot, victim.Subnets = 40, n.Plan.Subnets(40)
	for i, forge := range []func(){
		func() { putRaw(t, s, map[string]string{entry(20): formatLease(t, moved)}, 0) },
		func() { putRaw(t, s, map[string]string{entry(20): formatLease(t, moved)}, changelog.FlagUnheld) },
		func() { putRaw(t, s, map[string]string{entry(20): formatLease(t, leases[1])}, changelog.FlagUnheld) },
		func() { putRaw(t, s, map[string]string{entry(20): formatLease(t, leases[1])}, 0) },
		func() { putRaw(t, s, map[string]string{entry(40): formatLease(t, copied)}, 0) },
		func() { putRaw(t, s, map[string]string{entry(10): "", entry(40): formatLease(t, victim)}, 0) },
		func() { s.Put(t, folder+changelog.WatermarkName, []byte("18446744073709551615")) },
		func() { s.Put(t, folder+changelog.WatermarkName, []byte("0")) },
		func() { s.Delete(t, s.Keys(t, folder)[1]) }, // [0] is the oldest entry, "_" sorts last
	} {
		forge()
		c := claim(50 + i)
		c.Prefer = n.Plan.Subnets(uint64(50 + i))[0]
		if _, err := s.open(t, never).Acquire(testContext(t), n, c); err != nil {
			t.Fatal(err)
		}
		for seen := false; !seen; {
			set, next, err := watcher.WatchLeases(testContext(t), n, index)
			if err != nil {
				t.Fatal(err)
			}
			index = next
			if set.SetBack != 0 || len(set.Bad) > 0 {
				t.Fatalf("after forgery %d: set back %d times, skipped %v", i, set.SetBack, set.Bad)
			}
			found := 0
			for _, l := range set.Leases {
				found += len(slices.DeleteFunc(slices.Clone(leases), func(o registry.Lease) bool { return o.Slot != l.Slot }))
				seen = seen || l.Slot == uint64(50+i)
				if j := slices.IndexFunc(leases, func(o registry.Lease) bool { return o.Slot == l.Slot }); j >= 0 && (!l.SameValue(leases[j]) || !l.Held()) {
					t.Fatalf("after forgery %d: %+v", i, l)
				}
				if l.Slot == 40 {
					t.Fatalf("after forgery %d: %+v has no record", i, l)
				}
			}
			if found != len(leases) {
				t.Fatalf("after forgery %d: %v", i, slots(set))
			}
		}
	}
	lists := q.of("list")
	if set, _, err := watcher.WatchLeases(testContext(t), n, 0); err != nil || set.SetBack != 0 {
		t.Errorf("set back %d times, %v", set.SetBack, err)
	}
	if lists != 2 { // a watermark that went back may be the only sign of a restore
		t.Errorf("%d lists of leases, want the first and another one", lists)
	}
}

// TestForgedLease: a lease that has an entry and no record is shown until the next list at most, which leaves no doubt.
func TestForgedLease(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	watcher, n, leases, index := watched(t, s, never)
	name := fmt.Sprintf("%s/changes/default/%024x_%s", s.prefix, 1, registry.SubnetKey(n.Plan.Subnets(40)[0]))
	putRaw(t, s, map[string]string{name: string(leaseRecord(t, n, 40, 56))}, 0)
	follow(t, watcher, n, index, []uint64{10, 20, 30, 40}, []uint64{10, 20, 30})
	set, _, err := watcher.WatchLeases(testContext(t), n, 0)
	if err != nil || len(set.Leases) != len(leases) || set.SetBack != 0 {
		t.Errorf("%v, set back %d times, %v", slots(set), set.SetBack, err)
	}
	if watcher.followers.find(n.Name).isInDoubt() {
		t.Error("the client is in doubt")
	}
}

// TestEntryIsNoRemoval: a record that a re-created tree lacks is missing, whatever the directory says of an earlier change.
func TestEntryIsNoRemoval(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	watcher, n, leases, _ := watched(t, s, never, settle(time.Hour))
	c := claim(0)
	c.Session, c.Prefer, c.MTU = leases[0].Session, leases[0].Subnet(), 1400
	if l, err := s.open(t, never).Acquire(testContext(t), n, c); err != nil || l.Slot != 10 {
		t.Fatalf("%+v, %v", l, err)
	}
	folder := s.prefix + "/leases/default/"
	if _, err := s.admin.KV().DeleteTree(folder, nil); err != nil {
		t.Fatal(err)
	}
	s.Put(t, folder+keys.Marker, nil)
	set, _, err := watcher.WatchLeases(testContext(t), n, 0)
	if err != nil || len(set.Leases) != len(leases) || !set.Leases[0].Missing {
		t.Errorf("%v, %v", slots(set), err)
	}
}

// TestMoveAfterALapse: a host whose session has ended and that claims another slot leaves no lapsed lease behind.
func TestMoveAfterALapse(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	watcher, n, leases, index := watched(t, s, never)
	s.EndSession(t, leases[0].Session)
	c := claim(0)
	c.Prefer, c.Avoid = n.Plan.Subnets(60)[0], leases[0].Subnet()
	if l, err := s.open(t, never).Acquire(testContext(t), n, c); err != nil || l.Slot != 60 {
		t.Fatalf("%+v, %v", l, err)
	}
	follow(t, watcher, n, index, []uint64{20, 30, 60}, []uint64{20, 30})
}

// TestBackupImported: the entries of a backup come back as new ones, for subnets that have other hosts by now.
func TestBackupImported(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	watcher, n, leases, index := watched(t, s, never)
	if err := s.open(t).Revoke(testContext(t), n.Name, leases[1].Subnet()); err != nil {
		t.Fatal(err)
	}
	_, index = follow(t, watcher, n, index, []uint64{10, 30}, []uint64{10, 30})
	backup := map[string]string{}
	pairs, _, err := s.admin.KV().List(s.prefix+"/changes/default/", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, pair := range pairs {
		if pair.Flags&changelog.FlagRevoked != 0 {
			backup[strings.Replace(pair.Key, "default/1", "default/f", 1)] = string(pair.Value)
		}
	}
	if len(backup) != 1 {
		t.Fatalf("%d removals in %v", len(backup), s.Keys(t, s.prefix+"/changes/"))
	}
	c := claim(7)
	c.Prefer = leases[1].Subnet()
	if l, err := s.open(t).Acquire(testContext(t), n, c); err != nil || l.Slot != 20 {
		t.Fatalf("%+v, %v", l, err)
	}
	_, index = follow(t, watcher, n, index, []uint64{10, 20, 30}, []uint64{10, 30})
	putRaw(t, s, backup, changelog.FlagRevoked)
	c = claim(8)
	c.Prefer = n.Plan.Subnets(99)[0]
	if _, err := s.open(t).Acquire(testContext(t), n, c); err != nil {
		t.Fatal(err)
	}
	follow(t, watcher, n, index, []uint64{10, 20, 30, 99}, []uint64{10, 20, 30})
}

// TestEditBehindAChange: a manual edit is found even if a host's own change came after it and before any audit.
func TestEditBehindAChange(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	watcher, n, leases, index := watched(t, s, func(c *Config) { c.Audit = time.Second })
	folder := s.prefix + "/leases/default/"
	s.Delete(t, folder+registry.SubnetKey(leases[1].Subnet()))
	s.Put(t, folder+"nonsense", []byte("{"))
	c := claim(7)
	c.Prefer = n.Plan.Subnets(99)[0]
	if _, err := s.open(t).Acquire(testContext(t), n, c); err != nil {
		t.Fatal(err)
	}
	set, _ := follow(t, watcher, n, index, []uint64{10, 30, 99}, []uint64{10, 30})
	if len(set.Bad) != 1 || set.Bad[0].Key != folder+"nonsense" {
		t.Errorf("skipped %+v", set.Bad)
	}
}

// FuzzDirectory feeds a cursor, a belief and its view with entries of any name, value and order: the view contains only
// what ParseLease accepts, and an answer that cannot be followed changes nothing.
func FuzzDirectory(f *testing.F) {
	n := network("default", "10.5.0.0/16")
	for _, seed := range []string{
		stamp + "0_10.5.7.0-24\x00{\x00\x01\x01", stamp + "0_10.5.7.0-24\x00\x00\x00\x02", "x\x00y\x00\x07\x01", changelog.WatermarkName + "\x0012\x00\x00\x01",
		stamp + "0_10.5.7.0-24\x00{\x00\x01\x01\x1e" + stamp + "1_10.5.7.0-24\x00\x00\x00\x02", stamp + "0__\x00\x00\x00\x01", stamp + "0_" + strings.Repeat(".", 64) + "\x00\x00\x00\x01",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const folder = "leno/changes/default/"
		f := newTestFollower()
		good := &api.KVPair{Key: viewPrefix + "10.5.7.0-24", Value: leaseRecordOf(n, 7, 1), Session: "s", CreateIndex: 5, ModifyIndex: 5}
		f.use(n)
		f.accept(f.newList(api.KVPairs{{Key: viewPrefix + keys.Marker, CreateIndex: 1, ModifyIndex: 1}, good}, 5))
		mark := &api.KVPair{Key: folder + changelog.WatermarkName, Value: []byte("0"), CreateIndex: 2, ModifyIndex: 2}
		f.cursor.Adopt(changelog.NewReading(folder, api.KVPairs{mark}, 5), time.Now())

		pairs, index := map[string]*api.KVPair{mark.Key: mark}, uint64(5)
		for step := range bytes.SplitSeq(data, []byte{0x1e}) {
			parts := bytes.SplitN(step, []byte{0}, 3)
			if len(parts) < 3 || len(parts[2]) < 2 {
				continue
			}
			index += uint64(parts[2][1] % 4)
			key := folder + string(parts[0])
			value := parts[1]
			if parts[2][0]&8 != 0 {
				value = leaseRecordOf(n, 9, 2)
			}
			if parts[2][0]&16 != 0 {
				delete(pairs, key)
			} else {
				pairs[key] = &api.KVPair{Key: key, Value: value, Flags: uint64(parts[2][0] & 7), CreateIndex: 2, ModifyIndex: index}
			}
			a := changelog.NewReading(folder, slices.Collect(maps.Values(pairs)), index)
			before := fmt.Sprint(f.cursor)
			changes, reason := f.cursor.Advance(a, time.Now())
			if reason != "" {
				if len(changes) > 0 || fmt.Sprint(f.cursor) != before {
					t.Fatalf("%s: changed all the same", reason)
				}
				f.cursor.Adopt(a, time.Now())
			}
			found := f.changesOf(changes)
			f.belief.Apply(found, readOf(f, found, map[string]*api.KVPair{good.Key: good}))
			if m := changelog.Watermark(pairsMark(pairs, mark)); m > max(mark.CreateIndex, index) {
				t.Fatalf("watermark %d at index %d", m, index)
			}
			set := f.belief.Leases()
			for _, l := range set.Leases {
				if slot, err := n.Plan.Slot(l.Subnet()); err != nil || slot != l.Slot || l.Network != n.Name {
					t.Fatalf("%+v, %v", l, err)
				}
			}
			if len(set.Leases)+len(set.Bad) != f.belief.Len() {
				t.Fatalf("%d leases, %d bad, %d records", len(set.Leases), len(set.Bad), f.belief.Len())
			}
			for _, b := range set.Bad {
				if !strings.HasPrefix(b.Key, viewPrefix) || len(b.Reason) > registry.MaxShownReason+3 {
					t.Fatalf("%+v", b)
				}
			}
		}
	})
}

func pairsMark(pairs map[string]*api.KVPair, otherwise *api.KVPair) *api.KVPair {
	if p := pairs[otherwise.Key]; p != nil {
		return p
	}
	return otherwise
}

// leaseRecordOf is leaseRecord for records that can always be formatted.
func leaseRecordOf(n registry.Network, slot uint64, i int) []byte {
	c := claim(i)
	value, _ := registry.FormatLease(registry.Lease{Subnets: n.Plan.Subnets(slot), Node: c.Node, NodeID: c.NodeID,
		PublicIPs: c.PublicIPs, MTU: c.MTU, Backend: c.Backend})
	return value
}
