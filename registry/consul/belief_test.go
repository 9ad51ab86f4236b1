package consul

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/changelog"
)

// keptLease returns a follower that knows one lease, written at 10, which a list at 30 lacks.
func keptLease(t *testing.T, marker uint64, restored bool) (f *follower, key string) {
	t.Helper()
	f = newTestFollower()
	key = viewPrefix + "10.5.1.0-24"
	old := &api.KVPair{Key: key, Value: []byte("old"), CreateIndex: 10, ModifyIndex: 10}
	f.belief.accept(list{pairs: map[string]*api.KVPair{key: old}, marker: 2, index: 10}, time.Time{})
	f.belief.evidence.setBack = restored
	f.belief.accept(list{pairs: map[string]*api.KVPair{}, marker: marker, index: 30}, time.Now().Add(time.Hour))
	if f.belief.known[key] == nil {
		t.Fatal("the record was not kept")
	}
	return f, key
}

// TestKeptUntilExplained checks which changes end the time in which a lost record is kept.
func TestKeptUntilExplained(t *testing.T) {
	t.Parallel()
	const subnet = "10.5.1.0-24"
	for _, tt := range []struct {
		name     string
		marker   uint64 // 2: the same tree
		restored bool
		change   changelog.Change
		want     string
	}{
		{"a removal before the list was read", 20, false, changelog.Change{Subnet: subnet, Index: 28}, ""},
		{"a removal after it", 20, false, changelog.Change{Subnet: subnet, Index: 31}, ""},
		{"a removal another host found", 2, true, changelog.Change{Subnet: subnet, Index: 40, Flags: changelog.FlagManual}, "old"},
		{"a record with a low index of a new cluster", 20, false, changelog.Change{Subnet: subnet, Index: 5, Value: []byte("new")}, "new"},
		{"a record in the same tree", 2, true, changelog.Change{Subnet: subnet, Index: 40, Value: []byte("new")}, "new"},
		{"an older entry of the same tree", 2, true, changelog.Change{Subnet: subnet, Index: 9, Value: []byte("new")}, "old"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, key := keptLease(t, tt.marker, tt.restored)
			f.belief.apply([]changelog.Change{tt.change}, nil)
			got := ""
			if pair := f.belief.known[key]; pair != nil {
				got = string(pair.Value)
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	t.Run("a list of a new cluster", func(t *testing.T) {
		f, key := keptLease(t, 20, false)
		now := &api.KVPair{Key: key, Value: []byte("new"), CreateIndex: 5, ModifyIndex: 5}
		f.belief.accept(list{pairs: map[string]*api.KVPair{key: now}, marker: 20, index: 35}, time.Now().Add(time.Hour))
		if got := string(f.belief.known[key].Value); got != "new" {
			t.Errorf("got %q", got)
		}
	})
}

// TestKeptAfterAnotherLoss: a process was suspended for longer than it keeps what the store has lost, and the store has
// lost it again in the meantime.
func TestKeptAfterAnotherLoss(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		marker   uint64 // the tree has 20 before
		restored bool
		want     bool
	}{
		{"the same tree", 20, false, false},
		{"re-created", 40, false, true},
		{"set back", 20, true, true},
		{"set back to a tree of before", 2, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, key := keptLease(t, 20, false)
			kept := f.belief.kept[key]
			kept.until = time.Now().Add(-time.Second)
			f.belief.kept[key] = kept
			f.belief.evidence.setBack = tt.restored
			f.belief.accept(list{pairs: map[string]*api.KVPair{}, marker: tt.marker, index: 50}, time.Now().Add(time.Hour))
			if got := f.belief.known[key] != nil; got != tt.want {
				t.Errorf("kept %t", got)
			}
		})
	}
}

// TestKeptOverAnOlderRecord: an older record that a snapshot has put in the place of a known one does not replace it, also
// when its session ends, until its host writes it again.
func TestKeptOverAnOlderRecord(t *testing.T) {
	t.Parallel()
	const known = 20
	for _, tt := range []struct {
		name     string
		marker   uint64
		restored bool
		want     string
	}{
		{"the same tree", known, true, "new"},
		{"a tree of before", 2, false, "new"},
		{"a tree that was created again", 40, false, "old"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newTestFollower()
			key := viewPrefix + "10.5.1.0-24"
			read := func(marker uint64, value, session string, index uint64) string {
				t.Helper()
				now := &api.KVPair{Key: key, Value: []byte(value), Session: session, CreateIndex: 10, ModifyIndex: index}
				f.belief.accept(list{pairs: map[string]*api.KVPair{key: now}, marker: marker, index: index}, time.Now().Add(time.Hour))
				return string(f.belief.known[key].Value)
			}
			read(known, "new", "s", 50)
			f.belief.evidence.setBack = tt.restored
			if got := read(tt.marker, "old", "s", 30); got != tt.want {
				t.Errorf("set back: %q, want %q", got, tt.want)
			}
			if got := read(tt.marker, "old", "", 70); got != tt.want {
				t.Errorf("lapsed: %q, want %q", got, tt.want)
			}
			if got := read(tt.marker, "later", "s", 80); got != "later" {
				t.Errorf("written again: %q", got)
			}
		})
	}
}

// TestKeptWhileAway: a host is away while a snapshot brings back an older record of it. When the time to write it again has
// passed, the host is still known as it was before, and lapsed, until the older record is removed or its host locks it.
func TestKeptWhileAway(t *testing.T) {
	t.Parallel()
	const subnet = "10.5.1.0-24"
	key := viewPrefix + subnet
	value := func(mark string) []byte {
		return fmt.Appendf(nil, `{"node_id":"a","backend":{"type":"vxlan"},"mark":%q}`, mark)
	}
	read := func(f *follower, mark, session string, index uint64) {
		pair := &api.KVPair{Key: key, Value: value(mark), Session: session, CreateIndex: 10, ModifyIndex: index}
		f.belief.accept(list{pairs: map[string]*api.KVPair{key: pair}, marker: 20, index: index}, time.Now().Add(time.Hour))
	}
	for _, tt := range []struct {
		name string
		end  func(f *follower)
		want string // "" for no record
	}{
		{"away", func(f *follower) { read(f, "old", "", 70) }, "new"},
		{"locked by its host", func(f *follower) { read(f, "old", "s2", 90) }, "old"},
		{"written by its host", func(f *follower) { read(f, "later", "s2", 90) }, "later"},
		{"written, as an entry says", func(f *follower) {
			f.belief.apply([]changelog.Change{{Subnet: subnet, Index: 95, Value: value("later")}}, nil)
		}, "later"},
		{"removed", func(f *follower) { f.belief.apply([]changelog.Change{{Subnet: subnet, Index: 95}}, nil) }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newTestFollower()
			read(f, "new", "s", 50)
			f.belief.evidence.setBack = true
			read(f, "old", "s", 30)
			read(f, "old", "", 70)
			for range 3 {
				kept := f.belief.kept[key]
				kept.until = time.Now().Add(-time.Second)
				f.belief.kept[key] = kept
				read(f, "old", "", 70)
				// Hosts remove the lapsed record by this index.
				if got := f.belief.known[key]; string(got.Value) != string(value("new")) || got.Session != "" || got.ModifyIndex != 70 {
					t.Fatalf("%s, %+v", got.Value, got)
				}
				if until := f.belief.keptUntil(); time.Until(until) < time.Minute {
					t.Fatalf("looked at again after %s", time.Until(until))
				}
			}
			tt.end(f)
			pair := f.belief.known[key]
			if (pair == nil) != (tt.want == "") || pair != nil && string(pair.Value) != string(value(tt.want)) {
				t.Errorf("%+v", pair)
			}
		})
	}
}

// TestKeptOrNot covers what ends the time in which a known record is kept in place of an older one.
func TestKeptOrNot(t *testing.T) {
	t.Parallel()
	value := func(node, backend, mark string) string {
		return fmt.Sprintf(`{"node_id":%q,"backend":{"type":%q},"mark":%q}`, node, backend, mark)
	}
	const before, hour = 20, time.Hour
	known, older := value("a", "vxlan", "new"), value("a", "vxlan", "old")
	type step struct {
		marker  uint64
		value   string // "" for no record
		session string
		index   uint64
	}
	same := []step{{before, known, "s", 50}, {before, older, "s", 30}}
	for _, tt := range []struct {
		name  string
		steps []step
		entry *changelog.Change // after the steps
		want  string
	}{
		{"kept", same, nil, known},
		{"locked again by its host, with another session", append(same, step{before, older, "s2", 70}), nil, older},
		{"emptied, then set back to a tree of before", []step{{before, known, "s", 50}, {60, "", "", 0}, {2, older, "s", 30}}, nil, known},
		{"set back twice, and lapsed", append(same, step{before, value("a", "vxlan", "oldest"), "s", 20},
			step{before, value("a", "vxlan", "oldest"), "", 90}), nil, known},
		{"the host had gone, and another one is there", []step{{before, known, "", 50}, {2, value("b", "vxlan", "new"), "s", 30}}, nil, value("b", "vxlan", "new")},
		{"the host had gone, and its older record is held", []step{{before, known, "", 50}, {2, older, "s", 30}}, nil, known},
		{"only the older one has the network's backend", []step{{before, value("a", "udp", "new"), "s", 50}, {2, older, "s", 30}}, nil, older},
		{"only the known one has it", []step{{before, known, "s", 50}, {2, value("a", "udp", "old"), "s", 30}}, nil, known},
		{"the older one is published as a manual edit", same, &changelog.Change{Index: 80, Value: []byte(older), Flags: changelog.FlagManual}, known},
		{"another one is published as a manual edit", same, &changelog.Change{Index: 80, Value: []byte(value("a", "vxlan", "edited")), Flags: changelog.FlagManual}, value("a", "vxlan", "edited")},
		{"written again in another cluster, with a lower index", same, &changelog.Change{Index: 40, Value: []byte(value("a", "vxlan", "moved"))}, value("a", "vxlan", "moved")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newTestFollower()
			f.belief.backend = "vxlan"
			key := viewPrefix + "10.5.1.0-24"
			for i, s := range tt.steps {
				l := list{pairs: map[string]*api.KVPair{}, marker: s.marker, index: s.index}
				if s.value != "" {
					l.pairs[key] = &api.KVPair{Key: key, Value: []byte(s.value), Session: s.session, CreateIndex: 10, ModifyIndex: s.index}
				}
				f.belief.evidence.setBack = i > 0 && s.index < tt.steps[i-1].index
				f.belief.accept(l, time.Now().Add(hour))
				if pair := l.pairs[key]; s.value == older && string(pair.Value) == known {
					listed := list{pairs: map[string]*api.KVPair{key: {Key: key, Value: []byte(older), Session: s.session}}, marker: s.marker}
					if edits := f.belief.unexplained(listed, nil); len(edits) > 0 {
						t.Errorf("the older record would be published as an edit")
					}
				}
			}
			if tt.entry != nil {
				tt.entry.Subnet = "10.5.1.0-24"
				f.belief.apply([]changelog.Change{*tt.entry}, nil)
			}
			if got := string(f.belief.known[key].Value); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// TestTheLatestOfAHostIsKept: when the store has lost several records of one host, in whatever way, the latest one is
// shown, until the host has written another. The host was on slot 2 before and is on slot 5 now.
func TestTheLatestOfAHostIsKept(t *testing.T) {
	t.Parallel()
	n := network("default", "10.5.0.0/16")
	type state struct {
		marker   uint64
		restored bool
		records  map[uint64][2]uint64 // by slot: created, modified
		lapsed   uint64               // the slot whose record is not held
	}
	type records = map[uint64][2]uint64
	for _, tt := range []struct {
		name   string
		states []state
		want   []uint64 // slots
	}{
		{"emptied twice", []state{{marker: 1, records: records{2: {10, 10}}}, {marker: 30},
			{marker: 30, records: records{5: {40, 40}}}, {marker: 60}}, []uint64{5}},
		{"set back, then emptied", []state{{marker: 1, records: records{2: {10, 10}}}, {marker: 1, restored: true},
			{marker: 1, records: records{5: {40, 40}}}, {marker: 60}}, []uint64{5}},
		{"set back to where it was before, then emptied", []state{{marker: 1, records: records{5: {30, 30}}},
			{marker: 1, restored: true, records: records{2: {10, 10}}}, {marker: 60}}, []uint64{5}},
		{"both lost at once", []state{{marker: 1, records: records{2: {10, 10}, 5: {30, 30}}}, {marker: 60}}, []uint64{5}},
		{"both lost at once, one lapsed later", []state{{marker: 1, records: records{2: {10, 35}, 5: {30, 30}}, lapsed: 2}, {marker: 60}}, []uint64{5}},
		{"set back to where it was before", []state{{marker: 1, records: records{5: {30, 30}}},
			{marker: 1, restored: true, records: records{2: {10, 10}}}}, []uint64{2, 5}},
		{"set back to where it was before, and lapsed there", []state{{marker: 1, records: records{5: {30, 30}}},
			{marker: 1, restored: true, records: records{2: {10, 10}}}, {marker: 1, records: records{2: {10, 70}}, lapsed: 2}}, []uint64{2, 5}},
		{"the earlier is back in an emptied store", []state{{marker: 1, records: records{2: {10, 10}, 5: {30, 30}}}, {marker: 60},
			{marker: 60, records: records{2: {70, 70}}}}, []uint64{2}},
		{"went back, and lapsed there", []state{{marker: 1, records: records{5: {30, 30}}},
			{marker: 1, restored: true, records: records{2: {10, 10}}}, {marker: 1, records: records{2: {10, 70}}},
			{marker: 1, records: records{2: {10, 80}}, lapsed: 2}}, []uint64{2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newTestFollower()
			var set registry.LeaseSet
			for i, s := range tt.states {
				l := list{pairs: map[string]*api.KVPair{}, marker: s.marker, index: uint64(20 * (i + 1))}
				for slot, indexes := range s.records {
					key := viewPrefix + registry.SubnetKey(n.Plan.Subnets(slot)[0])
					pair := &api.KVPair{Key: key, Value: leaseRecord(t, n, slot, 1), Session: "s", CreateIndex: indexes[0], ModifyIndex: indexes[1]}
					if slot == s.lapsed {
						pair.Session = ""
					}
					l.pairs[key] = pair
				}
				f.belief.evidence.setBack = s.restored
				f.belief.accept(l, time.Now().Add(time.Hour))
				set = f.view.leases(n, &f.belief)
			}
			if got := slots(set); !slices.Equal(got, tt.want) {
				t.Errorf("slots %v, want %v", got, tt.want)
			}
		})
	}
	t.Run("an earlier loss of another cluster", func(t *testing.T) {
		f, key := keptLease(t, 2, true)
		f.belief.accept(list{pairs: map[string]*api.KVPair{}, marker: 40, index: 50}, time.Now().Add(time.Hour))
		now := &api.KVPair{Key: key, Value: []byte("new"), CreateIndex: 5, ModifyIndex: 5}
		f.belief.accept(list{pairs: map[string]*api.KVPair{key: now}, marker: 40, index: 55}, time.Now().Add(time.Hour))
		if got := string(f.belief.known[key].Value); got != "new" {
			t.Errorf("got %q", got)
		}
	})
}

// TestSetBackIsCounted: only a certain set-back is counted. The index of a prefix falls by itself 15 minutes after a
// deletion, and entries of the directory can be deleted by hand.
func TestSetBackIsCounted(t *testing.T) {
	t.Parallel()
	f := newTestFollower()
	for _, step := range []struct {
		marker, index uint64
		record        uint64 // index of the only record
		restored      bool
		want          uint64
	}{
		{2, 10, 9, false, 0}, {2, 12, 9, false, 0}, {2, 11, 9, false, 0}, {2, 13, 9, true, 0}, {2, 14, 8, true, 1}, {20, 30, 25, false, 2},
	} {
		f.belief.evidence.setBack = step.restored
		l := listAt(step.marker, step.index, map[string]uint64{"a": step.record})
		f.belief.accept(l, time.Time{})
		if f.belief.setBack != step.want {
			t.Errorf("%+v: counted %d", step, f.belief.setBack)
		}
	}
}

// beliefOf returns a belief that has read records, given as modify indexes by subnet key, at index 20 under a marker
// created at 2.
func beliefOf(records map[string]uint64) *belief {
	b := newBelief(viewPrefix)
	b.accept(listAt(2, 20, records), time.Time{})
	return &b
}

func listAt(marker, index uint64, records map[string]uint64) list {
	l := list{pairs: map[string]*api.KVPair{}, marker: marker, index: index}
	for name, modified := range records {
		key := viewPrefix + name
		l.pairs[key] = &api.KVPair{Key: key, Value: []byte(name), CreateIndex: 3, ModifyIndex: modified}
	}
	return l
}

// TestListIsJudged: which lists need a confirmation, and which may be of a store that was set back.
func TestListIsJudged(t *testing.T) {
	t.Parallel()
	type records = map[string]uint64
	known := records{"a": 10, "b": 11, "c": 12, "d": 13}
	for _, tt := range []struct {
		name                string
		evidence            evidence
		list                list
		doubtful, isSetBack bool
	}{
		{"the same", evidence{}, listAt(2, 20, known), false, false},
		{"one more", evidence{}, listAt(2, 30, records{"a": 10, "b": 11, "c": 12, "d": 13, "e": 30}), false, false},
		{"one less", evidence{}, listAt(2, 30, records{"a": 10, "b": 11, "c": 12}), false, false},
		{"half of it", evidence{}, listAt(2, 30, records{"a": 10, "b": 11}), false, false},
		{"less than half", evidence{}, listAt(2, 30, records{"a": 10}), true, false},
		{"no marker", evidence{}, listAt(0, 30, known), true, true},
		{"nothing", evidence{}, listAt(0, 1, nil), true, true},
		{"another marker", evidence{}, listAt(25, 30, known), false, true},
		{"another marker, one less", evidence{}, listAt(25, 30, records{"a": 10, "b": 11, "c": 12}), true, true},
		{"a lower index", evidence{}, listAt(2, 19, known), false, true},
		{"a lower index, one less", evidence{}, listAt(2, 19, records{"a": 10, "b": 11, "c": 12}), true, true},
		{"the directory went back, one less", evidence{setBack: true}, listAt(2, 30, records{"a": 10, "b": 11, "c": 12}), true, true},
		{"a suspected loss, one less", evidence{suspectLoss: true}, listAt(2, 30, records{"a": 10, "b": 11, "c": 12}), true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := beliefOf(known)
			b.evidence = tt.evidence
			if got := b.isDoubtful(tt.list); got != tt.doubtful {
				t.Errorf("doubtful: %t", got)
			}
			if got := b.mayBeSetBack(tt.list); got != tt.isSetBack {
				t.Errorf("may be set back: %t", got)
			}
		})
	}
}

// TestUnprovenChanges: removals and late entries must be confirmed by their records, unless a list or a later change
// has superseded them.
func TestUnprovenChanges(t *testing.T) {
	t.Parallel()
	b := beliefOf(map[string]uint64{"a": 10, "b": 11})
	written := func(subnet string, index, flags uint64) changelog.Change {
		return changelog.Change{Subnet: subnet, Index: index, Value: []byte("v"), Flags: flags}
	}
	removed := func(subnet string, index uint64) changelog.Change {
		return changelog.Change{Subnet: subnet, Index: index}
	}
	for _, tt := range []struct {
		name    string
		changes []changelog.Change
		want    map[string]int
	}{
		{"nothing", nil, nil},
		{"a write of an unknown record", []changelog.Change{written("c", 30, 0)}, nil},
		{"another value of a known record", []changelog.Change{written("a", 30, 0)}, map[string]int{"a": 0}},
		{"the same value", []changelog.Change{{Subnet: "a", Index: 30, Value: []byte("a")}}, nil},
		{"a write found later", []changelog.Change{written("a", 30, changelog.FlagManual)}, map[string]int{"a": 0}},
		{"a removal", []changelog.Change{written("c", 29, 0), removed("a", 30)}, map[string]int{"a": 1}},
		{"a removal of an unknown record", []changelog.Change{removed("c", 30)}, nil},
		{"a removal before the last list", []changelog.Change{removed("a", 20)}, nil},
		{"a removal and a write", []changelog.Change{removed("a", 30), written("a", 31, 0)}, map[string]int{"a": 1}},
		{"a write and a removal", []changelog.Change{written("a", 30, 0), removed("a", 31)}, map[string]int{"a": 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := map[string]int{}
			for name, i := range tt.want {
				want[viewPrefix+name] = i
			}
			if got := b.unproven(tt.changes); !maps.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// TestUnexplainedRecords: a list shows which records differ without an entry that tells why.
func TestUnexplainedRecords(t *testing.T) {
	t.Parallel()
	b := beliefOf(map[string]uint64{"a": 10, "b": 11, "c": 12, "d": 13})
	l := listAt(2, 40, map[string]uint64{"a": 10, "b": 30, "e": 31, "f": 32})
	l.pairs[viewPrefix+"b"].Value = []byte("edited")
	b.kept[viewPrefix+"d"] = keptRecord{}
	var got []string
	for _, pair := range b.unexplained(l, []changelog.Change{{Subnet: "f", Index: 32, Value: []byte("f")}}) {
		got = append(got, fmt.Sprintf("%s=%s", strings.TrimPrefix(pair.Key, viewPrefix), pair.Value))
	}
	slices.Sort(got)
	if want := []string{"b=edited", "c=", "e=e"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestUnconfirmedRecords: in an intact tree a missing record was deleted; in one that may have been set back its host
// may be about to write it again.
func TestUnconfirmedRecords(t *testing.T) {
	t.Parallel()
	marker := func(created uint64) *api.KVPair {
		return &api.KVPair{Key: viewPrefix + markerName, CreateIndex: created, ModifyIndex: created}
	}
	a := &api.KVPair{Key: viewPrefix + "a", Value: []byte("a"), CreateIndex: 3, ModifyIndex: 10}
	for _, tt := range []struct {
		name  string
		pairs api.KVPairs
		kept  bool
		want  int
	}{
		{"intact", api.KVPairs{marker(2), a}, false, 0},
		{"kept", api.KVPairs{marker(2), a}, true, 1},
		{"re-created", api.KVPairs{marker(30), a}, false, 1},
		{"emptied", nil, false, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := beliefOf(map[string]uint64{"a": 10, "b": 11})
			if tt.kept {
				b.kept[viewPrefix+"b"] = keptRecord{}
			}
			if got := b.unconfirmed(tt.pairs); len(got) != tt.want {
				t.Errorf("got %d records, want %d", len(got), tt.want)
			}
		})
	}
}

// TestShareMemory: a pair that is listed again uses the memory of the known one, and a new value of a later list does
// not keep that whole list.
func TestShareMemory(t *testing.T) {
	t.Parallel()
	list := []byte(`{"a":1}{"b":2}`) // two values in one allocation
	pair := func(value []byte) *api.KVPair { return &api.KVPair{Value: value, Session: "s"} }
	at := func(p *api.KVPair) *byte { return unsafe.SliceData(p.Value) }
	known := pair(bytes.Clone(list[:7]))
	for _, tt := range []struct {
		name  string
		old   *api.KVPair
		value []byte
		again bool
		want  *byte // where the value is afterwards, nil for memory of its own
	}{
		{"the same value", known, list[:7], true, at(known)},
		{"another value", known, list[7:], true, nil},
		{"a new record", nil, list[7:], true, nil},
		{"in the first list", nil, list[7:], false, &list[7]},
	} {
		now := pair(tt.value)
		shareMemory(tt.old, now, tt.again)
		if !bytes.Equal(now.Value, tt.value) {
			t.Errorf("%s: the value is %s", tt.name, now.Value)
		}
		if got := at(now); tt.want != nil && got != tt.want || tt.want == nil && got == &tt.value[0] {
			t.Errorf("%s: the value is not where it should be", tt.name)
		}
	}
	shareMemory(known, known, true)
	if string(known.Value) != `{"a":1}` {
		t.Errorf("a pair that was kept: %s", known.Value)
	}
}
