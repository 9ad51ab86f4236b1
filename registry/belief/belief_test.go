package belief

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
)

const settle = time.Hour

// store observes for a belief as the client of a store does that cannot tell removals from losses when it may have been
// set back.
type store struct {
	Belief
	now     time.Time
	suspect bool // the next list may be of a store that was set back, for a reason that the list does not show
}

func newStore() *store {
	s := &store{now: time.Now()}
	s.SetBackend("vxlan")
	return s
}

// list returns a list, with what the store knows of removals.
func (s *store) list(marker, index uint64, records ...*Record) List {
	l := List{Records: map[string]*Record{}, Marker: marker, Index: index}
	for _, r := range records {
		l.Records[r.Key] = r
	}
	suspect := marker != s.Marker() || index < s.Index() || s.suspect
	l.Removed = func(r *Record) bool {
		_, isMissing := s.Missing()[r.Key]
		return !isMissing && !suspect
	}
	l.SetBack = suspect && s.IsSetBack(l, s.suspect)
	return l
}

func (s *store) read(marker, index uint64, records ...*Record) {
	s.Accept(s.list(marker, index, records...), s.now, Options{Settle: settle, Foreign: 24 * time.Hour})
	s.suspect = false
}

// tell announces changes, and the records that they must be confirmed by are as they say.
func (s *store) tell(changes ...Change) {
	read := map[string]*Record{}
	for key, i := range s.Unproven(changes) {
		read[key] = changes[i].Record
	}
	s.Apply(changes, read)
}

// value returns the value of the known record with a key, "" for none.
func (s *store) value(key string) string {
	if r := s.Record(key); r != nil {
		return string(r.Value)
	}
	return ""
}

// leaseOf returns the value of a record: mark tells values of one host apart.
func leaseOf(node, backend, mark string) string {
	return fmt.Sprintf(`{"node_id":%q,"backend":{"type":%q},"mark":%q}`, node, backend, mark)
}

// record returns a record that was created at 10, if it was not modified earlier. Its key is that of its subnet.
func record(key, value, session string, modified uint64) *Record {
	subnet, _ := registry.ParseSubnetKey(key)
	return &Record{Key: key, Value: []byte(value), Lease: registry.Lease{
		Subnets:     []netip.Prefix{subnet},
		NodeID:      registry.NodeIDOf([]byte(value)),
		Backend:     registry.Backend{Type: registry.ReadableLease([]byte(value)).Backend.Type},
		Session:     session,
		CreateIndex: min(10, modified),
		ModifyIndex: modified,
	}}
}

const key = "10.5.1.0-24"

// lostRecord returns a store whose belief knows one record, written at 10 in a tree of marker 2, which a list at 30
// lacks.
func lostRecord(t *testing.T, marker uint64, restored bool) *store {
	t.Helper()
	s := newStore()
	s.read(2, 10, record(key, "old", "s", 10))
	s.suspect = restored
	s.read(marker, 30)
	if s.Record(key) == nil {
		t.Fatal("the record was not kept")
	}
	return s
}

// TestMissingUntilExplained checks which changes end the time in which a lost record is kept.
func TestMissingUntilExplained(t *testing.T) {
	t.Parallel()
	change := func(index uint64, value string, later bool) Change {
		ch := Change{Key: key, Index: index, Later: later}
		if value != "" {
			ch.Record = record(key, value, registry.UnknownSession, index)
		}
		return ch
	}
	for _, tt := range []struct {
		name     string
		marker   uint64 // 2: the same tree
		restored bool
		change   Change
		want     string
	}{
		{"a removal, because the record is not there anyway", 20, false, change(31, "", false), "old"},
		{"a removal another host found", 2, true, change(40, "", true), "old"},
		{"a record with a low index of a new cluster", 20, false, change(5, "new", false), "new"},
		{"a record in the same tree", 2, true, change(40, "new", false), "new"},
		{"an older change of the same tree", 2, true, change(9, "new", false), "old"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := lostRecord(t, tt.marker, tt.restored)
			s.tell(tt.change)
			if got := s.value(key); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	t.Run("a list of a new cluster", func(t *testing.T) {
		s := lostRecord(t, 20, false)
		s.read(20, 35, record(key, "new", "s", 5))
		if got := s.value(key); got != "new" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("an earlier loss of another cluster", func(t *testing.T) {
		s := lostRecord(t, 2, true)
		s.read(40, 50)
		s.read(40, 55, record(key, "new", "s", 5))
		if got := s.value(key); got != "new" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("a removal that the store shows", func(t *testing.T) {
		s := lostRecord(t, 20, false)
		l := s.list(20, 40)
		l.Removed = func(*Record) bool { return true }
		s.Accept(l, s.now, Options{Settle: settle})
		if got := s.value(key); got != "" {
			t.Errorf("got %q", got)
		}
	})
}

// TestMissingAfterAnotherLoss: a process was suspended for longer than it keeps what the store has lost, and the
// store has lost it again in the meantime.
func TestMissingAfterAnotherLoss(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		marker   uint64 // the tree has 20 before
		restored bool
		want     string
	}{
		{"the same tree", 20, false, ""},
		{"re-created", 40, false, "old"},
		{"set back to a tree of before", 2, false, "old"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := lostRecord(t, 20, false)
			s.now = s.now.Add(settle + time.Second)
			s.suspect = tt.restored
			s.read(tt.marker, 50)
			if got := s.value(key); got != tt.want {
				t.Errorf("got %q", got)
			}
		})
	}
	t.Run("set back", func(t *testing.T) {
		s := lostRecord(t, 20, false)
		s.now = s.now.Add(settle + time.Second)
		l := s.list(20, 50)
		l.SetBack = true
		s.Accept(l, s.now, Options{Settle: settle})
		if got := s.value(key); got != "old" {
			t.Errorf("got %q", got)
		}
	})
}

// TestOlderRecord: an older record that a snapshot has put in the place of a known one does not replace it, also when
// its session ends, until its host writes it again.
func TestOlderRecord(t *testing.T) {
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
			s := newStore()
			read := func(marker uint64, value, session string, index uint64) string {
				s.read(marker, index, record(key, value, session, index))
				return s.value(key)
			}
			read(known, "new", "s", 50)
			s.suspect = tt.restored
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

// TestOlderRecordWhileAway: a host is away while a snapshot brings back an older record of it. When the time to write
// it again has passed, the host is still known as it was before, and lapsed, until the older record is removed or its
// host locks it.
func TestOlderRecordWhileAway(t *testing.T) {
	t.Parallel()
	read := func(s *store, mark, session string, index uint64) {
		s.read(20, index, record(key, leaseOf("a", "vxlan", mark), session, index))
	}
	for _, tt := range []struct {
		name string
		end  func(s *store)
		want string // "" for no record
	}{
		{"away", func(s *store) { read(s, "old", "", 70) }, "new"},
		{"locked by its host", func(s *store) { read(s, "old", "s2", 90) }, "old"},
		{"written by its host", func(s *store) { read(s, "later", "s2", 90) }, "later"},
		{"written, as a change says", func(s *store) {
			s.tell(Change{Key: key, Index: 95, Record: record(key, leaseOf("a", "vxlan", "later"), "s", 95)})
		}, "later"},
		{"removed", func(s *store) { s.tell(Change{Key: key, Index: 95}) }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore()
			read(s, "new", "s", 50)
			s.suspect = true
			read(s, "old", "s", 30)
			read(s, "old", "", 70)
			for range 3 {
				s.now = s.now.Add(2 * settle)
				read(s, "old", "", 70)
				// Hosts remove the lapsed record by this index.
				r := s.Record(key)
				if string(r.Value) != leaseOf("a", "vxlan", "new") || r.Lease.Held() || r.Lease.ModifyIndex != 70 {
					t.Fatalf("%s, %+v", r.Value, r.Lease)
				}
				if after := s.Due().Sub(s.now); after < time.Minute {
					t.Fatalf("looked at again after %s", after)
				}
			}
			tt.end(s)
			want := ""
			if tt.want != "" {
				want = leaseOf("a", "vxlan", tt.want)
			}
			if got := s.value(key); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// TestOlderRecordOrNot covers what ends the time in which a known record is kept in place of an older one.
func TestOlderRecordOrNot(t *testing.T) {
	t.Parallel()
	const before = 20
	known, older, oldest := leaseOf("a", "vxlan", "new"), leaseOf("a", "vxlan", "old"), leaseOf("a", "vxlan", "oldest")
	edited, moved, other := leaseOf("a", "vxlan", "edited"), leaseOf("a", "vxlan", "moved"), leaseOf("b", "vxlan", "new")
	type step struct {
		marker  uint64
		value   string // "" for no record
		session string
		index   uint64
	}
	same := []step{{before, known, "s", 50}, {before, older, "s", 30}}
	written := func(index uint64, value string, later bool) *Change {
		return &Change{Key: key, Index: index, Record: record(key, value, registry.UnknownSession, index), Later: later}
	}
	for _, tt := range []struct {
		name   string
		steps  []step
		change *Change // after the steps
		want   string
	}{
		{"kept", same, nil, known},
		{"locked again by its host, with another session", append(same, step{before, older, "s2", 70}), nil, older},
		{"emptied, then set back to a tree of before",
			[]step{{before, known, "s", 50}, {60, "", "", 0}, {2, older, "s", 30}}, nil, known},
		{"set back twice, and lapsed", append(same, step{before, oldest, "s", 20}, step{before, oldest, "", 90}), nil, known},
		{"the host had gone, and another one is there", []step{{before, known, "", 50}, {2, other, "s", 30}}, nil, other},
		{"the host had gone, and its older record is held", []step{{before, known, "", 50}, {2, older, "s", 30}}, nil, known},
		{"only the older one has the network's backend",
			[]step{{before, leaseOf("a", "udp", "new"), "s", 50}, {2, older, "s", 30}}, nil, older},
		{"only the known one has it", []step{{before, known, "s", 50}, {2, leaseOf("a", "udp", "old"), "s", 30}}, nil, known},
		{"the older one is announced as an edit", same,
			&Change{Key: key, Index: 80, Record: record(key, older, "s", 30), Later: true}, known},
		{"another one is announced as an edit", same, written(80, edited, true), edited},
		{"written again in another cluster, with a lower index", same, written(40, moved, false), moved},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore()
			for i, step := range tt.steps {
				s.suspect = i > 0 && step.index < tt.steps[i-1].index
				var records []*Record
				if step.value != "" {
					records = append(records, record(key, step.value, step.session, step.index))
				}
				s.read(step.marker, step.index, records...)
				if step.value == older && s.value(key) == known {
					if edits := s.Unexplained(s.list(step.marker, step.index, records...), nil); len(edits) > 0 {
						t.Errorf("the older record would be announced as an edit")
					}
				}
			}
			if tt.change != nil {
				s.tell(*tt.change)
			}
			if got := s.value(key); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// TestRecordsOfAHost: when the store has lost several records of one host, in whatever way, all are shown. The host was on
// slot 2 before and is on slot 5 now.
func TestRecordsOfAHost(t *testing.T) {
	t.Parallel()
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
			{marker: 30, records: records{5: {40, 40}}}, {marker: 60}}, []uint64{2, 5}},
		{"set back, then emptied", []state{{marker: 1, records: records{2: {10, 10}}}, {marker: 1, restored: true},
			{marker: 1, records: records{5: {40, 40}}}, {marker: 60}}, []uint64{2, 5}},
		{"set back to where it was before, then emptied", []state{{marker: 1, records: records{5: {30, 30}}},
			{marker: 1, restored: true, records: records{2: {10, 10}}}, {marker: 60}}, []uint64{2, 5}},
		{"both lost at once", []state{{marker: 1, records: records{2: {10, 10}, 5: {30, 30}}}, {marker: 60}}, []uint64{2, 5}},
		{"both lost at once, one lapsed later",
			[]state{{marker: 1, records: records{2: {10, 35}, 5: {30, 30}}, lapsed: 2}, {marker: 60}}, []uint64{2, 5}},
		{"both lost at once, the later one never held",
			[]state{{marker: 1, records: records{2: {10, 10}, 5: {30, 30}}, lapsed: 5}, {marker: 60}}, []uint64{2, 5}},
		{"set back to where it was before", []state{{marker: 1, records: records{5: {30, 30}}},
			{marker: 1, restored: true, records: records{2: {10, 10}}}}, []uint64{2, 5}},
		{"set back to where it was before, and lapsed there", []state{{marker: 1, records: records{5: {30, 30}}},
			{marker: 1, restored: true, records: records{2: {10, 10}}},
			{marker: 1, records: records{2: {10, 70}}, lapsed: 2}}, []uint64{2, 5}},
		{"the earlier is back in an emptied store", []state{{marker: 1, records: records{2: {10, 10}, 5: {30, 30}}}, {marker: 60},
			{marker: 60, records: records{2: {70, 70}}}}, []uint64{2, 5}},
		{"emptied, then set back to the earlier one", []state{{marker: 1, records: records{2: {10, 10}, 5: {30, 30}}},
			{marker: 60}, {marker: 1, restored: true, records: records{2: {10, 10}}}}, []uint64{2, 5}},
		{"set back, written again and lapsed, then emptied", []state{{marker: 1, records: records{5: {30, 30}}},
			{marker: 1, restored: true, records: records{2: {10, 10}}},
			{marker: 1, restored: true, records: records{5: {50, 60}}, lapsed: 5}, {marker: 90}}, []uint64{2, 5}},
		{"went back, and lapsed there", []state{{marker: 1, records: records{5: {30, 30}}},
			{marker: 1, restored: true, records: records{2: {10, 10}}}, {marker: 1, records: records{2: {10, 70}}},
			{marker: 1, records: records{2: {10, 80}}, lapsed: 2}}, []uint64{2, 5}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore()
			for i, state := range tt.states {
				var records []*Record
				for slot, indexes := range state.records {
					r := record(keyOf(slot), leaseOf("a", "vxlan", fmt.Sprint(slot)), "s", indexes[1])
					r.Lease.Slot, r.Lease.CreateIndex = slot, indexes[0]
					if slot == state.lapsed {
						r.Lease.Session = ""
					}
					records = append(records, r)
				}
				s.suspect = state.restored
				s.read(state.marker, uint64(20*(i+1)), records...)
			}
			var got []uint64
			for _, l := range s.Leases().Leases {
				got = append(got, l.Slot)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("slots %v, want %v", got, tt.want)
			}
		})
	}
}

// TestForeignRecord: the lost record of a host that runs flannel is kept for a day, unless another one has its address.
func TestForeignRecord(t *testing.T) {
	t.Parallel()
	foreign := record(key, leaseOf("a", "vxlan", "new"), "s", 10)
	foreign.Lease.Foreign = true
	s := newStore()
	s.read(2, 10, foreign)
	s.read(20, 30)
	for _, after := range []time.Duration{2 * settle, 20 * time.Hour} {
		s.now = s.now.Add(after)
		s.read(20, 30)
		if s.Record(key) == nil || !s.Missing()[key].IsLost() {
			t.Fatalf("given up after %s", after)
		}
	}
	s.now = s.now.Add(4 * time.Hour)
	if s.read(20, 30); s.Record(key) != nil {
		t.Error("kept for longer than a day")
	}
}

// TestForeignRecords: a host that runs flannel and has changed its subnet has two records for a day. Neither ends the
// time of the other.
func TestForeignRecords(t *testing.T) {
	t.Parallel()
	for range 20 { // in any order
		s := newStore()
		var records []*Record
		for slot := range uint64(2) {
			r := record(keyOf(slot), leaseOf("a", "vxlan", fmt.Sprint(slot)), "s", 10+slot)
			r.Lease.Foreign, r.Lease.Slot, r.Lease.PublicIPs = true, slot, []netip.Addr{netip.MustParseAddr("192.0.2.9")}
			records = append(records, r)
		}
		s.read(2, 12, records...)
		s.read(20, 30)
		s.now = s.now.Add(2 * settle)
		s.read(20, 30)
		if set := s.Leases(); len(s.Missing()) != 2 || len(set.Leases) != 2 {
			t.Fatalf("%+v, missing %+v", set, s.Missing())
		}
	}
}

// TestHintedLoss: a list that may be of a store that was set back does not replace a later record of a host by an
// earlier one that is back, even if nothing proves the set-back: all that is known was only announced.
func TestHintedLoss(t *testing.T) {
	t.Parallel()
	s := newStore()
	s.read(2, 5)
	later := record(keyOf(5), leaseOf("a", "vxlan", "later"), registry.UnknownSession, 34)
	later.Lease.Slot = 5
	s.Apply([]Change{{Key: later.Key, Index: 34, Record: later}}, nil)
	earlier := record(keyOf(2), leaseOf("a", "vxlan", "earlier"), "s", 31)
	earlier.Lease.Slot = 2
	s.suspect = true
	l := s.list(2, 31, earlier)
	l.Hint = true
	s.Accept(l, s.now, Options{Settle: settle})
	var got []uint64
	for _, l := range s.Leases().Leases {
		got = append(got, l.Slot)
	}
	if !slices.Equal(got, []uint64{2, 5}) {
		t.Errorf("slots %v", got)
	}
}

// TestSetBackIsCounted: only a certain set-back is counted. The index of a prefix falls by itself, and a hint can be
// made by hand.
func TestSetBackIsCounted(t *testing.T) {
	t.Parallel()
	s := newStore()
	for _, step := range []struct {
		marker, index uint64
		record        uint64 // index of the only record
		restored      bool
		want          uint64
	}{
		{2, 10, 9, false, 0}, {2, 12, 9, false, 0}, {2, 11, 9, false, 0}, {2, 13, 9, true, 0}, {2, 14, 8, true, 1}, {20, 30, 25, false, 2},
	} {
		s.suspect = step.restored
		s.read(step.marker, step.index, record("a", "a", "s", step.record))
		if got := s.Leases().SetBack; got != step.want {
			t.Errorf("%+v: counted %d", step, got)
		}
	}
}

// storeWith returns a store whose belief has read records, given as modify indexes by key, at index 20 under a marker
// created at 2.
func storeWith(records map[string]uint64) *store {
	s := newStore()
	s.read(2, 20, recordsOf(records)...)
	return s
}

func recordsOf(records map[string]uint64) (out []*Record) {
	for name, modified := range records {
		out = append(out, record(name, name, "s", modified))
	}
	return out
}

// TestUnprovenChanges: whatever is announced of a known record or host, or late, must be confirmed by the record, unless a
// list or a later change has superseded it.
func TestUnprovenChanges(t *testing.T) {
	t.Parallel()
	s := storeWith(map[string]uint64{"a": 10, "b": 11})
	ofHost := leaseOf("a", "vxlan", "")
	s.known["b"] = record("b", ofHost, "s", 11)
	written := func(key string, index uint64, later bool) Change {
		return Change{Key: key, Index: index, Record: record(key, "v", "s", index), Later: later}
	}
	removed := func(key string, index uint64) Change { return Change{Key: key, Index: index} }
	for _, tt := range []struct {
		name    string
		changes []Change
		want    map[string]int
	}{
		{"nothing", nil, nil},
		{"a write of an unknown record", []Change{written("c", 30, false)}, nil},
		{"another value of a known record", []Change{written("a", 30, false)}, map[string]int{"a": 0}},
		{"the same value", []Change{{Key: "a", Index: 30, Record: record("a", "a", "s", 30)}}, map[string]int{"a": 0}},
		{"the same value, not held", []Change{{Key: "a", Index: 30, Record: record("a", "a", "", 30)}}, map[string]int{"a": 0}},
		{"a write before the last list", []Change{written("a", 20, false)}, nil},
		{"a write of an unknown record of a known host", []Change{{Key: "c", Index: 30, Record: record("c", ofHost, "s", 30)}},
			map[string]int{"c": 0}},
		{"a write found later", []Change{written("a", 30, true)}, map[string]int{"a": 0}},
		{"a removal", []Change{written("c", 29, false), removed("a", 30)}, map[string]int{"a": 1}},
		{"a removal of an unknown record", []Change{removed("c", 30)}, nil},
		{"a removal before the last list", []Change{removed("a", 20)}, nil},
		{"a removal and a write", []Change{removed("a", 30), written("a", 31, false)}, map[string]int{"a": 1}},
		{"a write and a removal", []Change{written("a", 30, false), removed("a", 31)}, map[string]int{"a": 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := s.Unproven(tt.changes); !maps.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// TestAnnouncedRecord: a record that was only announced is removed by the list that lacks it, without any doubt.
func TestAnnouncedRecord(t *testing.T) {
	t.Parallel()
	s := storeWith(map[string]uint64{"a": 10})
	s.tell(Change{Key: "c", Index: 30, Record: record("c", "v", registry.UnknownSession, 30)})
	if s.value("c") == "" || s.IsAt(20) {
		t.Errorf("got %q", s.value("c"))
	}
	s.read(2, 20, recordsOf(map[string]uint64{"a": 10})...)
	if s.value("c") != "" || len(s.Missing()) > 0 || !s.IsAt(20) {
		t.Errorf("got %q, missing %v", s.value("c"), s.Missing())
	}
}

// TestUnexplainedRecords: a list shows which records differ without a change that tells why.
func TestUnexplainedRecords(t *testing.T) {
	t.Parallel()
	s := storeWith(map[string]uint64{"a": 10, "b": 11, "c": 12, "d": 13})
	s.missing["d"] = Missing{}
	l := s.list(2, 40, recordsOf(map[string]uint64{"a": 10, "e": 31, "f": 32})...)
	l.Records["b"] = record("b", "edited", "s", 30)
	var got []string
	for _, r := range s.Unexplained(l, []Change{{Key: "f", Index: 32, Record: l.Records["f"]}}) {
		got = append(got, fmt.Sprintf("%s=%s", r.Key, r.Value))
	}
	slices.Sort(got)
	if want := []string{"b=edited", "c=", "e=e"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestUnconfirmedRecords: in an intact tree a missing record was removed; in one that may have been set back its host
// may be about to write it again.
func TestUnconfirmedRecords(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		marker  uint64
		records map[string]uint64
		missing bool
		want    int
	}{
		{"intact", 2, map[string]uint64{"a": 10}, false, 0},
		{"missing", 2, map[string]uint64{"a": 10}, true, 1},
		{"re-created", 30, map[string]uint64{"a": 10}, false, 1},
		{"emptied", 0, nil, false, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := storeWith(map[string]uint64{"a": 10, "b": 11})
			if tt.missing {
				s.missing["b"] = Missing{}
			}
			if got := s.Unconfirmed(s.list(tt.marker, 30, recordsOf(tt.records)...)); len(got) != tt.want {
				t.Errorf("got %d records, want %d", len(got), tt.want)
			}
		})
	}
}
