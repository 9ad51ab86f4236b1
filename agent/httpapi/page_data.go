package httpapi

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/ui"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// networks returns the networks in which this host takes part, or wants to, sorted.
func (p *statusPage) networks() []string {
	report, _ := p.server.o.Health.Report()
	names := p.server.o.Agent.Self().Networks
	for _, n := range report.Networks {
		names = append(names, n.Network)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// page gathers what the status page shows of one network or, if only is "", of the whole agent.
func (p *statusPage) page(only string) ui.Page {
	agent := p.server.o.Agent
	self := agent.Self()
	report, _ := p.server.o.Health.Report()
	events, _, _ := agent.Events(0, only)
	slices.Reverse(events)
	out := ui.Page{
		Node: self.NodeName, NodeID: self.NodeID, Version: self.Version, Registry: self.Registry, Started: self.Started,
		Now: time.Now(), Health: report, Known: p.networks(), Events: events, Only: only,
	}
	for _, name := range out.Known {
		if only == "" || name == only {
			out.Networks = append(out.Networks, p.pageNetwork(name, report))
		}
	}
	if only != "" {
		return out
	}
	known, _ := agent.Networks()
	for _, n := range known.Networks {
		if slices.Contains(out.Known, n.Name) {
			continue
		}
		out.Others = append(out.Others,
			ui.Other{Name: n.Name, Prefixes: registry.Join(n.Plan.Prefixes()), Backend: n.Backend.Type})
	}
	return out
}

// pageNetwork returns one network's part of the page from the agent's memory. It asks no one, so the page is there at
// once whatever hangs. The page's script waits for changes of the leases, for which they are read again for all readers
// together.
func (p *statusPage) pageNetwork(name string, report api.Health) ui.Network {
	out := ui.Network{Name: name, Health: api.NetworkHealth{Network: name, Status: api.Warning}}
	for _, h := range report.Networks {
		if h.Network == name {
			out.Health = h
		}
	}
	part, ok := p.server.o.Agent.Network(name)
	if !ok {
		return out
	}
	status := part.Status()
	out.Local = status.Local
	n, own, set, known := status.Definition, status.Lease, registry.LeaseSet{}, false
	resumed, isResumed := part.Resumed()
	switch {
	case isResumed:
		n, own, set.Leases, known = resumed.Definition, resumed.Lease, resumed.Leases, true
		out.Trouble = "The store has not been read yet: these are the hosts that this one knew before."
	case status.Defined:
		read, err := part.Leases(false)
		set, known = read, err == nil
	}
	out.Plan, out.Backend, out.Skipped = n.Plan, n.Backend.Type, len(set.Bad)
	if known {
		out.Hosts, _ = part.Hosts()
	} else {
		out.Trouble = "The leases of this network have not been read yet."
	}
	out.Rows = rowsOf(n, set, status.Reservations, own, p.server.o.Agent.Self().NodeID)
	addPeers(&out, part.Peers(true))
	return out
}

// rowsOf returns the slots that are not free, in order: those with a lease, with a record that cannot be used, or with
// only a reservation.
func rowsOf(n registry.Network, set registry.LeaseSet, reservations []registry.Reservation, own registry.Lease,
	ownID string) []ui.Row {
	rows := map[uint64]ui.Row{}
	for _, l := range set.Leases {
		if slot, err := n.Plan.Slot(l.Subnet()); err != nil || slot != l.Slot {
			continue // it was read with another plan
		}
		row := ui.Row{
			Slot: l.Slot, Subnets: l.Subnets, State: ui.Held, Node: l.Node, PublicIPs: l.PublicIPs,
			Backend: l.Backend.Type, MTU: l.MTU,
		}
		switch {
		case l.NodeID == ownID && l.Slot == own.Slot && own.Subnet().IsValid():
			row.State = ui.Own
		case !l.Held():
			row.State, row.Lapsed = ui.Lapsed, l.Lapsed
		}
		rows[l.Slot] = row
	}
	for _, r := range reservations {
		if slot, err := n.Plan.Slot(r.Subnet); err != nil || slot != r.Slot {
			continue
		}
		kept := cmp.Or(r.Node, r.NodeID)
		row, leased := rows[r.Slot]
		switch {
		case !leased:
			row = ui.Row{Slot: r.Slot, Subnets: n.Plan.Subnets(r.Slot), State: ui.Reserved, Node: kept}
		case r.Node != "" && r.Node != row.Node:
			row.State, row.Note = ui.Contradictory, "reserved for "+kept
		default:
			row.Note = "reserved"
		}
		rows[r.Slot] = row
	}
	for _, b := range set.Bad {
		subnet, err := b.Subnet()
		if err != nil {
			continue // it is counted, and the check names it
		}
		slot, err := n.Plan.Slot(subnet)
		if err != nil {
			continue
		}
		row, known := rows[slot]
		if !known {
			row = ui.Row{Slot: slot, Subnets: n.Plan.Subnets(slot)}
		}
		row.State, row.Note = ui.Contradictory, b.Shortened().Reason
		rows[slot] = row
	}
	markContradictions(set.Leases, rows)
	return slices.SortedFunc(maps.Values(rows), func(x, y ui.Row) int { return cmp.Compare(x.Slot, y.Slot) })
}

// markContradictions marks living hosts that share a name or an address with another.
func markContradictions(leases []registry.Lease, rows map[uint64]ui.Row) {
	first := map[string]registry.Lease{}
	for _, l := range leases {
		if _, drawn := rows[l.Slot]; !drawn || !l.Held() {
			continue
		}
		keys := []string{"name " + l.Node}
		for _, e := range l.Endpoints() {
			keys = append(keys, "address "+registry.EndpointText(e))
		}
		for _, key := range keys {
			other, taken := first[key]
			if !taken {
				first[key] = l
				continue
			}
			if other.NodeID == l.NodeID {
				continue
			}
			for _, pair := range [][2]registry.Lease{{l, other}, {other, l}} {
				row := rows[pair[0].Slot]
				row.State, row.Note = ui.Contradictory, fmt.Sprintf("has the same %s as the host on %s", key, pair[1].Subnet())
				rows[pair[0].Slot] = row
			}
		}
	}
}

// addPeers adds what the datapath says of its peers.
func addPeers(n *ui.Network, list api.PeerList) {
	n.Drops = list.Drops
	peers := map[string]api.Peer{}
	for _, p := range list.Peers {
		peers[p.Node] = p
	}
	for i := range n.Rows {
		row := &n.Rows[i]
		if row.State != ui.Held && row.State != ui.Lapsed {
			continue
		}
		row.Counters, row.Path = peers[row.Node].Counters, peers[row.Node].Path
		if reason := peers[row.Node].Skipped; reason != "" {
			row.Note = "not in the datapath: " + registry.Shorten(reason, registry.MaxShownReason)
		}
	}
}
