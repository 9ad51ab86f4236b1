package etcd

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/flannel"
	"github.com/lenonet/leno/registry/replica"
)

// views are the views of all networks under one user.
type views struct {
	versions replica.Versions // of networks, reservations and single leases
	networks sync.Map         // of *leaseView, by name
}

type leaseView = replica.Leases[*record, held]

func (v *views) leases(network string) *leaseView {
	view, _ := v.networks.LoadOrStore(network, &leaseView{})
	return view.(*leaseView)
}

func (v *views) forget(network string) { v.networks.Delete(network) }

// watch blocks until the index of records differs from after, and returns that and the tree. Of records, nil ones do
// not count. If fresh is true, everything is read first. Versions of records can be compared only while the store is
// not set back.
func (c *connection) watch(ctx context.Context, list string, after uint64, fresh bool, records func(*tree) []*record) (
	found *tree, index uint64, err error) {
	err = c.mirror.Await(ctx, fresh, func(t *tree) (bool, time.Time) {
		var content strings.Builder
		latest := uint64(0)
		fmt.Fprintln(&content, t.SetBack)
		for _, r := range records(t) {
			if r != nil {
				latest = max(latest, r.modified)
				fmt.Fprintf(&content, "%q %d\n", r.key, r.modified)
			}
		}
		found, index = t, c.views.versions.Index(list, content.String(), latest)
		return index != after, time.Time{}
	})
	return found, index, err
}

// held is the record of a lease, and that of the session that holds it, nil for none.
type held struct{ lease, session *record }

// reader implements replica.LeaseReader for a network.
type reader struct {
	keys    layout
	network registry.Network
}

// Sources implements replica.LeaseReader.
func (r reader) Sources(t *tree) []held {
	sessions, prefix := map[clientv3.LeaseID]*record{}, r.keys.sessions(r.network.Name)
	for _, s := range t.Below(prefix) {
		if id, ok := parseLeaseID(s.key[len(prefix):]); ok && formatLeaseID(id) == s.key[len(prefix):] {
			sessions[id] = s
		}
	}
	var out []held
	for _, l := range t.Below(r.keys.leases(r.network.Name)) {
		out = append(out, held{l, sessions[l.lease]})
	}
	return out
}

// source returns what the lease in a record is parsed from.
func (r reader) source(t *tree, lease *record) held {
	return held{lease, t.Get(r.keys.session(r.network.Name, lease.lease))}
}

// Parse implements replica.LeaseReader.
func (r reader) Parse(h held) *belief.Record {
	l, foreign, err := flannel.ParseLease(r.network, strings.TrimPrefix(h.lease.key, r.keys.leases(r.network.Name)),
		h.lease.value)
	if err != nil {
		l = registry.Lease{NodeID: flannel.NodeIDOf(h.lease.value)}
	}
	session := h.id()
	if foreign && err == nil { // another program may have written an unusable one over the record of a leno host
		session = flannelSession(h.lease)
	}
	return &belief.Record{Key: h.lease.key, Value: h.lease.value, Lease: stored(l, h.lease, session), Err: err}
}

// Complete implements replica.LeaseReader.
func (r reader) Complete(t *tree, l *belief.List, b *belief.Belief) error {
	marker := r.keys.marker(r.network.Name)
	if m := t.Get(marker); m != nil {
		l.Marker, l.Index = m.created, max(l.Index, m.modified)
	}
	maps.DeleteFunc(l.Records, func(key string, p *belief.Record) bool { return isReservation(p, t, r.network) })
	l.Disown()
	lacking, _ := b.Lacks(l.Records)
	if l.Marker == 0 && (lacking > 0 || (len(l.Records) == 0 || b.Empty()) && !r.isDefinedByFlannel(t)) {
		return fmt.Errorf("%w: %s is missing: the store was emptied or restored", registry.ErrUncertain, marker)
	}
	return nil
}

// isDefinedByFlannel reports whether the network has the configuration that flannel's operator wrote. Such a network
// has no marker before the first host with leno claims a subnet in it.
func (r reader) isDefinedByFlannel(t *tree) bool {
	definition := t.Get(r.keys.definition(r.network.Name))
	return definition != nil && !flannel.HasRecord(definition.value)
}

// reader returns what finds the leases of a network, and how long missing ones are kept.
func (c *connection) reader(n registry.Network) (reader, belief.Options) {
	return reader{c.keys, n}, belief.Options{Settle: time.Duration(c.settle.Load()), Foreign: registry.FlannelTTL}
}

// stored returns a lease with what the store says about its record.
func stored(l registry.Lease, r *record, session string) registry.Lease {
	l.Session, l.CreateIndex, l.ModifyIndex = session, r.created, r.modified
	return l
}

// id returns the session that holds the lease, "" for none.
func (h held) id() string {
	if h.lease.lease == 0 || h.session == nil || h.session.lease == 0 {
		return ""
	}
	return session{h.session.lease, h.lease.lease}.String()
}

// flannelSession returns the session of a host that runs flannel. Its lease is held for as long as there is a record,
// which the store removes when the host has not renewed it for a day.
func flannelSession(r *record) string { return fmt.Sprintf("flannel-%x", int64(r.lease)) }
