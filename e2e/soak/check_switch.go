package soak

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// device returns the backend's device as RouteList names it, "" if it has none.
func (x Backend) device(network string) string {
	switch {
	case x.Type == "host-gw":
		return ""
	case x.Other:
		return network + otherDevice
	}
	return network
}

// backends returns the backends that carry a network, if the definition in the store had the same ones in a whole span.
func (c *checker) backends(network string, s Span) (out []Backend, same bool) {
	for _, read := range c.readsAround(network, s) {
		switch {
		case read.State != stateDefined:
		case out == nil:
			out = read.Backends
		case !slices.Equal(out, read.Backends):
			return nil, false
		}
	}
	return out, out != nil
}

// backendsFor returns the backends that carry the network of a member, if they are the same in all definitions that its
// agent may follow at a moment.
func (c *checker) backendsFor(m member, at time.Duration) (out []Backend, same bool) {
	known := c.mayLag(m, at)
	reads := c.readsAround(m.network, known)
	if n := len(reads); n > 0 {
		if _, lost := c.lostBetween(Span{known.From, max(known.To, reads[n-1].To)}); lost {
			// The agent may have read a definition that the store lost before the suite could read it. Agents restore it.
			known.To += c.Rules.Settle
		}
	}
	return c.backends(m.network, known)
}

// readsAround returns the reads of a network in a span, the last one before it and the first one after it.
func (c *checker) readsAround(network string, s Span) []Read {
	all := c.reads[network]
	at := func(r Read, at time.Duration) int { return cmp.Compare(r.From, at) }
	first, _ := slices.BinarySearchFunc(all, s.From, at)
	last, _ := slices.BinarySearchFunc(all, s.To, at)
	return all[max(0, first-1):min(len(all), last+1)]
}

// mayLag returns the time in which a node, by what it does at the given moment, may have read the definition: it has had
// the settling time, with a store that answers, to follow an older one.
func (c *checker) mayLag(m member, at time.Duration) Span {
	out := Span{at - c.Rules.Settle, at}
	out.From -= min(longest, waited(c.waits[m.node], at-longest, at)+waited(c.answers, at-longest, at))
	include := func(x Span) {
		if c.lasts(m.node, x, Span{at, at}) {
			out.From = min(out.From, x.From)
		}
	}
	for _, x := range c.silent[m.node] {
		include(x.Span)
	}
	for _, x := range c.Storms {
		include(x.Span)
	}
	for _, x := range c.wiped {
		include(x.Span)
	}
	out.From = max(0, out.From)
	return out
}

// leftovers reports what a calm member has kept of a backend that does not carry the network any more.
func (c *checker) leftovers(m member, list RouteList) {
	backends, same := c.backendsFor(m, list.At)
	if !same {
		return
	}
	at := Span{list.At, list.At}
	for _, other := range []bool{false, true} {
		i := slices.IndexFunc(backends, func(x Backend) bool { return x.Other == other && x.device(m.network) != "" })
		name := Backend{Other: other}.device(m.network)
		if i < 0 && slices.Contains(list.Devices, name) {
			c.report(BackendStays, m, at, "%s%s is there, and the network is carried by %v", devicePrefix, name, backends)
		}
		if (i < 0 || backends[i].Type != "wireguard") && slices.Contains(list.Keys, name) {
			c.report(BackendStays, m, at, "there is a key for %s%s, and the network is carried by %v", devicePrefix, name, backends)
		}
	}
	if slices.ContainsFunc(backends, func(x Backend) bool { return x.Type == "host-gw" || x.Type == "vxlan" }) {
		return // which may send to peers directly
	}
	for _, p := range c.peers(m) {
		for _, t := range c.tenures[p] {
			if i := slices.IndexFunc(t.subnets, func(s netip.Prefix) bool { return slices.Contains(list.Direct, s) }); i >= 0 {
				c.report(BackendStays, m, at, "the route to %s of %s bypasses the device, and the network is carried by %v", t.subnets[i], p.node, backends)
				return
			}
		}
	}
}

// switches looks for switches to another backend that do not end, although all hosts of the network are there.
func (c *checker) switches() {
	for _, n := range c.Networks {
		var calm time.Duration // in which all members were calm, since the switch began or took another direction
		reads := c.reads[n.Name]
		for i := 1; i < len(reads); i++ {
			before, read := reads[i-1], reads[i]
			if !read.switching() || !slices.Equal(before.Backends, read.Backends) || before.Definition != read.Definition {
				calm = 0
				continue
			}
			span := Span{before.From, read.To}
			members := c.members(n.Name, read.From)
			if len(members) == 0 || slices.ContainsFunc(members, func(m member) bool { return !c.calm(m, span) }) {
				continue
			}
			took := read.From - before.From - waited(c.answers, before.From, read.From)
			for _, m := range members {
				took -= waited(c.waits[m.node], before.From, read.From)
			}
			if calm += max(0, took); calm > switchLimit {
				c.report(SwitchStays, member{network: n.Name}, read.Span, "it is still carried by %v", read.Backends)
			}
		}
	}
}

// inProcess reports whether packets of a network may have needed the process of an agent in a span.
func (c *checker) inProcess(network string, s Span) bool {
	return slices.ContainsFunc(c.InProcess, func(kind string) bool { return c.mayHave(network, s, kind) })
}

// mayHave reports whether packets of a network may have been carried by a kind of backend in a span.
func (c *checker) mayHave(network string, s Span, kind string) bool {
	return slices.ContainsFunc(c.readsAround(network, s), func(r Read) bool {
		return slices.ContainsFunc(r.Backends, func(x Backend) bool { return x.Type == kind })
	})
}

// stopsAgent reports whether an agent's process does not run for a time.
func stopsAgent(k Kind) bool {
	switch k {
	case KillAgent, RestartAgent, StopShort, StopPastTTL, StopPastHold, ReplaceHost, EmptyAndRestart, DeleteWhileAway, StartInSwitch,
		RestartAll, SetClock:
		return true
	}
	return false
}
