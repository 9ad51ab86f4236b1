package foreign

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// flow describes the first packets of connections between a container of this host and those of the others: all of
// them, or the part that a rule narrows them to.
type flow struct {
	src, dst netip.Prefix
	local    netip.Prefix // this host's subnet, which never contains the other end
	in, out  string       // devices; "" if not known
	inbound  bool         // from another host
	host     *hostTraffic // for packets of the host itself; nil for containers'
	isAnswer bool         // the packets are not the first ones of their connections, but answers to those

	protocols          numbers
	sourcePorts, ports numbers // of TCP, UDP and other protocols that have ports
	icmpTypes          numbers
	restrictions       []string // other restrictions, in words: "not from 10.5.77.0/24"
}

func (f flow) is6() bool { return f.dst.Addr().Is6() }

// numberSets returns the sets of numbers that may narrow a flow.
func (f *flow) numberSets() []*numbers {
	return []*numbers{&f.protocols, &f.sourcePorts, &f.ports, &f.icmpTypes}
}

// isWithin reports whether every packet of f is one of g.
func (f flow) isWithin(g flow) bool {
	theirs := g.numberSets()
	for i, mine := range f.numberSets() {
		if !theirs[i].contains(*mine) {
			return false
		}
	}
	isMissing := func(what string) bool { return !slices.Contains(f.restrictions, what) }
	return isCovering(g.src, f.src) && isCovering(g.dst, f.dst) && !slices.ContainsFunc(g.restrictions, isMissing)
}

// subtract returns f less a part of it that differs in one respect; false where the rest cannot be determined.
func (f flow) subtract(part flow) (flow, bool) {
	rest, differs := f, 0
	theirs := part.numberSets()
	for i, mine := range rest.numberSets() {
		if !mine.equal(*theirs[i]) {
			*mine, differs = mine.subtract(*theirs[i]), differs+1
		}
	}
	not := func(what string) {
		rest.restrictions, differs = append(slices.Clone(rest.restrictions), "not "+what), differs+1
	}
	if part.src != f.src {
		not("from " + part.src.String())
	}
	if part.dst != f.dst {
		not("to " + part.dst.String())
	}
	for _, what := range part.restrictions {
		if !slices.Contains(f.restrictions, what) {
			not(what)
		}
	}
	return rest, differs == 1
}

// partText describes in words what the flow is narrowed to; "" if only by addresses.
func (f flow) partText() string {
	var out []string
	number := strconv.Itoa
	for _, of := range []struct {
		set  numbers
		word string
		name func(int) string
	}{
		{f.protocols, "", protocolName},
		{f.sourcePorts, "from port ", number},
		{f.ports, "to port ", number},
		{f.icmpTypes, "type ", number},
	} {
		if of.set != nil {
			out = append(out, of.word+of.set.text(of.name))
		}
	}
	return strings.Join(append(out, f.restrictions...), ", ")
}

// isCovering reports whether a contains all of b.
func isCovering(a, b netip.Prefix) bool { return a.Bits() <= b.Bits() && a.Contains(b.Addr()) }
