package soak

import (
	"net/netip"
	"slices"
	"time"
)

// holders looks for two live holders of one slot.
func (c *checker) holders() {
	for i, a := range c.Nodes {
		for _, b := range c.Nodes[i+1:] {
			if a.Network != b.Network {
				continue
			}
			one, other := member{a.Name, a.Network}, member{b.Name, b.Network}
			for _, x := range c.tenures[one] {
				for _, y := range c.tenures[other] {
					both := Span{max(x.From, y.From), min(x.To, y.To)}
					if both.From > both.To || !overlapping(x.subnets, y.subnets) ||
						c.mayNotKnow(a.Name, a.Network, y, both) || c.mayNotKnow(b.Name, b.Network, x, both) {
						continue
					}
					c.report(TwoHolders, one, both, "it holds %v and %s holds %v", x.subnets, b.Name, y.subnets)
				}
			}
		}
	}
}

// mayNotKnow reports whether a node may overlap with another's tenure until the settling time has
// passed. There are four reasons: its lease was revoked; the node came back from a silence in which
// the other got the subnet; after a silence in which it was given up, it claimed its subnet too late;
// or the store was set back across these events.
func (c *checker) mayNotKnow(node, network string, other tenure, both Span) bool {
	end := Span{both.To, both.To}
	if c.departs(member{node, network}, end) {
		return true
	}
	for _, s := range c.silent[node] {
		if s.blind() && s.To != forever && c.lasts(node, s.Span, end) &&
			(s.overlaps(other.since) || s.To < other.since.From && c.out(node, other.since.From)) {
			return true
		}
	}
	return slices.ContainsFunc(c.wiped, func(r Rewind) bool {
		return r.setBack() && r.From <= both.From && c.lasts(node, r.Span, end)
	})
}

// withdraws reports whether a member withdraws the subnets that it had last before a moment: the store has a live lease
// of another node on them.
func (c *checker) withdraws(m member, at time.Duration) bool {
	var subnets []netip.Prefix
	for _, l := range c.claimsOf[m] {
		if l.subnet().IsValid() && l.To <= at {
			subnets = l.Subnets
		}
	}
	return slices.ContainsFunc(c.reads[m.network], func(read Read) bool {
		near := read.overlaps(Span{at - 2*time.Second, at + 2*time.Second})
		return near && slices.ContainsFunc(read.Records, func(x Record) bool {
			return x.Node != m.node && x.Session != "" && overlapping(x.Subnets, subnets)
		})
	})
}

// moves checks every change of a node's subnet.
func (c *checker) moves() {
	for _, n := range c.Nodes {
		m := member{n.Name, n.Network}
		var before *tenure
		for i, t := range c.tenures[m] {
			if before != nil && !c.sameSlot(n.Name, *before, t) && c.defined(m.network, Span{before.To, t.From}) {
				if !c.cause(m, *before, t) {
					c.report(Moved, m, t.since, "from %v to %v", before.subnets, t.subnets)
				}
				said := slices.ContainsFunc(c.Notices, func(x Notice) bool {
					return x.Node == n.Name && x.Network == n.Network && x.Process == t.process && x.Subnet == t.subnets[0]
				})
				if before.process == t.process && !said && !c.departed(m, Span{before.To, t.since.To}, LeaveNetwork) {
					c.report(MovedSilently, m, t.since, "from %v to %v, not a word in the log", before.subnets, t.subnets)
				}
			}
			before = &c.tenures[m][i]
		}
	}
}

// cause reports whether a node had to move: it had been given up, had left or lost its lease to an operator, or the store
// was set back and has another node on its subnet, or lost all records and has the one from which the node got it.
func (c *checker) cause(m member, from, to tenure) bool {
	if c.out(m.node, to.since.To) || c.out(m.node, to.since.From) || c.departs(m, Span{from.To, to.since.To}) {
		return true
	}
	// In a full network, a host that was given up may wait for long.
	if slices.ContainsFunc(c.silent[m.node], func(s Silence) bool {
		return from.To <= s.To && s.To <= to.since.To && c.out(m.node, s.To)
	}) {
		return true
	}
	for _, r := range c.wiped {
		if to.since.To < r.From || !c.lasts(m.node, c.untilRivalsEnd(m.node, r), to.since) {
			continue
		}
		for _, read := range c.reads[m.network] {
			if read.To < r.From || read.From > to.since.To {
				continue
			}
			if slices.ContainsFunc(read.Records, func(x Record) bool {
				return x.Node != m.node && overlapping(x.Subnets, from.subnets) && (r.setBack() || c.comesBack(member{x.Node, m.network}, from.subnets, from.since, r))
			}) {
				return true
			}
		}
	}
	return false
}
