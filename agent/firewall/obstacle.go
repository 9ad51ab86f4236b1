package firewall

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Obstacle is a rule of another program that harms packets between containers of two hosts: it drops them, or
// replaces their source with the host's address.
type Obstacle struct {
	Network string
	Where   string // "iptables table raw chain PREROUTING"
	Rule    string // as its program prints it, or "policy DROP"
	Partial bool   // it drops only some of the packets, which may be intended
	More    int    // number of similar rules in the same place
	Effect  string // what happens to which packets
	Advice  string // what the operator should do
}

func (o Obstacle) String() string {
	more := ""
	if o.More > 0 {
		more = fmt.Sprintf(" (and %d like it)", o.More)
	}
	return fmt.Sprintf("%s: %q%s: %s; %s", o.Where, o.Rule, more, o.Effect, o.Advice)
}

// flow describes the first packets of connections between a container of this host and those of the others: all of
// them, or the part that a rule narrows them to.
type flow struct {
	src, dst netip.Prefix
	local    netip.Prefix // this host's subnet, which never contains the other end
	in, out  string       // devices; "" if not known
	inbound  bool         // from another host
	host     *datagrams   // for packets of the host itself; nil for containers'

	protocols          numbers
	sourcePorts, ports numbers // of TCP, UDP and other protocols that have ports
	icmpTypes          numbers
	narrowed           []string // other restrictions, in words: "not from 10.5.77.0/24"
}

func (f flow) is6() bool { return f.dst.Addr().Is6() }

// numbered returns the sets of numbers that may narrow a flow.
func (f *flow) numbered() []*numbers {
	return []*numbers{&f.protocols, &f.sourcePorts, &f.ports, &f.icmpTypes}
}

// within reports whether every packet of f is one of g.
func (f flow) within(g flow) bool {
	theirs := g.numbered()
	for i, mine := range f.numbered() {
		if !theirs[i].contains(*mine) {
			return false
		}
	}
	return covers(g.src, f.src) && covers(g.dst, f.dst) && !slices.ContainsFunc(g.narrowed, func(n string) bool { return !slices.Contains(f.narrowed, n) })
}

// without returns f less a part of it that differs in one respect; false where the rest cannot be determined.
func (f flow) without(part flow) (flow, bool) {
	rest, differs := f, 0
	theirs := part.numbered()
	for i, mine := range rest.numbered() {
		if !mine.equal(*theirs[i]) {
			*mine, differs = mine.without(*theirs[i]), differs+1
		}
	}
	not := func(what string) {
		rest.narrowed, differs = append(slices.Clone(rest.narrowed), "not "+what), differs+1
	}
	if part.src != f.src {
		not("from " + part.src.String())
	}
	if part.dst != f.dst {
		not("to " + part.dst.String())
	}
	for _, what := range part.narrowed {
		if !slices.Contains(f.narrowed, what) {
			not(what)
		}
	}
	return rest, differs == 1
}

// part describes in words what the flow is narrowed to; "" if only by addresses.
func (f flow) part() string {
	var out []string
	number := strconv.Itoa
	for _, of := range []struct {
		set  numbers
		word string
		name func(int) string
	}{{f.protocols, "", protocolName}, {f.sourcePorts, "from port ", number}, {f.ports, "to port ", number}, {f.icmpTypes, "type ", number}} {
		if of.set != nil {
			out = append(out, of.word+of.set.text(of.name))
		}
	}
	return strings.Join(append(out, f.narrowed...), ", ")
}

func covers(a, b netip.Prefix) bool { return a.Bits() <= b.Bits() && a.Contains(b.Addr()) }

// answer tells which packets of a flow a condition holds for.
type answer int

const (
	all    answer = iota
	some          // those of the narrowed flow
	none          //
	unsure        // not known
)

// condition is one match of a rule.
type condition func(f flow) (answer, flow)

// action is what a rule does with the packets it matches.
type action int

const (
	pass       action = iota // continues with the next rule
	accepted                 // ends this base chain
	dropped                  //
	translated               // gets another source
	returned                 // returns to the calling chain
	jump                     //
	jumpForGood
	mystery // not known
)

// line is one rule, whichever program wrote it.
type line struct {
	text       string
	conditions []condition
	action     action
	to         string // target of jumps
}

// match returns which packets of the flow the rule applies to.
func (l line) match(f flow) (answer, flow) {
	result := all
	for _, c := range l.conditions {
		a, narrower := c(f)
		switch {
		case a == none:
			return none, f
		case a == some:
			f = narrower
		}
		result = max2(result, a)
	}
	return result, f
}

// max2 returns the less certain of two answers other than none.
func max2(a, b answer) answer {
	if a == unsure || b == unsure {
		return unsure
	}
	return max(a, b)
}

// stage is the netfilter hook at which a base chain is called.
type stage int

const (
	prerouting stage = iota
	incoming
	forwarding
	outgoing
	postrouting
)

// passes reports whether a flow passes that hook.
func (s stage) passes(f flow) bool {
	switch {
	case f.host == nil:
		return s != incoming && s != outgoing
	case f.inbound:
		return s == prerouting || s == incoming
	}
	return s == outgoing || s == postrouting
}

// base is a base chain.
type base struct {
	where    string // "iptables table filter chain FORWARD"
	chain    string
	hook     stage
	nat      bool
	priority int
	drops    bool // its policy
	v4, v6   bool // families it is called for
	lines    map[string][]line
}

// found is one result of a walk through a base chain.
type found struct {
	base  base
	chain string
	rule  string
	flow  flow
	what  action
	whole bool // all packets of the flow
}

// walk follows a flow through a base chain.
type walk struct {
	base  base
	flow  flow   // the whole flow
	gone  []flow // parts with an unsure outcome: accepted, perhaps, or sent elsewhere
	found []found
	depth int
	work  int  // comparisons made
	lost  bool // it was too long: later results are not sure
}

// Bounds of a walk. The kernel allows 16 jumps; chains that jump to each other in many ways could make a walk
// endless.
const (
	deepestWalk = 17
	longestWalk = 300_000
)

// run returns what certainly happens to the flow.
func (w *walk) run(f flow) []found {
	w.flow = f
	if ended := w.chain(w.base.chain, f); !ended && w.base.drops && !w.lost {
		w.find(w.base.chain, policyDrop, f, dropped)
	}
	return w.found
}

// policyDrop replaces the rule's text where the chain's policy drops.
const policyDrop = "policy drop"

func (w *walk) find(chain, rule string, f flow, what action) {
	w.work += len(w.gone)
	if !slices.ContainsFunc(w.gone, f.within) {
		w.found = append(w.found, found{w.base, chain, rule, f, what, w.flow.within(f)})
	}
}

// chain walks one chain and reports whether all of the flow ended there.
func (w *walk) chain(name string, f flow) (ended bool) {
	w.depth++
	defer func() { w.depth-- }()
	for _, l := range w.base.lines[name] {
		w.work++
		w.lost = w.lost || w.depth > deepestWalk || w.work > longestWalk
		if w.lost {
			return false
		}
		a, part := l.match(f)
		if a == none {
			continue
		}
		switch l.action {
		case pass:
			continue
		case jump, jumpForGood:
			if w.follow(l, a, part) {
				return true
			}
			if l.action == jump {
				continue
			}
		case dropped, translated:
			if a == unsure {
				continue // a rule that drops them later certainly does so
			}
			w.find(name, l.text, part, l.action)
		}
		if a == all && l.action != mystery {
			return l.action != returned && l.action != jumpForGood
		}
		w.gone = append(w.gone, part) // later rules get the rest
	}
	return false
}

// follow walks through the chain that a rule jumps to, and reports whether all of the flow ended there. If the jump
// may not be taken, no result in that chain is sure.
func (w *walk) follow(l line, a answer, part flow) (ended bool) {
	before := len(w.found)
	ended = w.chain(l.to, part)
	if a == unsure {
		w.found = w.found[:before]
	}
	if ended && a != all {
		w.gone = append(w.gone, part)
	}
	return ended && a == all
}

// trace returns what the host's rules do to the flow, in the order of the hooks. A decision of our own nat chain is
// final; later chains do not change it.
func trace(bases []base, f flow) []found {
	bases = slices.Clone(bases)
	slices.SortStableFunc(bases, func(a, b base) int {
		return cmp.Or(cmp.Compare(a.hook, b.hook), cmp.Compare(a.priority, b.priority))
	})
	var out []found
	for _, b := range bases {
		if !b.hook.passes(f) || f.is6() && !b.v6 || !f.is6() && !b.v4 || b.nat && (b.hook != postrouting || f.inbound || f.host != nil) {
			continue
		}
		for _, found := range (&walk{base: b}).run(f) {
			if found.what == translated && found.ours() {
				if found.whole {
					return out
				}
				continue
			}
			out = append(out, found)
		}
	}
	return out
}

// ours reports whether the rule is one of leno's.
func (f found) ours() bool {
	return strings.HasPrefix(f.chain, ownPrefix) || strings.HasSuffix(f.base.table(), " leno")
}

// table returns where without the chain.
func (b base) table() string {
	table, _, _ := strings.Cut(b.where, " chain ")
	return table
}
