package belief

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/seed"
	"github.com/lenonet/leno/registry"
)

// A world is a store, hosts that keep their leases in it, and a client that looks at it now and then. The store is
// emptied, set back and lied to. Every host has two slots of its own and is on one of them.
type world struct {
	t    *testing.T
	rnd  *rand.Rand
	kind string // how the client knows of removals
	now  time.Time

	tree      contents
	snapshots []contents
	restored  bool            // since the client looked last
	losses    uint64          // how often it was emptied or set back
	lapsed    map[string]bool // by key and index
	removed   map[string]bool // by key: the client can tell that it was removed
	hosts     []*host
	sessions  int

	client Belief
	shown  map[uint64]string // what was shown at each version
}

// forgedSlot is the first slot of those that no host has.
const forgedSlot = 100

type contents struct {
	records map[string]*Record
	marker  uint64
	index   uint64
}

func (c contents) clone() contents {
	c.records = maps.Clone(c.records)
	return c
}

type host struct {
	id       string
	slot     uint64
	mark     int       // tells values of the record apart
	known    bool      // the client has shown the host on its slot, and on no other
	running  bool      // it writes its record again when that is lost
	writes   time.Time // when it does, zero for not yet
	released bool
}

func keyOf(slot uint64) string { return fmt.Sprintf("10.5.%d.0-24", slot) }

func (h *host) value() string { return leaseOf(h.id, "vxlan", fmt.Sprint(h.mark)) }

func newWorld(t *testing.T, kind string) *world {
	w := &world{t: t, rnd: seed.Rand(t), kind: kind, now: time.Now(), shown: map[uint64]string{}, removed: map[string]bool{},
		lapsed: map[string]bool{}}
	w.tree = contents{records: map[string]*Record{}, marker: 1, index: 1}
	w.client.SetBackend("vxlan")
	for i := range 4 {
		w.hosts = append(w.hosts, &host{id: fmt.Sprint("host-", i), slot: uint64(2 * i), running: true})
	}
	return w
}

// write writes the record of a host on its slot, and removes the one on its other slot.
func (w *world) write(h *host) {
	w.tree.index++
	if w.tree.marker == 0 {
		w.tree.marker = w.tree.index
	}
	w.sessions++ // never used again, other than an index
	r := record(keyOf(h.slot), h.value(), fmt.Sprintf("session-%d", w.sessions), w.tree.index)
	r.Lease.Slot, r.Lease.CreateIndex = h.slot, w.tree.index
	if old := w.tree.records[r.Key]; old != nil {
		r.Lease.CreateIndex = old.Lease.CreateIndex
	}
	w.tree.records[r.Key] = r
	w.t.Logf("%s writes %s at %d", h.value(), r.Key, w.tree.index)
	other := keyOf(h.slot ^ 1)
	isMove := w.tree.records[other] != nil
	w.remove(other)
	h.writes = time.Time{}
	if w.rnd.IntN(2) == 0 { // the client hears of it at once
		changes := []Change{{Key: r.Key, Index: r.Lease.ModifyIndex, Record: unheldBy(r)}}
		if isMove {
			changes = append(changes, Change{Key: other, Index: w.tree.index})
		}
		w.tell(changes)
	}
}

// unheldBy returns a record as an announcement contains it, which does not tell its session.
func unheldBy(r *Record) *Record {
	copied := *r
	copied.Lease = Announced(r.Lease, r.Lease.ModifyIndex, true)
	return &copied
}

// tell announces changes to the client, which reads the records that it must.
func (w *world) tell(changes []Change) {
	if w.client.Empty() || w.restored {
		return
	}
	read := map[string]*Record{}
	for key := range w.client.Unproven(changes) {
		read[key] = w.tree.records[key]
	}
	w.client.Apply(changes, read)
	w.check()
}

func (w *world) remove(key string) {
	if w.tree.records[key] != nil {
		delete(w.tree.records, key)
		w.tree.index++
		w.t.Logf("%s is removed at %d", key, w.tree.index)
		w.removed[key] = true
	}
}

// lose makes every running host write its record again before the client gives it up.
func (w *world) lose() {
	w.losses++
	clear(w.removed)
	for _, h := range w.hosts {
		if h.running && !h.released {
			h.writes = w.now.Add(time.Duration(w.rnd.Int64N(int64(settle / 2))))
		}
	}
}

// step lets something happen.
func (w *world) step() {
	w.now = w.now.Add(time.Duration(w.rnd.Int64N(int64(settle / 8))))
	for _, h := range w.hosts {
		if !h.writes.IsZero() && !w.now.Before(h.writes) {
			w.write(h)
		}
	}
	h := w.hosts[w.rnd.IntN(len(w.hosts))]
	switch w.rnd.IntN(16) {
	case 0, 1: // the host changes its record
		if h.running && h.writes.IsZero() {
			h.mark, h.released = h.mark+1, false
			w.write(h)
		}
	case 2: // it moves to its other slot
		if h.running && h.writes.IsZero() {
			h.slot, h.mark, h.known, h.released = h.slot^1, h.mark+1, false, false
			w.write(h)
		}
	case 3: // it goes for good
		if h.running && h.writes.IsZero() {
			h.released = true
			w.remove(keyOf(h.slot))
		}
	case 4: // a running host takes its record back after its session has ended
		if r := w.tree.records[keyOf(h.slot)]; r != nil && string(r.Value) == h.value() && h.writes.IsZero() {
			lapsed := *r
			w.tree.index++
			lapsed.Lease.Session, lapsed.Lease.ModifyIndex = "", w.tree.index
			w.t.Logf("%s lapses at %d", r.Key, w.tree.index)
			w.tree.records[r.Key] = &lapsed
			w.lapsed[fmt.Sprint(r.Key, w.tree.index)] = true
			h.writes = w.now.Add(time.Duration(w.rnd.Int64N(int64(settle / 2))))
		}
	case 5:
		w.snapshots = append(w.snapshots, w.tree.clone())
	case 6:
		if len(w.snapshots) > 0 {
			index := w.tree.index
			i := w.rnd.IntN(len(w.snapshots))
			w.tree = w.snapshots[i].clone()
			w.snapshots = w.snapshots[:i+1]
			// A store may go on counting. One that uses indexes a second time while the client does not know yet what
			// it has lost the first time can hide a move.
			if w.rnd.IntN(2) == 0 || w.restored || len(w.client.Missing()) > 0 {
				w.tree.index = index + 1
			}
			w.restored = true
			w.t.Logf("set back to %d, marker %d", w.tree.index, w.tree.marker)
			w.lose()
		}
	case 7:
		if w.rnd.IntN(2) == 0 {
			w.tree.records, w.tree.marker, w.tree.index = map[string]*Record{}, 0, w.tree.index+1
			w.t.Logf("emptied at %d", w.tree.index)
			w.restored = true
			w.lose()
			if h.running {
				h.released = false
				w.write(h)
			}
		}
	case 8, 9:
		w.announce(h)
	case 10, 11:
		w.forge(h)
	default:
		w.look()
	}
}

// forge writes a record that names a host on another slot, under the session that holds the host's own or another one,
// or removes it.
func (w *world) forge(h *host) {
	key, own := keyOf(forgedSlot+h.slot), w.tree.records[keyOf(h.slot)]
	if w.tree.records[key] != nil {
		w.remove(key)
		return
	}
	if own == nil {
		return
	}
	w.tree.index++
	session := own.Lease.Session
	if session == "" || w.rnd.IntN(2) == 0 {
		session = "stranger"
	}
	r := record(key, h.value(), session, w.tree.index)
	r.Lease.Slot, r.Lease.CreateIndex = forgedSlot+h.slot, w.tree.index
	w.tree.records[key] = r
	w.t.Logf("%s is forged at %d", key, w.tree.index)
	if w.rnd.IntN(2) == 0 {
		w.tell([]Change{{Key: key, Index: w.tree.index, Record: unheldBy(r)}})
	}
}

// look lets the client read a list.
func (w *world) look() {
	if w.tree.marker == 0 {
		return // the client knows that it cannot judge this
	}
	l := List{Records: maps.Clone(w.tree.records), Marker: w.tree.marker, Index: w.tree.index, Hint: w.restored}
	suspect := l.Marker != w.client.Marker() || l.Index < w.client.Index() || w.restored
	isLoss := w.restored && !w.client.Empty()
	removed := maps.Clone(w.removed)
	l.Removed = func(r *Record) bool {
		m, isMissing := w.client.Missing()[r.Key]
		if w.kind == "a store without history" {
			return !isMissing && !suspect
		}
		return !isLoss && removed[r.Key] && !m.IsLost()
	}
	if l.SetBack = isLoss; w.kind == "a store without history" {
		l.SetBack = suspect && w.client.IsSetBack(l, w.restored)
	}
	w.client.Accept(l, w.now, Options{Settle: settle})
	w.restored = false
	w.check()
}

// announce tells the client something of a record, truly, too late or falsely: that it was removed or is a stranger's, or
// what is known of it with another flag.
func (w *world) announce(h *host) {
	if w.client.Empty() || w.restored {
		return
	}
	key := keyOf(h.slot)
	ch := Change{Key: key, Index: w.tree.index + 1, Later: w.rnd.IntN(4) == 0}
	known := w.client.Record(key)
	if known == nil {
		return // nothing contradicts it, until the next list
	}
	switch w.rnd.IntN(4) {
	case 0:
	case 1:
		copied := *known
		copied.Lease = Announced(copied.Lease, ch.Index, w.rnd.IntN(2) == 0)
		ch.Record = &copied
	default:
		ch.Record = record(key, leaseOf("stranger", "vxlan", ""), registry.UnknownSession, ch.Index)
		ch.Record.Lease.Slot = h.slot
	}
	w.tell([]Change{ch})
}

// check checks what must always hold of what the client shows.
func (w *world) check() {
	set := w.client.Leases()
	var text strings.Builder
	shown := map[string][]uint64{}
	for i, l := range set.Leases {
		if l.NodeID == "stranger" {
			w.t.Fatalf("a stranger is shown: %+v", l)
		}
		if i > 0 && l.Slot <= set.Leases[i-1].Slot {
			w.t.Fatalf("the leases are not sorted: %+v", set.Leases)
		}
		if !l.Held() && !l.Missing && !w.lapsed[fmt.Sprint(keyOf(l.Slot), l.ModifyIndex)] {
			w.t.Fatalf("%s has not lapsed: %+v", l.NodeID, l)
		}
		shown[l.NodeID] = append(shown[l.NodeID], l.Slot)
		fmt.Fprintln(&text, l.Slot, l.NodeID, l.Held(), l.Missing, l.Lost)
	}
	if set.SetBack > w.losses {
		w.t.Fatalf("the store was set back %d times, seen %d times", w.losses, set.SetBack)
	}
	for _, h := range w.hosts {
		isShown := slices.Contains(shown[h.id], h.slot)
		if h.known && h.running && !h.released && !isShown {
			w.t.Fatalf("%s is on slot %d, and is shown on %v", h.id, h.slot, shown[h.id])
		}
		// A move that was not seen before a loss cannot be told from a record that a snapshot has brought back.
		isElsewhere := slices.ContainsFunc(shown[h.id], func(slot uint64) bool { return slot < forgedSlot && slot != h.slot })
		isSeen := isShown && string(w.client.Record(keyOf(h.slot)).Value) == h.value() && !isElsewhere
		h.known = isShown && (h.known || isSeen)
	}
	version := w.client.Version()
	if before, ok := w.shown[version]; ok && before != text.String() {
		w.t.Fatalf("two contents of version %d:\n%s\n%s", version, before, text.String())
	}
	w.shown[version] = text.String()
	w.t.Logf("at %d of marker %d: %s", w.tree.index, w.tree.marker, strings.ReplaceAll(text.String(), "\n", "; "))
}

// settleDown lets a quiet time pass, after which the client must know what the store has.
func (w *world) settleDown() {
	for _, h := range w.hosts {
		if !h.writes.IsZero() {
			w.write(h)
		}
	}
	for range 4 {
		w.now = w.now.Add(settle)
		w.look()
		for key, m := range w.client.Missing() { // hosts that are away for long are removed
			if m.older != nil && !m.older.Lease.Held() {
				w.remove(key)
			}
		}
	}
	if w.tree.marker == 0 {
		return
	}
	if n := len(w.client.Missing()); n > 0 {
		w.t.Fatalf("%d records are still missing: %+v", n, w.client.Missing())
	}
	want := slices.Sorted(maps.Keys(w.tree.records))
	var got []string
	for _, l := range w.client.Leases().Leases {
		key := keyOf(l.Slot)
		got = append(got, key)
		if stored := w.tree.records[key]; stored == nil || stored.Lease.ModifyIndex != l.ModifyIndex || stored.Lease.NodeID != l.NodeID {
			w.t.Errorf("%s is shown as %+v, stored as %+v", key, l, stored)
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		w.t.Fatalf("shown: %v, stored: %v", got, want)
	}
}

// TestModel drives a belief with random histories: no running host loses its route, no stranger displaces anyone, a
// version stands for one content, and what is shown is what is stored after a quiet time.
func TestModel(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"a store without history", "a store with history"} {
		for i := range 300 {
			t.Run(fmt.Sprint(kind, "/", i), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, kind)
				for range 60 {
					w.step()
				}
				w.settleDown()
			})
		}
	}
}
