package firewall

import (
	"net/netip"
	"slices"
)

// Network is what one network wants of the firewall.
type Network struct {
	Name    string
	Pools   []netip.Prefix // the whole network, at most one a family
	Subnets []netip.Prefix // this host's own; none asks for no masquerading
	IPMasq  bool           // masquerade packets from Subnets to outside Pools
	Forward bool           // accept forwarded packets from and to Pools
}

// verdict is what a rule does with the packets it matches.
type verdict int

const (
	leave      verdict = iota // the rest of the chain is not for them
	masquerade                // they get the address of the device they leave by
	accept
)

// rule is one rule of ours. Src or Dst is set, and both are of one family when
// both are.
type rule struct {
	network  string
	src, dst netip.Prefix // the zero Prefix is any address
	verdict  verdict
}

// is6 says which family the rule is of.
func (r rule) is6() bool {
	if r.src.IsValid() {
		return r.src.Addr().Is6()
	}
	return r.dst.Addr().Is6()
}

// comment is what stands at the rule, for people.
func (r rule) comment() string { return "leno " + r.network }

// rules is everything wanted of a firewall, of both families, in order. It is a
// value: equal networks give equal rules, whoever applies them.
type rules struct {
	masquerade []rule // of packets that leave the host, before their source is chosen
	forward    []rule // of packets that pass through the host
}

// empty says that nothing of ours is wanted.
func (r rules) empty() bool { return len(r.masquerade)+len(r.forward) == 0 }

// of is the part of one family.
func (r rules) of(v6 bool) rules {
	other := func(r rule) bool { return r.is6() != v6 }
	return rules{
		masquerade: slices.DeleteFunc(slices.Clone(r.masquerade), other),
		forward:    slices.DeleteFunc(slices.Clone(r.forward), other),
	}
}

// multicast is what is never masqueraded (RFC 5771, RFC 4291 section 2.7): it
// stays on a link, and receivers know the sender by its address.
func multicast(v6 bool) netip.Prefix {
	if v6 {
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xff}), 8)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{224}), 4)
}

// wanted is the rules of all networks together.
func wanted(networks []Network) rules {
	var out rules
	for _, n := range networks {
		if n.IPMasq {
			for _, subnet := range n.Subnets {
				v6 := subnet.Addr().Is6()
				for _, stays := range append(ofFamily(n.Pools, v6), multicast(v6)) {
					out.masquerade = append(out.masquerade, rule{n.Name, subnet, stays, leave})
				}
				out.masquerade = append(out.masquerade, rule{n.Name, subnet, netip.Prefix{}, masquerade})
			}
		}
		if n.Forward {
			for _, pool := range n.Pools {
				out.forward = append(out.forward,
					rule{n.Name, pool, netip.Prefix{}, accept},
					rule{n.Name, netip.Prefix{}, pool, accept})
			}
		}
	}
	return out
}

func ofFamily(prefixes []netip.Prefix, v6 bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return p.Addr().Is6() != v6 })
}
