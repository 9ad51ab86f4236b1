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
	bases, _, err := readBaseChains(ctx, netfilter.ListCounted)
	return Ruleset{bases}, err
}

// A Packet is the first packet of a connection between two addresses, at one host.
type Packet struct {
	Src, Dst netip.Addr
	In, Out  string // devices; In is "" if this host sends it, Out if this host receives it
	Protocol string // icmp, tcp or udp
	Port     int    // of the destination, 0 for any

	// Path is the network that the packet belongs to, for the advice about a rule.
	Path OverlayPath
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
	Packets uint64
}

// DroppedSince returns the rules that may apply to such packets and have dropped packets since an earlier reading, the
// most packets first. Rules without a counter are unknown. It is pure.
func (r Ruleset) DroppedSince(before Ruleset, p Packet) []Count {
	type place struct {
		chain, rule string
		nth         int // of the same rule in the chain
	}
	f := p.flow()
	counters := func(set Ruleset, add func(at place, n uint64, found finding)) {
		isDone := map[string]bool{} // base chains of one table share its chains
		for _, b := range set.bases {
			if !b.isPassedBy(f) {
				continue
			}
			if b.drops && b.packets != nil {
				add(place{chain: b.where}, *b.packets, finding{base: b, chain: b.chain, rule: policyDrop, flow: f,
					action: dropPacket, wholeFlow: true})
			}
			for name, lines := range b.lines {
				if name != b.chain && set.isBase(b.table(), name) {
					continue // the kernel calls it at another hook
				}
				nth := map[string]int{}
				for _, l := range lines {
					nth[l.text]++
					at := place{b.table() + " chain " + name, l.text, nth[l.text]}
					if l.action != dropPacket || l.packets == nil || isDone[at.chain] {
						continue
					}
					if e, _ := l.match(f); e != noPart {
						add(at, *l.packets, finding{base: b, chain: name, rule: l.text, flow: f, action: dropPacket, wholeFlow: true})
					}
				}
				isDone[b.table()+" chain "+name] = true
			}
		}
	}
	old := map[place]uint64{}
	counters(before, func(at place, n uint64, _ finding) { old[at] = n })
	var out []Count
	counters(r, func(at place, n uint64, found finding) {
		if was, known := old[at]; known && n > was {
			out = append(out, Count{p.Path.newObstacle(found), n - was})
		}
	})
	slices.SortFunc(out, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Where, b.Where), cmp.Compare(a.Rule, b.Rule))
	})
	return out
}

// isBase reports whether the kernel calls a chain of a table.
func (r Ruleset) isBase(table, chain string) bool {
	return slices.ContainsFunc(r.bases, func(b baseChain) bool { return b.chain == chain && b.table() == table })
}

// flow returns the packets as the rules see them.
func (p Packet) flow() flow {
	f := flow{src: hostPrefix(p.Src), dst: hostPrefix(p.Dst), local: hostPrefix(p.Src), in: p.In, out: p.Out}
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
	switch {
	case p.Protocol == "icmp" && p.Dst.Is6():
		f.icmpTypes = oneNumber(128) // echo request
	case p.Protocol == "icmp":
		f.icmpTypes = oneNumber(8)
	case p.Port > 0:
		f.ports = oneNumber(p.Port)
	}
	return f
}
