package foreign

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// A Ruleset is the rules of this host, of leno and of others, as they were at one moment, with their counters.
type Ruleset struct{ bases []baseChain }

// ReadRuleset reads the rules in every variant of iptables and in nftables. With an error, it returns those that could
// be read. It starts programs from the calling thread.
func ReadRuleset(ctx context.Context) (Ruleset, error) {
	bases, err := readBaseChains(ctx, netfilter.ListCounted)
	return Ruleset{bases}, err
}

// A Packet is the first packet of a connection between two addresses, or an answer to it, at one host.
type Packet struct {
	Src, Dst netip.Addr
	In, Out  string // devices; In is "" if this host sends it, Out if this host receives it
	Protocol string // icmp, tcp or udp
	Port     int    // of the destination, of an answer's source; 0 for any
	IsAnswer bool

	// Path is the network that the packet belongs to, for the advice about a rule.
	Path OverlayPath
}

// Answer returns the answer to a first packet.
func (p Packet) Answer() Packet {
	p.Src, p.Dst, p.In, p.Out, p.IsAnswer = p.Dst, p.Src, p.Out, p.In, true
	return p
}

// Drops returns the rules that certainly drop such packets, in the order in which packets meet them. It is pure.
func (r Ruleset) Drops(p Packet) []Obstacle {
	var out []Obstacle
	for _, found := range trace(r.bases, p.flow()) {
		if found.action == dropPacket && found.wholeFlow {
			out = append(out, p.Path.newObstacle(found))
		}
	}
	return out
}

// A Count is how many packets a rule has dropped between two readings.
type Count struct {
	Obstacle
	Packets   uint64
	IsCertain bool // the rule drops all such packets; otherwise it may drop them, or only others
}

// place is where a rule is, or a policy, which has no text.
type place struct {
	chain, rule string
	nth         int // of the same rule in the chain
}

// DroppedSince returns the rules that such packets may meet and that have dropped packets since an earlier reading:
// those that certainly drop them first, then by the number of packets. Rules without a counter are unknown. It is pure.
func (r Ruleset) DroppedSince(before Ruleset, p Packet) []Count {
	f := p.flow()
	old := map[place]uint64{}
	for _, b := range before.bases {
		(&reach{base: b, add: func(at place, n uint64, _ finding) { old[at] = n }}).run(f)
	}
	certain := trace(r.bases, f)
	var out []Count
	for _, b := range r.bases {
		(&reach{base: b, add: func(at place, n uint64, found finding) {
			was, known := old[at]
			if !known || n <= was {
				return
			}
			old[at] = n // base chains of one table share its chains
			isCertain := slices.ContainsFunc(certain, func(c finding) bool {
				return c.action == dropPacket && c.wholeFlow && c.isSameRule(found)
			})
			out = append(out, Count{p.Path.newObstacle(found), n - was, isCertain})
		}}).run(f)
	}
	rank := map[bool]int{true: 0, false: 1}
	slices.SortFunc(out, func(a, b Count) int {
		return cmp.Or(rank[a.IsCertain]-rank[b.IsCertain], cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Where, b.Where),
			cmp.Compare(a.Rule, b.Rule))
	})
	return out
}

// reach finds the rules with counters and the policy that drop packets and that packets of a flow may meet.
type reach struct {
	base  baseChain
	add   func(at place, packets uint64, found finding)
	depth int
	work  int // comparisons made
}

func (r *reach) run(f flow) {
	b := r.base
	if b.isPassedBy(f) && !r.followChain(b.chain, f) && b.drops && b.packets != nil {
		r.add(place{chain: b.where}, *b.packets, r.finding(b.chain, policyDrop, f))
	}
}

func (r *reach) finding(chain, rule string, f flow) finding {
	return finding{base: r.base, chain: chain, rule: rule, flow: f, action: dropPacket, wholeFlow: true}
}

// followChain reports whether no packet returns from a chain.
func (r *reach) followChain(name string, f flow) (ended bool) {
	r.depth++
	defer func() { r.depth-- }()
	nth := map[string]int{}
	for _, l := range r.base.lines[name] {
		nth[l.text]++
		if r.work++; r.depth > maxDepth || r.work > maxComparisons {
			return true // nothing is known of the rest
		}
		e, _ := l.match(f)
		if e == noPart {
			continue
		}
		switch l.action {
		case dropPacket:
			if l.packets != nil {
				r.add(place{r.base.table() + " chain " + name, l.text, nth[l.text]}, *l.packets, r.finding(name, l.text, f))
			}
			ended = true
		case acceptPacket:
			ended = true
		case jumpToChain, gotoChain:
			ended = r.followChain(l.to, f)
		}
		if e == wholeFlow && (ended || l.action == returnToCaller || l.action == gotoChain) {
			return ended
		}
		ended = false
	}
	return false
}

// flow returns the packets as the rules see them.
func (p Packet) flow() flow {
	f := flow{src: hostPrefix(p.Src), dst: hostPrefix(p.Dst), local: hostPrefix(p.Src), in: p.In, out: p.Out,
		isAnswer: p.IsAnswer}
	if p.Out == "" {
		f.inbound, f.local = true, f.dst
	}
	if p.In == "" || p.Out == "" {
		f.host = &hostTraffic{}
	}
	protocol := p.Protocol
	if protocol == "icmp" && p.Dst.Is6() {
		protocol = "ipv6-icmp"
	}
	if n, ok := protocolNumber(protocol); ok {
		f.protocols = oneNumber(n)
	}
	kind := 8 // echo request
	switch {
	case p.Dst.Is6() && p.IsAnswer:
		kind = 129
	case p.Dst.Is6():
		kind = 128
	case p.IsAnswer:
		kind = 0
	}
	switch {
	case p.Protocol == "icmp":
		f.icmpTypes = oneNumber(kind)
	case p.Port > 0 && p.IsAnswer:
		f.sourcePorts = oneNumber(p.Port)
	case p.Port > 0:
		f.ports = oneNumber(p.Port)
	}
	return f
}
