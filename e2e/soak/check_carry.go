package soak

import (
	"slices"
	"time"
)

// routes looks at the routes of those who carry packets to each other.
func (c *checker) routes() {
	before := map[string]RouteList{}
	removals := slices.Clone(c.Removals)
	for _, list := range c.Routes {
		// A device that goes takes its routes along without a word.
		for _, to := range before[list.Node].To {
			if !slices.Contains(list.To, to) {
				removals = append(removals, Removal{list.Node, list.At, to})
			}
		}
		before[list.Node] = list
		if c.calm(list.Node, Span{list.At, list.At}) {
			c.complete(list)
		}
	}
	for _, r := range removals {
		c.removed(r)
	}
}

// complete asks for a route to every peer that has been calm.
func (c *checker) complete(list RouteList) {
	for _, p := range c.peers(list.Node) {
		before, after, ok := c.aroundOf(p.Name, list.At)
		if !ok || !slices.Equal(before.Subnets, after.Subnets) || !c.calm(p.Name, Span{before.From, max(after.To, list.At)}) {
			continue
		}
		for _, subnet := range before.Subnets {
			if !slices.Contains(list.To, subnet) && !c.movedBefore(p.Name, list.At) {
				c.report(RouteMissing, list.Node, Span{list.At, list.At}, "to %s of %s", subnet, p.Name)
			}
		}
	}
}

// movedBefore says that a node came to its subnet within the settling time.
func (c *checker) movedBefore(node string, at time.Duration) bool {
	return slices.ContainsFunc(c.tenures[node], func(t tenure) bool {
		return t.since.From <= at && at <= t.since.To+c.Rules.Settle
	})
}

func (c *checker) peers(node string) (out []Node) {
	for _, p := range c.Nodes {
		if p.Carries && p.Name != node && p.Network == c.nodes[node].Network {
			out = append(out, p)
		}
	}
	return out
}

// aroundOf is what a node's agent said last before and first after a time.
func (c *checker) aroundOf(node string, at time.Duration) (before, after Claim, ok bool) {
	all := c.claimsOf[node]
	i, _ := slices.BinarySearchFunc(all, at, func(l Claim, at time.Duration) int { return int(l.From - at) })
	if i == 0 {
		return before, after, false
	}
	before = all[i-1]
	if i == len(all) {
		return before, before, true
	}
	return before, all[i], true
}

// removed judges one route that went.
func (c *checker) removed(r Removal) {
	for _, p := range c.peers(r.Node) {
		before, after, ok := c.aroundOf(p.Name, r.At)
		if !ok || !slices.Contains(before.Subnets, r.To) {
			continue
		}
		// after: it had moved before its agent was asked again.
		if !slices.Contains(after.Subnets, r.To) || c.out(p.Name, r.At) {
			continue
		}
		c.report(RouteRemoved, r.Node, Span{r.At, r.At}, "to %s, while %s was there", r.To, p.Name)
	}
}

// pings looks at every packet that was lost.
func (c *checker) pings() {
	for _, l := range c.Losses {
		if !c.excused(l) {
			c.report(PingLost, l.From, Span{l.At, l.At}, "to %s", l.To)
		}
	}
}

// relearn is how long a host that was cut off takes until its neighbours are
// resolved again.
const relearn = 3 * time.Second

// excused says why a lost packet may be lost: one end was cut off, was given up,
// or had another subnet by then, so that its container had to be replaced.
func (c *checker) excused(l Loss) bool {
	for _, node := range []string{l.From, l.To} {
		if c.out(node, l.At) {
			return true
		}
		for _, s := range c.silent[node] {
			if s.Why == CutHost && s.From <= l.At && l.At <= s.To+relearn {
				return true
			}
		}
		before, after, ok := c.aroundOf(node, l.At)
		if ok && !overlapping(before.Subnets, after.Subnets) || c.movedBefore(node, l.At) {
			return true
		}
	}
	return false
}

// Excused counts the lost pings that break no rule.
func Excused(h History) int {
	c := newChecker(h)
	n := 0
	for _, l := range h.Losses {
		if c.excused(l) {
			n++
		}
	}
	return n
}
