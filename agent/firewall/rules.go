package firewall

import (
	"net/netip"
	"slices"
)

// Type selects the kind of firewall that holds the rules.
type Type string

const (
	// TypeAuto takes iptables where its program is installed and works, so that our rules are in the same tables as
	// those of Docker and others. A packet passes only if every table accepts it, so an accept in a table of our own
	// overrules nothing. Otherwise it takes nftables.
	TypeAuto     Type = "auto"
	TypeIPTables Type = "iptables" // in the variant that this host prefers
	TypeNFTables Type = "nftables" // tables of our own, without a program
)

// State is the wanted state of the firewall.
type State struct {
	Type        Type // the zero value means TypeAuto
	RandomFully bool // masquerading takes random source ports, where it can
	Networks    []Network
}

// Network describes what one network wants from the firewall.
type Network struct {
	Name    string
	Pools   []netip.Prefix // the whole network, at most one per family
	Subnets []netip.Prefix // this host's own; with none, nothing is masqueraded
	IPMasq  bool           // masquerade packets from Subnets to outside Pools
	Forward bool           // accept forwarded packets from and to Pools

	Tunnels  []string         // the names of leno's devices that may carry the network, whether they exist or not
	Ports    []uint16         // the UDP ports of this host's tunnels, sorted
	Peers    []netip.AddrPort // where tunnels of peers receive at other ports, sorted
	Underlay []string         // the devices by which datagrams of the tunnels leave, nil if they are not known
	// Sealed reports whether packets from other hosts arrive by the tunnels only.
	Sealed bool
}

// verdict is what a rule does with the packets it matches.
type verdict int

const (
	leave      verdict = iota // packets skip the rest of the chain
	masquerade                // packets get the address of the device they leave by
	accept
)

// connections restricts a rule to packets of some connections.
type connections int

const (
	anyConnection connections = iota
	known                     // that have begun in the other direction, and what belongs to them
	published                 // to a port of the host that leads to a container
)

// rule is one rule of ours. src or dst is set, and both are of one family when both are.
type rule struct {
	network  string
	src, dst netip.Prefix // the zero Prefix is any address
	in       string       // the device by which packets arrive, "" for any
	of       connections
	verdict  verdict

	// randomFully makes a masquerading rule take random source ports. Without it two connections can be given the
	// same port at the same instant, and one loses its first packet. Programs and kernels that do not support it get
	// the rule without it.
	randomFully bool
}

// is6 reports whether the rule is an IPv6 rule.
func (r rule) is6() bool {
	if r.src.IsValid() {
		return r.src.Addr().Is6()
	}
	return r.dst.Addr().Is6()
}

// Comment returns the comment that is attached to each rule of a network, for example "leno default".
func Comment(network string) string { return "leno " + network }

// rules holds all wanted rules of both families, in order. It is a value: equal states give equal rules, whichever
// kind applies them.
type rules struct {
	exempt     []rule // for packets that leave the host, before any rule changes their source: accepted packets keep it
	masquerade []rule // for packets that leave the host, after others could choose the source
	forward    []rule // for packets that pass through the host
	guard      guard  // only nftables has its rules, beside those of any other kind
	keep       bool   // all chains of nftables but the guard's stay as they are
}

// isEmpty reports whether no rule is wanted, whatever the guard.
func (r rules) isEmpty() bool { return len(r.exempt)+len(r.masquerade)+len(r.forward) == 0 }

// randomFully reports whether any rule asks for it.
func (r rules) randomFully() bool {
	return slices.ContainsFunc(r.masquerade, func(r rule) bool { return r.randomFully })
}

// family returns the rules of one family.
func (r rules) family(v6 bool) rules {
	part := func(list []rule) []rule {
		return slices.DeleteFunc(slices.Clone(list), func(r rule) bool { return r.is6() != v6 })
	}
	return rules{exempt: part(r.exempt), masquerade: part(r.masquerade), forward: part(r.forward)}
}

// onLink returns the destinations that no router forwards. They must not be masqueraded: where bridges pass frames
// through the firewall its rules apply even so, and receivers know the sender by its address. They are multicast (RFC
// 5771; RFC 4291 section 2.7), the limited broadcast (RFC 919), and link-local unicast of IPv6 (RFC 4291 section
// 2.5.6). IPv4 link-local unicast is left out: cloud services answer there, off the host.
func onLink(v6 bool) []netip.Prefix {
	if v6 {
		return []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xff}), 8),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfe, 0x80}), 10),
		}
	}
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{224}), 4),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), 32),
	}
}

// desiredRules returns the rules of all networks together.
func desiredRules(s State) rules {
	var out rules
	for _, n := range s.Networks {
		if n.IPMasq {
			for _, subnet := range n.Subnets {
				out.addMasquerading(n, subnet, s.RandomFully)
			}
		}
		if n.Forward {
			out.addForwarding(n)
		}
	}
	out.guard = guardOf(s.Networks)
	return out
}

// addForwarding adds rules that accept packets from a network's containers, and to them if they come from other hosts
// of the network, belong to a known connection, or are for a published port. Others on the underlay do not reach
// containers.
func (r *rules) addForwarding(n Network) {
	for _, pool := range n.Pools {
		r.forward = append(r.forward, rule{network: n.Name, src: pool, verdict: accept})
		for _, link := range n.Tunnels {
			r.forward = append(r.forward, rule{network: n.Name, dst: pool, in: link, verdict: accept})
		}
		r.forward = append(r.forward,
			rule{network: n.Name, dst: pool, of: known, verdict: accept},
			rule{network: n.Name, dst: pool, of: published, verdict: accept})
	}
}

// addMasquerading adds rules that masquerade packets from a subnet that leave the network, also to another network of
// leno, because hosts there need not know a route back into this one. Packets that stay in the network keep their
// source whatever other programs masquerade, except within the subnet itself: there others masquerade packets that
// return to their origin, such as those to a port that the same container publishes.
func (r *rules) addMasquerading(n Network, subnet netip.Prefix, randomFully bool) {
	v6 := subnet.Addr().Is6()
	pools := filterFamily(n.Pools, v6)
	if len(pools) > 0 {
		r.exempt = append(r.exempt, rule{network: n.Name, src: subnet, dst: subnet, verdict: leave})
	}
	for _, pool := range pools {
		r.exempt = append(r.exempt, rule{network: n.Name, src: subnet, dst: pool, verdict: accept})
	}
	for _, stays := range append(pools, onLink(v6)...) {
		r.masquerade = append(r.masquerade, rule{network: n.Name, src: subnet, dst: stays, verdict: leave})
	}
	last := rule{network: n.Name, src: subnet, verdict: masquerade, randomFully: randomFully}
	r.masquerade = append(r.masquerade, last)
}

func filterFamily(prefixes []netip.Prefix, v6 bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return p.Addr().Is6() != v6 })
}
