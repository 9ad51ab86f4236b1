package etcd

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/flannel"
	"github.com/lenonet/leno/registry/replica"
)

// views are the views of all networks under one user.
type views struct {
	mu        sync.Mutex
	byNetwork map[string]*leaseView
	lists     map[string]*version // of networks and reservations, by what is listed
}

func (v *views) leases(network string) *leaseView {
	v.mu.Lock()
	defer v.mu.Unlock()
	view, ok := v.byNetwork[network]
	if !ok {
		view = &leaseView{network: network}
		if v.byNetwork == nil {
			v.byNetwork = map[string]*leaseView{}
		}
		v.byNetwork[network] = view
	}
	return view
}

func (v *views) forget(network string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.byNetwork, network)
}

// index returns the index of a list of records of t.
func (v *views) index(t *tree, list string, records ...*record) uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	now, ok := v.lists[list]
	if !ok {
		now = &version{}
		if v.lists == nil {
			v.lists = map[string]*version{}
		}
		v.lists[list] = now
	}
	s := newSignature(t.setBack)
	for _, r := range records {
		s.add(r.key, r.modified, "")
	}
	return now.update(s)
}

// version is the index that callers get for something, never reused for other content, whatever a restore does to the
// store's revision.
type version struct {
	index   uint64
	content uint64
}

func (v *version) update(s *signature) uint64 {
	if content := s.sum(); v.index == 0 || content != v.content {
		v.index, v.content = max(s.latest, v.index+1), content
	}
	return v.index
}

// signature tells two contents apart.
type signature struct {
	hash   maphash.Hash
	latest uint64 // the revision of the last change
}

var seed = maphash.MakeSeed()

// newSignature returns the signature of nothing. Versions of records can be compared only among contents with the same
// setBack.
func newSignature(setBack uint64) *signature {
	s := &signature{}
	s.hash.SetSeed(seed)
	fmt.Fprintln(&s.hash, setBack)
	return s
}

func (s *signature) add(key string, modified uint64, state string) {
	s.latest = max(s.latest, modified)
	for _, text := range []string{key, state} {
		maphash.WriteComparable(&s.hash, len(text)) // so that no two contents look the same
		s.hash.WriteString(text)
	}
	maphash.WriteComparable(&s.hash, modified)
}

// addLease adds what can change about a lease in a view.
func (s *signature) addLease(l registry.Lease) {
	s.latest = max(s.latest, l.ModifyIndex)
	maphash.WriteComparable(&s.hash, struct {
		subnet              netip.Prefix
		modified            uint64
		held, missing, lost bool
	}{l.Subnet(), l.ModifyIndex, l.Held(), l.Missing, l.Lost})
}

func (s *signature) sum() uint64 {
	if s.latest == 0 {
		return 0
	}
	return s.hash.Sum64()
}

// leaseView is what a client believes the leases of one network to be. A record that is missing is given up only when
// the store has neither been set back nor emptied since it was seen.
type leaseView struct {
	network string
	answers replica.Answers // of WatchLeases

	mu       sync.Mutex
	defined  registry.Network // as of the last comparison
	marker   uint64           // the revision at which the marker was created, 0 for none
	restored uint64           // the tree's setBack
	setBack  uint64           // how often the network was lost or set back
	known    map[string]*known
	version  version

	tree  *tree // the one that was compared last, nil for none
	at    time.Time
	set   registry.LeaseSet // of tree
	again time.Time
}

// comparePause is the shortest time between two comparisons of all leases for callers that wait for changes, so that
// many changes at once cost few of them. The first change after a quiet time does not wait.
const comparePause = 100 * time.Millisecond

// pauseBefore returns the time before which t should not be compared, zero for none.
func (v *leaseView) pauseBefore(t *tree) (end time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t != v.tree && time.Since(v.at) < comparePause {
		end = v.at.Add(comparePause)
	}
	return end
}

// known is a record as it is, or as it was when the store lost it.
type known struct {
	record  *record
	session string // "" for none
	// aliveKey is the key of the session's record, and alive that record, nil for none.
	aliveKey string
	alive    *record
	lease    registry.Lease
	foreign  bool // it belongs to a host that runs flannel
	err      error
	until    time.Time // the record is missing, and given up then; zero for a stored one
	since    time.Time // when the record was found to be missing; zero for a stored one
	lost     bool      // the record is missing because the store was set back or emptied
	older    uint64    // the version, from the time of the snapshot, that is stored instead; 0 for none
}

func (k *known) missing() bool { return !k.until.IsZero() }

// leases returns what to believe of the network's leases when t is what the store says, the index of that, and when the
// first missing record will be given up. The error is an ErrUncertain if the store does not say what became of them.
func (v *leaseView) leases(t *tree, keys layout, n registry.Network, settle time.Duration) (
	set registry.LeaseSet, index uint64, again time.Time, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t == v.tree && v.again.IsZero() && v.isOf(n) {
		set = v.set
		set.Leases = slices.Clone(set.Leases) // callers may change them
		return set, v.version.index, again, nil
	}
	v.tree = nil
	if err := v.update(t, keys, n, settle); err != nil {
		return set, 0, again, err
	}
	set.SetBack = v.setBack
	written := map[string]uint64{} // by node id, when the host last wrote a stored record
	for _, k := range v.known {
		if k.err == nil && !k.missing() {
			written[k.lease.NodeID] = max(written[k.lease.NodeID], k.lease.ModifyIndex)
		}
	}
	shown := make([]*known, 0, len(v.known))
	last := map[string]*known{} // by node id, the latest missing record of each host that has written no other since
	for _, k := range v.known {
		switch {
		case k.missing():
			if again.IsZero() || k.until.Before(again) {
				again = k.until
			}
			if k.isLostFlannelHost() {
				set.Bad = append(set.Bad, k.lostRecord())
			}
			since, elsewhere := written[k.lease.NodeID]
			if other := last[k.lease.NodeID]; k.err == nil && (!elsewhere || since < k.lease.ModifyIndex) &&
				(other == nil || isLater(k, other)) {
				last[k.lease.NodeID] = k
			}
		case k.err != nil:
			set.Bad = append(set.Bad, registry.BadRecord{Key: k.record.key, Reason: k.err.Error()})
		case !k.isReservation(n):
			shown = append(shown, k)
		}
	}
	shown = slices.AppendSeq(shown, maps.Values(last))
	slices.SortFunc(shown, func(a, b *known) int {
		return cmp.Or(cmp.Compare(a.lease.Slot, b.lease.Slot), cmp.Compare(a.lease.ModifyIndex, b.lease.ModifyIndex))
	})
	set.Leases = make([]registry.Lease, 0, len(shown))
	for _, k := range shown {
		l := k.lease
		l.Missing, l.Lost = k.missing(), k.missing() && k.lost && k.older == 0
		set.Leases = append(set.Leases, l)
	}
	slices.SortFunc(set.Bad, func(a, b registry.BadRecord) int { return cmp.Compare(a.Key, b.Key) })
	s := newSignature(v.setBack)
	s.add(keys.marker(v.network), t.modified(keys.marker(v.network)), "")
	for _, l := range set.Leases {
		s.addLease(l)
	}
	for _, b := range set.Bad {
		s.add(b.Key, t.modified(b.Key), b.Reason)
	}
	v.tree, v.at, v.set, v.again = t, time.Now(), set, again
	set.Leases = slices.Clone(set.Leases)
	return set, v.version.update(s), again, nil
}

// isLater reports whether a, of two missing records of one host, is the later one.
func isLater(a, b *known) bool {
	if a.lease.Held() != b.lease.Held() {
		return a.lease.Held()
	}
	return a.record.modified > b.record.modified
}

// update makes t the last known state.
func (v *leaseView) update(t *tree, keys layout, n registry.Network, settle time.Duration) error {
	prefix := keys.leases(v.network)
	now := map[string]*record{}
	for _, r := range t.below(prefix) {
		now[r.key] = r
	}
	lost := 0 // known records that are neither stored nor known to be missing
	for key, k := range v.known {
		if now[key] == nil && !k.missing() {
			lost++
		}
	}
	marker := uint64(0)
	if r := t.records[keys.marker(v.network)]; r != nil {
		marker = r.created
	} else if lost > 0 || (len(now) == 0 || v.known == nil) && !definedByFlannel(t, keys, v.network) {
		return fmt.Errorf("%w: %s is missing: the store was emptied or restored",
			registry.ErrUncertain, keys.marker(v.network))
	}
	recreated := v.known != nil && v.marker != 0 && marker != v.marker
	restored := v.known != nil && t.setBack != v.restored
	if recreated || restored {
		v.setBack++
	}
	// An earlier tree has come back with a snapshot, unless it is that of a new cluster: a record that differs there is lost
	// until it is written again.
	earlier := recreated && restored && marker < v.marker
	isOlder := func(k *known, stored *record) bool {
		switch {
		case k.missing() && stored.modified == k.older:
			return true
		case !restored || stored.modified >= k.record.modified:
			return false
		}
		return !recreated || earlier && !bytes.Equal(stored.value, k.record.value) &&
			k.lease.Outranks(v.parse(t, keys, n, stored, false).lease, n.Backend.Type)
	}
	isSame := v.isOf(n)
	next := make(map[string]*known, len(now))
	for key, k := range v.known {
		stored := now[key]
		older := stored != nil && isOlder(k, stored)
		if k.lost && (recreated || restored) { // this process may have been suspended until then
			copied := *k
			copied.until = time.Now().Add(settle)
			k = &copied
		}
		switch {
		case stored != nil && !older:
			continue
		case k.missing() && time.Now().After(k.until):
			if k = v.prolong(k, t, keys, n, settle, older); k == nil {
				continue
			}
		case k.missing() && !hasVanished(t, key) && (!k.lost || k.older != 0 && stored == nil && !recreated && !restored):
			continue // its deletion, or that of the older version, was seen later
		case k.missing():
		case recreated, restored, stored == nil && hasVanished(t, key):
			copied := *k
			copied.since, copied.until, copied.lost = time.Now(), time.Now().Add(settle), recreated || restored
			k = &copied
		default:
			continue // it was deleted
		}
		instead := uint64(0)
		if older {
			instead = stored.modified
		}
		if k.older != instead { // the store may have lost that version as well
			copied := *k
			copied.older = instead
			k = &copied
		}
		if recreated { // indexes of the lost tree cannot be compared with those of this one
			copied := *k
			copied.lease.ModifyIndex = 0
			k = &copied
		}
		next[key] = k
	}
	for key, r := range now {
		if next[key] != nil {
			continue // an older version, from the time of the snapshot
		}
		next[key] = v.parse(t, keys, n, r, isSame)
	}
	v.known, v.marker, v.restored, v.defined = next, marker, t.setBack, n
	return nil
}

// definedByFlannel reports whether a network has the configuration that flannel's operator wrote. Such a network has no
// marker before the first host with leno claims a subnet in it.
func definedByFlannel(t *tree, keys layout, network string) bool {
	r := t.records[keys.definition(network)]
	return r != nil && !flannel.HasRecord(r.value)
}

func hasVanished(t *tree, key string) bool {
	_, ok := t.vanished[key]
	return ok
}

// isOf reports whether the last comparison was with n's plan and backend, from which records are parsed.
func (v *leaseView) isOf(n registry.Network) bool {
	return slices.Equal(v.defined.Plan, n.Plan) && v.defined.Backend.Equal(n.Backend)
}

// parse returns a stored record, parsed once unless isSame is false: n is not the definition of the last time.
func (v *leaseView) parse(t *tree, keys layout, n registry.Network, r *record, isSame bool) *known {
	k := &known{record: r}
	if old := v.known[r.key]; old != nil && old.record == r && isSame {
		if r.lease != 0 && t.records[old.aliveKey] == old.alive && !old.missing() {
			return old // unchanged, as nearly all are
		}
		*k = *old
		k.until, k.since, k.lost, k.older = time.Time{}, time.Time{}, false, 0
	} else {
		k.lease, k.foreign, k.err = flannel.ParseLease(n, r.key[len(keys.leases(n.Name)):], r.value)
	}
	k.aliveKey = keys.session(n.Name, r.lease)
	k.alive = t.records[k.aliveKey]
	k.session = sessionWith(r, k.alive)
	if k.foreign && k.err == nil { // another program may have written an unusable one over the record of a leno host
		k.session = flannelSession(r)
	}
	k.lease = stored(k.lease, r, k.session)
	return k
}

// stored returns a lease with what the store says about its record.
func stored(l registry.Lease, r *record, session string) registry.Lease {
	l.Session, l.CreateIndex, l.ModifyIndex = session, r.created, r.modified
	return l
}

// sessionOf returns the session that holds a record, "" for none.
func sessionOf(t *tree, keys layout, network string, r *record) string {
	return sessionWith(r, t.records[keys.session(network, r.lease)])
}

// sessionWith is sessionOf for the session's own record, nil if there is none.
func sessionWith(r, alive *record) string {
	if r.lease == 0 || alive == nil || alive.lease == 0 {
		return ""
	}
	return session{alive.lease, r.lease}.String()
}

// flannelSession returns the session of a host that runs flannel. Its lease is held for as long as there is a record,
// which the store removes when the host has not renewed it for a day.
func flannelSession(r *record) string { return fmt.Sprintf("flannel-%x", int64(r.lease)) }

// unconfirmed returns the known leases that t does not have, although they are not known to have been deleted: their
// hosts may be about to write them again.
func (v *leaseView) unconfirmed(t *tree, keys layout, n registry.Network, settle time.Duration) (out []registry.Lease) {
	v.mu.Lock()
	defer v.mu.Unlock()
	marker := t.records[keys.marker(v.network)]
	changed := marker == nil || marker.created != v.marker || t.setBack != v.restored
	for key, k := range v.known {
		// A record that was only missing, and whose deletion was seen since, keeps no subnet.
		if t.records[key] == nil && k.err == nil && (k.lost || changed || hasVanished(t, key)) {
			out = append(out, k.lease)
		}
	}
	prefix := keys.leases(v.network)
	for key, gone := range t.vanished { // also those that were read before this network's leases were watched
		if v.known[key] != nil || !strings.HasPrefix(key, prefix) || time.Since(gone.at) > settle {
			continue
		}
		if l, _, err := flannel.ParseLease(n, key[len(prefix):], gone.record.value); err == nil {
			out = append(out, l)
		}
	}
	return out
}
