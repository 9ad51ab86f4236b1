package soak

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// kernels checks the routes and devices of the members that carry packets.
func (c *checker) kernels() {
	before := map[string]RouteList{}
	removals := slices.Clone(c.Removals)
	devices := slices.Clone(c.Devices)
	for _, list := range c.Routes {
		// The kernel does not report the routes that disappear with a device.
		last, ok := before[list.Node]
		for _, to := range last.To {
			if !slices.Contains(list.To, to) {
				removals = append(removals, Removal{list.Node, list.At, to})
			}
		}
		for _, network := range last.Devices {
			if ok && !slices.Contains(list.Devices, network) {
				devices = append(devices, DeviceLoss{list.Node, network, list.At})
			}
		}
		before[list.Node] = list
		at := Span{list.At, list.At}
		for _, m := range c.membersOf(list.Node) {
			switch {
			case c.ended(m, at):
				c.left(m, list)
			case c.calm(m, at) && c.defined(m.network, at):
				c.complete(m, list)
				c.leftovers(m, list)
			}
		}
	}
	for _, r := range removals {
		c.removed(r)
	}
	slices.SortStableFunc(devices, func(a, b DeviceLoss) int { return cmp.Compare(a.At, b.At) })
	for _, d := range devices {
		network := strings.TrimSuffix(d.Network, otherDevice)
		m := member{d.Node, network}
		if c.boots(m, d.At) || c.withdraws(m, d.At) {
			continue
		}
		backends, same := c.backendsFor(m, d.At)
		needed := slices.ContainsFunc(backends, func(x Backend) bool { return x.device(network) == d.Network })
		// The kernel is checked several times a second, and a loss is seen only at the next check.
		if same && needed && c.defined(network, Span{d.At - time.Second, d.At}) {
			c.report(DeviceGone, m, Span{d.At, d.At}, "%s%s is gone", devicePrefix, d.Network)
		}
	}
}

// left reports what is left of a deleted network.
func (c *checker) left(m member, list RouteList) {
	at := Span{list.At, list.At}
	if slices.Contains(list.Devices, m.network) || slices.Contains(list.Devices, m.network+otherDevice) {
		c.report(DeletedStays, m, at, "its device is there")
	}
	for _, p := range c.peers(m) {
		for _, t := range c.tenures[p] {
			if i := slices.IndexFunc(t.subnets, func(s netip.Prefix) bool { return slices.Contains(list.To, s) }); i >= 0 {
				c.report(DeletedStays, m, at, "there is a route to %s, once of %s", t.subnets[i], p.node)
				return
			}
		}
	}
}

// complete checks for the device and for a route to every peer that has been calm.
func (c *checker) complete(m member, list RouteList) {
	at := Span{list.At, list.At}
	backends, _ := c.backendsFor(m, list.At)
	for _, x := range backends {
		if name := x.device(m.network); name != "" && !slices.Contains(list.Devices, name) {
			c.report(DeviceGone, m, at, "there is no %s%s", devicePrefix, name)
		}
	}
	for _, p := range c.peers(m) {
		before, after, ok := c.aroundOf(p, list.At)
		if !ok || !slices.Equal(before.Subnets, after.Subnets) || !c.calm(p, Span{before.From, max(after.To, list.At)}) {
			continue
		}
		for _, subnet := range before.Subnets {
			if !slices.Contains(list.To, subnet) && !c.movedBefore(p, list.At) {
				c.report(RouteMissing, m, at, "to %s of %s", subnet, p.node)
			}
		}
	}
}

// movedBefore reports whether a member got its subnet within the settling time before at.
func (c *checker) movedBefore(m member, at time.Duration) bool {
	return slices.ContainsFunc(c.tenures[m], func(t tenure) bool {
		return t.since.From <= at && c.lasts(m.node, t.since, Span{at, at})
	})
}

// peers returns the other members of a network that carry packets.
func (c *checker) peers(m member) (out []member) {
	for _, p := range c.Nodes {
		if p.Carries && p.Name != m.node && p.Network == m.network {
			out = append(out, member{p.Name, p.Network})
		}
	}
	return out
}

// aroundOf returns the last claim of a member's agent before a moment and the first one after it.
func (c *checker) aroundOf(m member, at time.Duration) (before, after Claim, ok bool) {
	all := c.claimsOf[m]
	i, _ := slices.BinarySearchFunc(all, at, func(l Claim, at time.Duration) int { return cmp.Compare(l.From, at) })
	if i == 0 {
		return before, after, false
	}
	before = all[i-1]
	if i == len(all) {
		return before, before, true
	}
	return before, all[i], true
}

// removed judges the removal of one route.
func (c *checker) removed(r Removal) {
	at := Span{r.At, r.At}
	for _, m := range c.membersOf(r.Node) {
		if c.withdraws(m, r.At) {
			continue
		}
		for _, p := range c.peers(m) {
			if c.boots(m, r.At) || c.changesAddress(m.node, at) || r.To.Addr().Is6() && (c.lacksIPv6(m.node, at) || c.lacksIPv6(p.node, at)) {
				continue
			}
			before, after, ok := c.aroundOf(p, r.At)
			if !ok || !slices.Contains(before.Subnets, r.To) || !c.defined(m.network, Span{before.From, r.At}) {
				continue
			}
			// If after lacks the subnet, the peer had moved before its agent was asked again.
			if !slices.Contains(after.Subnets, r.To) || c.out(p.node, r.At) {
				continue
			}
			// A node that was given up may come back to peers that were switched to another backend without it.
			if _, same := c.backends(m.network, c.mayLag(m, r.At)); c.out(m.node, r.At) && !same {
				continue
			}
			c.report(RouteRemoved, m, Span{r.At, r.At}, "to %s, while %s was there", r.To, p.node)
		}
	}
}

// pings judges every lost packet.
func (c *checker) pings() {
	for _, l := range c.Losses {
		if !c.excused(l) {
			c.report(PingLost, member{l.From, l.Network}, Span{l.At, l.At}, "to %s", l.To)
		}
	}
}

// inFlight is the longest time from a ping to its answer.
const inFlight = 200 * time.Millisecond

// relearn is how long it takes after a host was cut off until its neighbours are resolved again.
const relearn = 3 * time.Second

// handshakeAgain is how long WireGuard waits for the answer to a handshake before it sends the next one, with up to a third
// of a second added, and some time for the handshake.
const handshakeAgain = 6 * time.Second

// recovery returns how long packets between two nodes may be lost after the first one was silent. If its agent, which
// carries packets with WireGuard, was suspended while that of the other one was replaced, the two have no common session,
// and the suspended one does not know it: the other one sends its next handshake when the time for the last one is over.
func (c *checker) recovery(s Silence, other, network string) time.Duration {
	replaced := slices.ContainsFunc(c.silent[other], func(o Silence) bool {
		return (o.Why == KillAgent || o.Why == RestartAgent || o.Why == SetClock) && o.From <= s.To && o.To >= s.From
	})
	if replaced && slices.Contains(c.InProcess, "wireguard") && c.mayHave(network, s.Span, "wireguard") {
		return handshakeAgain
	}
	return relearn
}

// excused reports whether a packet may be lost: one end was cut off, was given up, or had another
// subnet by then, so that its container had to be replaced; or it was silent, and does not know yet
// that the other one, which had been given up, is back, or that one of them has another address; or the fault of a host's
// network takes the packet. Where agents forward packets themselves, the agent of one end may also have been down.
func (c *checker) excused(l Loss) bool {
	for _, ends := range [][2]string{{l.From, l.To}, {l.To, l.From}} {
		node, other := ends[0], ends[1]
		if c.out(node, l.At) {
			return true
		}
		if slices.ContainsFunc(c.Disturbances, func(d Disturbance) bool { return d.Node == node && c.disturbs(d, l) }) ||
			c.boots(member{node, l.Network}, l.At) || c.forgets(node, l.At) || c.changesAddress(node, Span{l.At, l.At}) {
			return true
		}
		for _, s := range c.silent[node] {
			if s.From <= l.At && c.lasts(node, s.Span, Span{l.At, l.At}) && (c.out(other, s.From) ||
				stopsAgent(s.Why) && (c.changesAddress(node, s.Span) || c.changesAddress(other, s.Span))) {
				return true
			}
			if l.At < s.From-inFlight || s.To != forever && l.At > s.To+c.recovery(s, other, l.Network) {
				continue
			}
			if s.Why == CutHost || s.Why == Compact || stopsAgent(s.Why) && c.inProcess(l.Network, Span{s.From, l.At}) {
				return true
			}
		}
		m := member{node, l.Network}
		before, after, ok := c.aroundOf(m, l.At)
		if ok && !overlapping(before.Subnets, after.Subnets) || c.movedBefore(m, l.At) {
			return true
		}
	}
	return false
}
