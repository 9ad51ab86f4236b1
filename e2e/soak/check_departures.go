package soak

import (
	"net/netip"
	"slices"
	"time"
)

// departs reports whether a member has left its network, or its lease was revoked, or it was so a short time ago.
func (c *checker) departs(m member, s Span) bool {
	return slices.ContainsFunc(c.Departures, func(d Departure) bool {
		return d.member() == m && c.lasts(m.node, d.Span, s)
	})
}

// departed reports whether a member left its network, or its lease was revoked, within a span. No kind stands for all.
func (c *checker) departed(m member, s Span, why ...Kind) bool {
	return slices.ContainsFunc(c.Departures, func(d Departure) bool {
		return d.member() == m && d.overlaps(s) && (len(why) == 0 || slices.Contains(why, d.Why))
	})
}

func (d Departure) member() member { return member{d.Node, d.Network} }

// mayBeKept returns the earliest time from which a node may keep a record at a given time: now, or when the store lost its
// records, which are kept for three times the TTL. Each loss in that time prolongs it.
func (c *checker) mayBeKept(node string, at time.Duration) time.Duration {
	for again := true; again; {
		again = false
		for _, r := range c.wiped {
			if r.From < at && c.lasts(node, Span{r.From, r.To + 3*c.Rules.TTL}, Span{at, at}) {
				at, again = r.From, true
			}
		}
	}
	return at
}

// isFull reports whether a member need not have a subnet, because none was free: each was held at some time since a lapsed
// lease may have been kept for its host, or has a record that cannot be used.
func (c *checker) isFull(l Claim) bool {
	reads := c.readsIn(l.Network, Span{c.mayBeKept(l.Node, l.From) - c.Rules.Hold - seen, l.To})
	if len(reads) == 0 {
		return false
	}
	slots := reads[len(reads)-1].Slots
	taken := map[netip.Prefix]bool{}
	for _, read := range reads {
		for _, x := range read.Records {
			if addr := x.Subnet.Addr(); (x.Session != "" || !x.readable()) && addr.Is4() && int(addr.As4()[2]) <= slots {
				taken[x.Subnet] = true
			}
		}
	}
	return slots > 0 && len(taken) >= slots
}

// changesAddress reports whether a node has just got another address between hosts.
func (c *checker) changesAddress(node string, s Span) bool {
	return slices.ContainsFunc(c.silent[node], func(x Silence) bool {
		return x.Why == ChangeAddress && x.From-inFlight <= s.To && c.lasts(node, Span{x.From - inFlight, x.To}, s)
	})
}

// away reports whether a node had another address than its own at any time in a span.
func (c *checker) away(node string, s Span) bool {
	var moves []Silence
	for _, x := range c.silent[node] {
		if x.Why == ChangeAddress {
			moves = append(moves, x)
		}
	}
	for i := 0; i < len(moves); i += 2 { // to the other address, and back
		end := Span{moves[i].From, forever}
		if i+1 < len(moves) {
			end.To = moves[i+1].To
		}
		if c.lasts(node, end, s) {
			return true
		}
	}
	return false
}
