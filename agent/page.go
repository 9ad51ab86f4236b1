package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/ui"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// partIn are the networks this host takes part in, or wants to, sorted.
func (a *Agent) partIn() []string {
	report, _ := a.env.health.Report()
	names := a.self().Networks
	for _, n := range report.Networks {
		names = append(names, n.Network)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// page gathers what the status page shows, of one network or, with "", of the
// whole agent.
func (a *Agent) page(only string) ui.Page {
	self := a.self()
	report, _ := a.env.health.Report()
	list, _, _ := a.env.events.After(0, only)
	slices.Reverse(list)
	p := ui.Page{Node: self.NodeName, NodeID: self.NodeID, Version: self.Version, Registry: self.Registry, Started: self.Started,
		Now: time.Now(), Health: report, Known: a.partIn(), Events: list, Only: only}
	for _, name := range p.Known {
		if only == "" || name == only {
			p.Networks = append(p.Networks, a.pageNetwork(name, report))
		}
	}
	if only != "" {
		return p
	}
	known, _, _ := a.env.networks.Get()
	for _, n := range known.set.Networks {
		if slices.Contains(p.Known, n.Name) {
			continue
		}
		var prefixes []string
		for _, prefix := range n.Plan.Prefixes() {
			prefixes = append(prefixes, prefix.String())
		}
		p.Others = append(p.Others, ui.Other{Name: n.Name, Prefixes: strings.Join(prefixes, ", "), Backend: n.Backend.Type})
	}
	return p
}

// pageNetwork is one network's part of the page, as the agent remembers it: nobody
// is asked, so the page is there at once whatever hangs. Its script waits for news
// of the leases, which has them read anew for all readers together.
func (a *Agent) pageNetwork(name string, report api.Health) ui.Network {
	out := ui.Network{Name: name, Health: api.NetworkHealth{Network: name, Status: api.Warning}}
	for _, h := range report.Networks {
		if h.Network == name {
			out.Health = h
		}
	}
	run, ok := a.runner(name)
	if !ok {
		return out
	}
	v := run.shown()
	out.Local = v.local
	n, set, known := v.definition, registry.LeaseSet{}, false
	own, _, _ := run.lease.Get()
	before, carried := run.carriedOn()
	switch {
	case carried:
		n, set.Leases, own, known = before.network, before.leases, before.own, true
		out.Trouble = "The store has not been read yet: these are the hosts that this one knew before."
	case v.defined:
		var snap snapshot
		snap, known = run.leasesKnown()
		set = snap.set
	}
	out.Plan, out.Backend, out.Skipped = n.Plan, n.Backend.Type, len(set.Bad)
	if !known {
		out.Trouble = "The leases of this network have not been read yet."
	}
	out.Rows = rowsOf(n, set, v.reservations, own, a.self().NodeID)
	a.counted(&out, v)
	return out
}

// rowsOf are the slots that are not free: by leases, by records that cannot be
// used, and by reservations alone, in order.
func rowsOf(n registry.Network, set registry.LeaseSet, reservations []registry.Reservation, own registry.Lease, ownID string) []ui.Row {
	rows := map[uint64]ui.Row{}
	for _, l := range set.Leases {
		if slot, err := n.Plan.Slot(l.Subnet()); err != nil || slot != l.Slot {
			continue // read with another plan
		}
		row := ui.Row{Slot: l.Slot, Subnets: l.Subnets, State: ui.Held, Node: l.Node, PublicIPs: l.PublicIPs, Backend: l.Backend.Type, MTU: l.MTU}
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
		key := b.Key[strings.LastIndexByte(b.Key, '/')+1:]
		subnet, err := registry.ParseSubnetKey(key)
		if err != nil {
			continue // counted, and named by the check
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
	contradictions(set.Leases, rows)
	out := make([]ui.Row, 0, len(rows))
	for _, row := range rows {
		out = append(out, row)
	}
	slices.SortFunc(out, func(x, y ui.Row) int { return cmp.Compare(x.Slot, y.Slot) })
	return out
}

// contradictions marks living hosts that share a name or an address with another.
func contradictions(leases []registry.Lease, rows map[uint64]ui.Row) {
	first := map[string]registry.Lease{}
	for _, l := range leases {
		if _, drawn := rows[l.Slot]; !drawn || !l.Held() {
			continue
		}
		keys := []string{"name " + l.Node}
		for _, ip := range l.PublicIPs {
			keys = append(keys, "address "+ip.String())
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
				row.State, row.Note = ui.Contradictory, fmt.Sprintf("has the %s, as the host on %s has", key, pair[1].Subnet())
				rows[pair[0].Slot] = row
			}
		}
	}
}

// counted adds what the datapath says of its peers.
func (a *Agent) counted(n *ui.Network, v view) {
	skipped := map[string]string{}
	for _, s := range v.report.Skipped {
		skipped[s.Node] = s.Reason
	}
	var counts map[string]backend.Counters
	if v.counter != nil {
		counts = v.counter.Counters()
		n.Drops = counts[""].Drops
	}
	for i := range n.Rows {
		row := &n.Rows[i]
		if row.State != ui.Held && row.State != ui.Lapsed {
			continue
		}
		row.Counters = counters(counts, row.Node)
		if reason := skipped[row.Node]; reason != "" {
			row.Note = "not in the datapath: " + registry.Shorten(reason, registry.MaxShownReason)
		}
	}
}
