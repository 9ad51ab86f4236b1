package etcd

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/flannel"
	"github.com/lenonet/leno/registry/replica"
)

// views are the views of all networks under one user.
type views struct {
	versions replica.Versions // of networks, reservations and single leases

	mu        sync.Mutex
	byNetwork map[string]*leaseView
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

// index returns the index of a list of records of t. Versions of records can be compared only while the store is not set
// back.
func (v *views) index(t *tree, list string, records ...*record) uint64 {
	var content strings.Builder
	latest := uint64(0)
	fmt.Fprintln(&content, t.setBack)
	for _, r := range records {
		latest = max(latest, r.modified)
		fmt.Fprintf(&content, "%q %d\n", r.key, r.modified)
	}
	return v.versions.Index(list, content.String(), latest)
}

// leaseView is what a client believes the leases of one network to be.
type leaseView struct {
	network string
	answers replica.Answers // of WatchLeases

	mu      sync.Mutex
	defined registry.Network // with whose plan and backend the records were parsed
	setBack uint64           // the tree's
	parsed  map[string]parsed
	belief  belief.Belief

	tree *tree // the one that was compared last, nil for none
	at   time.Time
	set  registry.LeaseSet // of tree
}

// parsed is what a record was parsed to. The session's own record, alive, belongs to that.
type parsed struct {
	stored, alive *record
	aliveKey      string
	record        *belief.Record
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

// leases returns what to believe of the network's leases when t is what the store says, the index of that, and when the
// first missing record will be given up. The error is an ErrUncertain if the store does not say what became of them.
func (v *leaseView) leases(t *tree, keys layout, n registry.Network, settle time.Duration) (
	set registry.LeaseSet, index uint64, again time.Time, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.tree != nil && t.setBack == v.tree.setBack && t.revision < v.tree.revision {
		t = v.tree // another call has compared a later one
	}
	if t != v.tree || !v.belief.Due().IsZero() || !v.isOf(n) {
		v.tree = nil
		if !v.isOf(n) {
			v.defined, v.parsed = n, nil
		}
		l := v.list(t, keys, n)
		lacking, _ := v.belief.Lacks(l.Records)
		isFlannels := definedByFlannel(t, keys, v.network)
		if l.Marker == 0 && (lacking > 0 || (len(l.Records) == 0 || v.belief.Empty()) && !isFlannels) {
			return set, 0, again, fmt.Errorf("%w: %s is missing: the store was emptied or restored",
				registry.ErrUncertain, keys.marker(v.network))
		}
		v.belief.SetBackend(n.Backend.Type)
		v.belief.Accept(l, time.Now(), belief.Options{Settle: settle, Foreign: flannelLeaseTime})
		v.setBack = t.setBack
		v.tree, v.at, v.set = t, time.Now(), v.belief.Leases()
		v.set.Bad = append(v.set.Bad, v.lostFlannelHosts()...)
	}
	set = v.set
	set.Leases = slices.Clone(set.Leases) // callers may change them
	return set, v.belief.Version(), v.belief.Due(), nil
}

// list returns what t says of the network's leases.
func (v *leaseView) list(t *tree, keys layout, n registry.Network) belief.List {
	records := t.below(keys.leases(v.network))
	l := belief.List{
		Records: make(map[string]*belief.Record, len(records)),
		SetBack: !v.belief.Empty() && t.setBack != v.setBack,
	}
	if r := t.records[keys.marker(v.network)]; r != nil {
		l.Marker, l.Index = r.created, r.modified
	}
	isSame, next := v.isOf(n), make(map[string]parsed, len(records))
	for _, r := range records {
		p := v.parsed[r.key]
		if !isSame || p.stored != r || r.lease == 0 || t.records[p.aliveKey] != p.alive {
			p = parse(t, keys, n, r)
		}
		next[r.key] = p
		if !isReservation(p.record, r, n) {
			l.Records[r.key], l.Index = p.record, max(l.Index, r.modified)
		}
	}
	if isSame {
		v.parsed = next
	}
	lost := l.SetBack || v.belief.Marker() != 0 && l.Marker != v.belief.Marker()
	l.Removed = func(r *belief.Record) bool {
		// Where the store was lost, a deletion that was seen is that of what it had lost, or of an older version.
		return !lost && !hasVanished(t, r.Key) && !v.belief.Missing()[r.Key].IsLost()
	}
	return l
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

// isOf reports whether the records were parsed with n's plan and backend.
func (v *leaseView) isOf(n registry.Network) bool {
	return slices.Equal(v.defined.Plan, n.Plan) && v.defined.Carriage().Equal(n.Carriage())
}

// parse parses a record of a lease.
func parse(t *tree, keys layout, n registry.Network, r *record) parsed {
	l, foreign, err := flannel.ParseLease(n, r.key[len(keys.leases(n.Name)):], r.value)
	if err != nil {
		l = registry.Lease{NodeID: flannel.NodeIDOf(r.value)}
	}
	p := parsed{stored: r, aliveKey: keys.session(n.Name, r.lease)}
	p.alive = t.records[p.aliveKey]
	session := sessionWith(r, p.alive)
	if foreign && err == nil { // another program may have written an unusable one over the record of a leno host
		session = flannelSession(r)
	}
	p.record = &belief.Record{Key: r.key, Value: r.value, Lease: stored(l, r, session), Err: err}
	return p
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

// flannelLeaseTime is how long flannel's leases last. flanneld writes a record when it starts and an hour before the end,
// so the store cannot tell sooner whether a host is alive whose record it has lost.
const flannelLeaseTime = 24 * time.Hour

// lostFlannelHosts returns the lost records of hosts that run flannel, and says what an operator can do about them.
func (v *leaseView) lostFlannelHosts() (out []registry.BadRecord) {
	for key, m := range v.belief.Missing() {
		r := v.belief.Record(key)
		if !m.IsLost() || !r.Lease.Foreign {
			continue
		}
		out = append(out, registry.BadRecord{Key: key, Reason: fmt.Sprintf(
			"the store has lost it, and flanneld on %s may not write it again for a day: "+
				"restart flanneld there; its routes stay until %s",
			r.Lease.PublicIPs[0], m.Since.Add(flannelLeaseTime).UTC().Format(time.RFC3339))})
	}
	slices.SortFunc(out, func(a, b registry.BadRecord) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

// unconfirmed returns the known leases that t does not have, although they are not known to have been deleted: their
// hosts may be about to write them again.
func (v *leaseView) unconfirmed(t *tree, keys layout, n registry.Network, settle time.Duration) (out []registry.Lease) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.belief.Empty() {
		for _, r := range v.belief.Unconfirmed(v.list(t, keys, n)) {
			if r.Err == nil {
				out = append(out, r.Lease)
			}
		}
	}
	prefix := keys.leases(v.network)
	for key, gone := range t.vanished { // also those that were read before this network's leases were watched
		if v.belief.Record(key) != nil || !strings.HasPrefix(key, prefix) || time.Since(gone.at) > settle {
			continue
		}
		if l, _, err := flannel.ParseLease(n, key[len(prefix):], gone.record.value); err == nil {
			out = append(out, l)
		}
	}
	return out
}
