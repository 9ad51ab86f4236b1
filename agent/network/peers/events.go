package peers

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// bulkThreshold is the number of hosts up to which each host has an event of its own when several do the same at once.
const bulkThreshold = 8

// What a host did, in the field "change" of an event.
const (
	peerAppeared   = "appeared"
	peerLeft       = "left"
	peerLapsed     = "lapsed"
	peerReturned   = "returned"
	peerMoved      = "moved"
	peerRenumbered = "renumbered"
)

// A peerChange is what one host did between two reads of the leases.
type peerChange struct {
	what    string // peerMoved
	lease   registry.Lease
	details string // "from 192.0.2.2 to 192.0.2.9"
}

// peerEvents returns the events for what the other hosts did between two reads of all leases. If many hosts did the
// same, one event stands for all of them.
func peerEvents(before, now []registry.Lease, ownID string) []api.Event {
	was := peerLeases(before, ownID, nil)
	is := peerLeases(now, ownID, was)
	found := map[string][]peerChange{}
	for _, id := range slices.Sorted(maps.Keys(is)) {
		l := is[id]
		old, known := was[id]
		if !known {
			found[peerAppeared] = append(found[peerAppeared], peerChange{peerAppeared, l, ""})
			continue
		}
		for _, c := range changesOf(old, l) {
			found[c.what] = append(found[c.what], c)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(was)) {
		if _, still := is[id]; !still {
			found[peerLeft] = append(found[peerLeft], peerChange{peerLeft, was[id], ""})
		}
	}
	var out []api.Event
	for _, what := range []string{peerLeft, peerLapsed, peerAppeared, peerReturned, peerMoved, peerRenumbered} {
		out = append(out, eventsOf(what, found[what])...)
	}
	return out
}

// peerLeases returns one lease of each other host, by node id: of several the one in before, or else the oldest.
func peerLeases(leases []registry.Lease, ownID string, before map[string]registry.Lease) map[string]registry.Lease {
	out := map[string]registry.Lease{}
	for _, l := range leases {
		if l.NodeID == ownID {
			continue
		}
		other, ok := out[l.NodeID]
		old, known := before[l.NodeID]
		if !ok || known && l.Slot == old.Slot || !(known && other.Slot == old.Slot) && l.CreateIndex < other.CreateIndex {
			out[l.NodeID] = l
		}
	}
	return out
}

// changesOf returns what a host did between its old lease and its current one, l.
func changesOf(old, l registry.Lease) (out []peerChange) {
	if old.Subnet() != l.Subnet() {
		out = append(out, peerChange{peerRenumbered, l, "it had " + old.Subnet().String()})
	}
	if !slices.Equal(old.PublicIPs, l.PublicIPs) {
		details := fmt.Sprintf("from %s to %s", registry.Join(old.PublicIPs), registry.Join(l.PublicIPs))
		out = append(out, peerChange{peerMoved, l, details})
	}
	switch {
	case old.Held() && !l.Held():
		out = append(out, peerChange{peerLapsed, l, ""})
	case !old.Held() && l.Held():
		out = append(out, peerChange{peerReturned, l, ""})
	}
	return out
}

// bulkText returns what many hosts did, for example "hold their leases again".
func bulkText(what string) string {
	switch what {
	case peerLapsed:
		return "let their leases lapse, their routes stay"
	case peerReturned:
		return "hold their leases again"
	case peerMoved:
		return "have another address"
	case peerRenumbered:
		return "have another subnet"
	}
	return what // "appeared" and "left"
}

// eventsOf returns the events for hosts that did the same.
func eventsOf(what string, changes []peerChange) []api.Event {
	severity := api.Info
	if what == peerLapsed {
		severity = api.Warning
	}
	if n := len(changes); n > bulkThreshold {
		var names []string
		for _, c := range changes[:bulkThreshold] {
			names = append(names, c.lease.Node)
		}
		list := strings.Join(names, ", ")
		return []api.Event{{
			Kind:     api.EventPeer,
			Severity: severity,
			Message:  fmt.Sprintf("%d hosts %s: %s and %d more", n, bulkText(what), list, n-bulkThreshold),
			Fields:   map[string]string{"change": what, "count": fmt.Sprint(n)},
		}}
	}
	var out []api.Event
	for _, c := range changes {
		fields := map[string]string{"change": what, "host": c.lease.Node, "subnet": c.lease.Subnet().String()}
		if len(c.lease.PublicIPs) > 0 {
			fields["public_ip"] = c.lease.PublicIPs[0].String()
		}
		out = append(out, api.Event{Kind: api.EventPeer, Severity: severity, Message: c.sentence(), Fields: fields})
	}
	return out
}

// sentence describes the change, for example "b moved from 192.0.2.2 to 192.0.2.9".
func (c peerChange) sentence() string {
	name, subnet := cmp.Or(c.lease.Node, c.lease.NodeID), c.lease.Subnet()
	switch c.what {
	case peerAppeared:
		return fmt.Sprintf("%s appeared with %s at %s", name, subnet, registry.Join(c.lease.PublicIPs))
	case peerLeft:
		return fmt.Sprintf("%s left, it had %s", name, subnet)
	case peerLapsed:
		return fmt.Sprintf("the lease of %s on %s lapsed, its routes stay", name, subnet)
	case peerReturned:
		return fmt.Sprintf("%s holds %s again", name, subnet)
	case peerMoved:
		return fmt.Sprintf("%s moved %s", name, c.details)
	}
	return fmt.Sprintf("%s has %s now, %s", name, subnet, c.details)
}

// reportPeers adds events for what the other hosts did. If the leases were not known before, it adds one event with the
// number of hosts.
func (f *Follower) reportPeers(before, now Snapshot, known bool) {
	own, report := f.o.Identity().NodeID, f.o.Report
	if !known {
		n := len(peerLeases(now.Set.Leases, own, nil))
		have := "other hosts have a lease"
		if n == 1 {
			have = "other host has a lease"
		}
		fields := map[string]string{"count": fmt.Sprint(n)}
		report.Event(api.EventPeer, api.Info, fmt.Sprintf("%d %s", n, have), fields)
		return
	}
	for _, v := range peerEvents(before.Set.Leases, now.Set.Leases, own) {
		report.Event(v.Kind, v.Severity, v.Message, v.Fields)
	}
}
