package agent

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// herd is how many hosts may do the same at once and have an event each.
const herd = 8

// What a host did, as it is told.
const (
	peerAppeared   = "appeared"
	peerLeft       = "left"
	peerLapsed     = "lapsed"
	peerReturned   = "returned"
	peerMoved      = "moved"
	peerRenumbered = "renumbered"
)

// did is what one host did between two reads of the leases.
type did struct {
	what    string
	lease   registry.Lease
	details string
}

// peerEvents are what the other hosts did between two reads of all leases, those
// of many hosts in one event.
func peerEvents(before, now []registry.Lease, ownID string) []api.Event {
	was, is := peerLeases(before, ownID), peerLeases(now, ownID)
	found := map[string][]did{}
	for _, id := range slices.Sorted(maps.Keys(is)) {
		l := is[id]
		old, known := was[id]
		if !known {
			found[peerAppeared] = append(found[peerAppeared], did{peerAppeared, l, ""})
			continue
		}
		for _, d := range changesOf(old, l) {
			found[d.what] = append(found[d.what], d)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(was)) {
		if _, still := is[id]; !still {
			found[peerLeft] = append(found[peerLeft], did{peerLeft, was[id], ""})
		}
	}
	var out []api.Event
	for _, what := range []string{peerLeft, peerLapsed, peerAppeared, peerReturned, peerMoved, peerRenumbered} {
		out = append(out, told(what, found[what])...)
	}
	return out
}

// peerLeases is the lease that counts of each other host.
func peerLeases(leases []registry.Lease, ownID string) map[string]registry.Lease {
	return leasesOfHosts(leases, func(l registry.Lease) bool { return l.NodeID != ownID })
}

// changesOf is what a host did that has a lease before and after.
func changesOf(old, l registry.Lease) (out []did) {
	if old.Subnet() != l.Subnet() {
		out = append(out, did{peerRenumbered, l, "it had " + old.Subnet().String()})
	}
	if !slices.Equal(old.PublicIPs, l.PublicIPs) {
		out = append(out, did{peerMoved, l, fmt.Sprintf("from %s to %s", addresses(old.PublicIPs), addresses(l.PublicIPs))})
	}
	switch {
	case old.Held() && !l.Held():
		out = append(out, did{peerLapsed, l, ""})
	case !old.Held() && l.Held():
		out = append(out, did{peerReturned, l, ""})
	}
	return out
}

func addresses(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}

// herds is what many hosts did.
var herds = map[string]string{
	peerAppeared: "appeared", peerLeft: "left", peerLapsed: "let their leases lapse, their routes stay", peerReturned: "hold their leases again",
	peerMoved: "have another address", peerRenumbered: "have another subnet",
}

// told are the events about hosts that did the same.
func told(what string, hosts []did) []api.Event {
	severity := api.Info
	if what == peerLapsed {
		severity = api.Warning
	}
	if len(hosts) > herd {
		var names []string
		for _, d := range hosts[:herd] {
			names = append(names, d.lease.Node)
		}
		return []api.Event{{Kind: api.EventPeer, Severity: severity,
			Message: fmt.Sprintf("%d hosts %s: %s and %d more", len(hosts), herds[what], strings.Join(names, ", "), len(hosts)-herd),
			Fields:  map[string]string{"change": what, "count": fmt.Sprint(len(hosts))}}}
	}
	var out []api.Event
	for _, d := range hosts {
		fields := map[string]string{"change": what, "host": d.lease.Node, "subnet": d.lease.Subnet().String()}
		if len(d.lease.PublicIPs) > 0 {
			fields["public_ip"] = d.lease.PublicIPs[0].String()
		}
		out = append(out, api.Event{Kind: api.EventPeer, Severity: severity, Message: d.sentence(), Fields: fields})
	}
	return out
}

func (d did) sentence() string {
	name, subnet := cmp.Or(d.lease.Node, d.lease.NodeID), d.lease.Subnet()
	switch d.what {
	case peerAppeared:
		return fmt.Sprintf("%s appeared with %s at %s", name, subnet, addresses(d.lease.PublicIPs))
	case peerLeft:
		return fmt.Sprintf("%s left, it had %s", name, subnet)
	case peerLapsed:
		return fmt.Sprintf("the lease of %s on %s lapsed, its routes stay", name, subnet)
	case peerReturned:
		return fmt.Sprintf("%s holds %s again", name, subnet)
	case peerMoved:
		return fmt.Sprintf("%s moved %s", name, d.details)
	}
	return fmt.Sprintf("%s has %s now, %s", name, subnet, d.details)
}

// peersChanged remembers what the other hosts did. The first read after a start
// tells how many there are.
func (r *runner) peersChanged(before, now snapshot, known bool) {
	if !known {
		n := len(peerLeases(now.set.Leases, r.env.id.NodeID))
		have := "other hosts have a lease"
		if n == 1 {
			have = "other host has a lease"
		}
		r.event(api.EventPeer, api.Info, fmt.Sprintf("%d %s", n, have), map[string]string{"count": fmt.Sprint(n)})
		return
	}
	for _, v := range peerEvents(before.set.Leases, now.set.Leases, r.env.id.NodeID) {
		r.event(v.Kind, v.Severity, v.Message, v.Fields)
	}
}
