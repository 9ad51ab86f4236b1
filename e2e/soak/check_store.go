package soak

import (
	"net/netip"
	"slices"
	"time"
)

// store looks at what the store itself says, read by read.
func (c *checker) store() {
	for network, reads := range c.reads {
		held := map[netip.Prefix]tenant{}
		var before time.Duration
		for _, read := range reads {
			c.overlaps(read)
			if !read.Defined && c.quiet(read.Span) {
				c.report(NotDefined, network, read.Span, "the store has no network %s", network)
			}
			if rewind, ok := c.rewound(Span{before, read.To}); ok {
				for subnet, t := range held {
					t.rewind, t.rewound = rewind, true
					held[subnet] = t
				}
			}
			c.handedOver(read, held)
			before = read.From
		}
	}
}

// tenant is who held a subnet's record last.
type tenant struct {
	node    string
	last    time.Duration // beginning of the last read that showed it held
	rewind  Rewind        // since then
	rewound bool
}

func (c *checker) rewound(s Span) (Rewind, bool) {
	for _, r := range c.Rewinds {
		if r.overlaps(s) {
			return r, true
		}
	}
	return Rewind{}, false
}

// handedOver follows every record and compares who holds it now with who did.
func (c *checker) handedOver(read Read, held map[netip.Prefix]tenant) {
	there := map[netip.Prefix]bool{}
	for _, x := range read.Records {
		there[x.Subnet] = true
		t, known := held[x.Subnet]
		if known && t.node != x.Node {
			c.mayTake(read, t, x.Subnet, x.Node+" has it")
		}
		if x.Session != "" {
			held[x.Subnet] = tenant{node: x.Node, last: read.From}
		}
	}
	for subnet, t := range held {
		if !there[subnet] && !t.rewound {
			c.mayTake(read, t, subnet, "its record is gone")
			delete(held, subnet)
		}
	}
}

// mayTake reports that a node lost a subnet's record that was kept for it.
func (c *checker) mayTake(read Read, t tenant, subnet netip.Prefix, what string) {
	switch {
	case t.rewound && t.rewind.Why == RestoreStore: // it says what it said then
	case t.rewound && c.forgotten(t.node, t.rewind): // forgotten, and it could not say so
	case c.left(t.node, subnet, read.To): // it was done with it
	case !t.rewound && read.To-t.last >= c.Rules.Hold:
	default:
		c.report(TakenEarly, t.node, read.Span, "%s, held %s before: %s", subnet, (read.To - t.last).Round(time.Millisecond), what)
	}
}

// left says that by its own word a node is on another subnet at that time.
func (c *checker) left(node string, subnet netip.Prefix, at time.Duration) bool {
	for _, t := range c.tenures[node] {
		if t.since.From <= at && at <= t.To+c.Rules.Settle && !slices.Contains(t.subnets, subnet) {
			return true
		}
	}
	return false
}

// overlaps compares all held records of one read with each other.
func (c *checker) overlaps(read Read) {
	of := map[string]netip.Prefix{}
	for i, a := range read.Records {
		if a.Session == "" {
			continue
		}
		if other, ok := of[a.Node]; ok && c.calm(a.Node, read.Span) {
			c.report(OverlapInStore, a.Node, read.Span, "it holds %s and %s", other, a.Subnet)
		}
		of[a.Node] = a.Subnet
		for _, b := range read.Records[i+1:] {
			if b.Session != "" && overlapping(a.Subnets, b.Subnets) {
				c.report(OverlapInStore, a.Node, read.Span, "it holds %v and %s holds %v", a.Subnets, b.Node, b.Subnets)
			}
		}
	}
}

// claims holds what agents say against the store.
func (c *checker) claims() {
	for _, l := range c.Claims {
		if !c.calm(l.Node, l.Span) {
			continue
		}
		n := c.nodes[l.Node]
		switch {
		case !l.Answered:
			c.report(NotRecovered, l.Node, l.Span, "its agent does not answer")
			continue
		case l.Status != "passing":
			c.report(NotRecovered, l.Node, l.Span, "health is %s: %s", l.Status, l.Trouble)
		case !l.subnet().IsValid():
			c.report(NotRecovered, l.Node, l.Span, "it has no subnet")
		case l.To-l.Renewed > c.Rules.TTL:
			c.report(NotRecovered, l.Node, l.Span, "not renewed for %s", (l.To - l.Renewed).Round(time.Millisecond))
		}
		if l.subnet().IsValid() {
			c.acknowledged(n, l)
		}
		c.view(n, l)
	}
}

// around is how long before and after a claim the store must show it: between
// two reads, at least.
const around = 3 * time.Second

// acknowledged says whether the store knows of a claim an agent relies on.
func (c *checker) acknowledged(n Node, l Claim) {
	near := c.readsIn(n.Network, Span{l.From - around, l.To + around})
	if len(near) == 0 {
		return
	}
	for _, read := range near {
		for _, x := range read.Records {
			if x.Node == l.Node && x.Subnet == l.subnet() && x.Session != "" {
				return
			}
		}
	}
	c.report(LostUnnoticed, l.Node, l.Span, "it relies on %s, which the store does not say; health %s", l.subnet(), l.Status)
}

// readsIn is the reads that overlap a span.
func (c *checker) readsIn(network string, s Span) []Read {
	all := c.reads[network]
	first, _ := slices.BinarySearchFunc(all, s.From, func(r Read, at time.Duration) int { return int(r.To - at) })
	last := first
	for last < len(all) && all[last].From <= s.To {
		last++
	}
	return all[first:last]
}

// view compares an agent's view with the store as it was within the settling
// time before: every entry was there, and none that was there all the time is
// missing.
func (c *checker) view(n Node, l Claim) {
	// It may know before we read.
	reads := c.readsIn(n.Network, Span{l.From - c.Rules.Settle, l.To + around})
	if l.View == nil || len(reads) < 2 {
		return
	}
	times := map[Entry]int{}
	for _, read := range reads {
		for _, x := range read.Records {
			times[x.Entry]++
		}
	}
	for _, e := range l.View {
		if times[e] == 0 && !c.remembered(l.Node, e, l.From) {
			c.report(ViewDiffers, l.Node, l.Span, "it sees %s of %s, which the store has not had for %s", e.Subnet, e.Node, c.Rules.Settle)
		}
	}
	for e, n := range times {
		if n == len(reads) && !slices.Contains(l.View, e) && !c.outlived(l, e) {
			c.report(ViewDiffers, l.Node, l.Span, "it does not see %s of %s, which the store has had for %s", e.Subnet, e.Node, c.Rules.Settle)
		}
	}
}

// outlived says that a store that was set back has somebody on a subnet whom
// another host had followed there: agents go on seeing the latter for a while.
func (c *checker) outlived(l Claim, e Entry) bool {
	return slices.ContainsFunc(l.View, func(x Entry) bool {
		return x.Subnet == e.Subnet && slices.ContainsFunc(c.Rewinds, func(r Rewind) bool {
			return r.Why == RestoreStore && r.From <= l.From && l.From <= r.To+3*c.Rules.TTL+c.Rules.Settle
		})
	})
}

// remembered says that an agent keeps an entry which a store that was emptied or
// set back has lost: its node could not write it again, and may yet. An agent
// that was silent then finds out later.
func (c *checker) remembered(viewer string, e Entry, at time.Duration) bool {
	for _, r := range c.Rewinds {
		known := r.To
		for _, s := range c.silent[viewer] {
			if c.mute(s, r) && s.To != forever {
				known = max(known, s.To)
			}
		}
		if r.From <= at && at <= known+3*c.Rules.TTL+c.Rules.Settle && (c.forgotten(e.Node, r) || r.Why == RestoreStore) {
			return true
		}
	}
	return false
}
