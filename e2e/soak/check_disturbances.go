package soak

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// unsettles returns the times of a disturbance in which the node need not be well: all of it if leno reports it, the
// beginning and the end if leno follows it, and none if leno has nothing to do with it.
func (d Disturbance) unsettles() []Span {
	switch d.Why {
	case RoutingRule, DisableIPv6:
		return []Span{d.Span}
	case ChangeMTU:
		return []Span{{d.From, d.From}, {d.To - around, d.To}} // it ends before the suite notes that
	}
	return nil
}

// unsettled reports whether a disturbance of a node may still affect it in a span.
func (c *checker) unsettled(node string, s Span) bool {
	return slices.ContainsFunc(c.Disturbances, func(d Disturbance) bool {
		return d.Node == node && slices.ContainsFunc(d.unsettles(), func(x Span) bool { return c.lasts(node, x, s) })
	})
}

// lacksIPv6 reports whether a node may be without IPv6 at a moment, or have been until a short time ago.
func (c *checker) lacksIPv6(node string, at Span) bool {
	return slices.ContainsFunc(c.Disturbances, func(d Disturbance) bool {
		return d.Node == node && d.Why == DisableIPv6 && c.lasts(node, Span{d.From - lookTime, d.To}, at)
	})
}

// sameSlot reports whether a node kept its subnet from one tenure to the next, in which it has or lacks IPv6.
func (c *checker) sameSlot(node string, a, b tenure) bool {
	return slices.Equal(a.subnets, b.subnets) || a.subnets[0] == b.subnets[0] && c.lacksIPv6(node, b.since)
}

// disturbs reports whether a ping to or from the disturbed node may be lost.
func (c *checker) disturbs(d Disturbance, l Loss) bool {
	if l.At < d.From-inFlight {
		return false
	}
	switch d.Why {
	case DisableIPv6:
		return l.IPv6 && c.lasts(d.Node, d.Span, Span{l.At, l.At})
	case RoutingRule:
		takes := d.Network == l.Network && !l.IPv6 || d.Network == ""
		return takes && (d.To == forever || l.At <= d.To+c.reconnects(l.Network, d.Span))
	}
	return false
}

// forgets reports whether the suite emptied the connection tracking of a node when a ping was sent. Of two packets of a
// tunnel that cross then, the kernel drops one: both would be the first of their connection.
func (c *checker) forgets(node string, at time.Duration) bool {
	return slices.ContainsFunc(c.Attacks, func(a Attack) bool {
		return a.Node == node && slices.ContainsFunc(a.Forgotten, func(f time.Duration) bool { return f-inFlight <= at && at <= f+inFlight })
	})
}

// reconnects returns how long packets between two nodes may be lost after both can send again.
func (c *checker) reconnects(network string, s Span) time.Duration {
	if c.mayHave(network, s, "wireguard") {
		return handshakeAgain
	}
	return relearn
}

// boots reports whether a node has lost its devices and routes in a boot, and was not ready for long enough at a moment
// to reach its peers again.
func (c *checker) boots(m member, at time.Duration) bool {
	return slices.ContainsFunc(c.silent[m.node], func(s Silence) bool {
		if s.Why != StartInSwitch || at < s.From-inFlight {
			return false
		}
		ready := slices.IndexFunc(c.claimsOf[m], func(l Claim) bool { return l.Ready && l.From > s.From })
		return ready < 0 || at <= c.claimsOf[m][ready].To+c.reconnects(m.network, Span{s.From, c.claimsOf[m][ready].To})
	})
}

// disturbances checks what a fault of a host's network must not do, and what its agent must say.
func (c *checker) disturbances() {
	for _, a := range c.Attacks {
		if a.Injected+a.Stolen > 0 {
			c.report(ForgedArrived, member{a.Node, a.Network}, a.Span, "of %d packets of an attacker, %d arrived at containers of other hosts, and it received %d",
				a.Sent, a.Injected, a.Stolen)
		}
	}
	for _, j := range c.Firewalls {
		c.jumps(j)
	}
	c.mtus()
	for m, all := range c.claimsOf {
		for i, l := range all {
			if l.Ready && i > 0 && !(all[i-1].Ready && all[i-1].Process == l.Process) {
				c.readyEarly(m, l)
			}
		}
	}
	for _, d := range c.Disturbances {
		if d.Why != RoutingRule {
			continue
		}
		for _, m := range c.membersOf(d.Node) {
			for _, l := range c.claimsOf[m] {
				if c.mustName(d, m, l) && !strings.Contains(l.Trouble, fmt.Sprintf("%d: from all lookup 52", detourPriority)) {
					c.report(DetourUnnamed, m, l.Span, "health is %s: %s", l.Status, l.Trouble)
				}
			}
		}
	}
}

// forwardJump is the jump that each host that carries packets has, because a block of its configuration has forward.
const forwardJump = "ip filter FORWARD LENO-FORWARD"

// jumps judges the rules of a host: each jump is there once, and those of other programs stay.
func (c *checker) jumps(j Jumps) {
	m, at := member{node: j.Node}, Span{j.At, j.At}
	if j.Count[forwardJump] == 0 {
		c.report(JumpsDiffer, m, at, "there is no %s", forwardJump)
	}
	for jump, n := range j.Count {
		if n > 1 {
			c.report(JumpsDiffer, m, at, "%s is there %d times", jump, n)
		}
	}
	for _, d := range c.Disturbances {
		// The suite adds and removes its rules at both ends of the span.
		if d.Node == j.Node && d.Why == ForeignRules && d.From+around < j.At && j.At+around < d.To && j.Foreign != foreignCount {
			c.report(JumpsDiffer, m, at, "of %d rules of another program, %d are left", foreignCount, j.Foreign)
		}
	}
}

// mustName reports whether an agent must say that a routing rule takes packets to its peers.
func (c *checker) mustName(d Disturbance, m member, l Claim) bool {
	begun := Span{d.From, d.From}
	isTaken := func(p member) bool { return d.Network == m.network || d.Peer == p.node }
	if l.From < d.From || l.To > d.To || c.lasts(m.node, begun, l.Span) || !slices.ContainsFunc(c.peers(m), isTaken) {
		return false
	}
	if slices.ContainsFunc(c.silent[m.node], func(x Silence) bool { return c.lasts(m.node, x.Span, l.Span) }) || !c.quiet(m, l.Span) ||
		!c.defined(m.network, l.Span) {
		return false
	}
	// With host-gw, the host's address is that of a neighbour. A host waits with the routes while a network is switched.
	backends, same := c.backendsFor(m, l.From)
	if !same || len(backends) != 1 || d.Network == "" && backends[0].Type == "host-gw" {
		return false
	}
	return !slices.ContainsFunc(c.peers(m), func(p member) bool { return !c.calm(p, l.Span) || d.Peer == p.node && c.away(p.node, l.Span) })
}

// The tunnels add 28 to 80 bytes to a packet: udp the fewest, and wireguard over IPv6 the most.
const leastOverhead, mostOverhead = 28, 80

// mtus compares the MTUs of devices and of routes to peers with those of the underlays.
func (c *checker) mtus() {
	underlay := map[string]RouteList{}
	for _, list := range c.Routes {
		at := Span{list.At, list.At}
		underlay[list.Node] = list
		for _, m := range c.membersOf(list.Node) {
			if !c.calm(m, at) || !c.defined(m.network, at) || list.UnderlayMTU == 0 {
				continue
			}
			for device, mtu := range list.DeviceMTUs {
				own := strings.TrimSuffix(device, otherDevice) == m.network
				if least := list.UnderlayMTU - mostOverhead; own && (mtu < least || mtu > list.UnderlayMTU-leastOverhead) {
					c.report(MTUStays, m, at, "%s%s has MTU %d, and the underlay %d", devicePrefix, device, mtu, list.UnderlayMTU)
				}
			}
			for _, p := range c.peers(m) {
				c.mtuTo(m, list, p, underlay[p.node])
			}
		}
	}
}

// mtuTo judges the MTU of the routes to a peer.
func (c *checker) mtuTo(m member, list RouteList, p member, peer RouteList) {
	at := Span{list.At, list.At}
	before, _, ok := c.aroundOf(p, list.At)
	if !ok || peer.UnderlayMTU == 0 || !c.calm(p, at) || c.movedBefore(p, list.At) {
		return
	}
	for to, mtu := range list.MTUs {
		most := peer.UnderlayMTU
		if !slices.Contains(list.Direct, to) {
			most -= leastOverhead
		}
		if slices.Contains(before.Subnets, to) && mtu > most {
			c.report(MTUStays, m, at, "the route to %s of %s has MTU %d, and its underlay %d", to, p.node, mtu, peer.UnderlayMTU)
		}
	}
}

// readyEarly reports an agent that says for the first time since its start that it is ready, and lacks a route to a peer.
func (c *checker) readyEarly(m member, l Claim) {
	at := func(r RouteList, at time.Duration) int { return cmp.Compare(r.At, at) }
	first, _ := slices.BinarySearchFunc(c.Routes, l.To, at)
	i := slices.IndexFunc(c.Routes[first:], func(r RouteList) bool { return r.Node == m.node })
	if i < 0 {
		return
	}
	list := c.Routes[first+i]
	looked := Span{l.From, list.At}
	if !c.defined(m.network, Span{max(0, l.From-c.Rules.Settle), list.At}) || c.unsettled(m.node, looked) || c.reloaded(m, looked) ||
		slices.ContainsFunc(c.Storms, func(x Storm) bool { return c.lasts(m.node, x.Span, looked) }) ||
		slices.ContainsFunc(c.Rewinds, func(x Rewind) bool { return c.lasts(m.node, x.Span, looked) }) {
		return
	}
	for _, p := range c.peers(m) {
		before, after, ok := c.aroundOf(p, list.At)
		if !ok || !slices.Equal(before.Subnets, after.Subnets) || c.disturbed(p.node, looked) || c.movedBefore(p, list.At) {
			continue
		}
		if i := slices.IndexFunc(before.Subnets, func(s netip.Prefix) bool { return !slices.Contains(list.To, s) }); i >= 0 {
			c.report(ReadyEarly, m, looked, "it has no route to %s of %s", before.Subnets[i], p.node)
		}
	}
}
