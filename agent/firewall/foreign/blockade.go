package foreign

import (
	"fmt"
	"net/netip"
	"slices"
)

// Blockade is a rule of this host that drops the datagrams of a path between hosts.
type Blockade struct {
	Path    UnderlayPath
	Inbound bool   // drops received datagrams; else sent ones
	Where   string // "iptables table filter chain INPUT"
	Rule    string // as its program prints it, or "policy DROP"
}

func (b Blockade) String() string { return fmt.Sprintf("%s: %q", b.Where, b.Rule) }

// hostTraffic marks a flow as one of the host itself.
type hostTraffic struct {
	answers bool // the packets may be answers to earlier ones
}

// blockades returns what the rules do to the paths, at most one blockade for each direction of a path. It is pure.
func blockades(bases []baseChain, paths []UnderlayPath) []Blockade {
	var out []Blockade
	for _, p := range paths {
		for _, inbound := range []bool{true, false} {
			met := trace(bases, p.flow(inbound))
			if i := slices.IndexFunc(met, func(f finding) bool { return f.what == dropPacket && f.whole }); i >= 0 {
				where, rule := met[i].place()
				out = append(out, Blockade{Path: p, Inbound: inbound, Where: where, Rule: rule})
			}
		}
	}
	return out
}

// flow returns the datagrams of one direction.
func (p UnderlayPath) flow(inbound bool) flow {
	f := flow{
		src:       hostPrefix(p.Own),
		dst:       hostPrefix(p.Peer),
		out:       p.Link,
		host:      &hostTraffic{p.SamePort},
		inbound:   inbound,
		protocols: oneNumber(protocolUDP),
		ports:     oneNumber(p.Port),
	}
	if p.SamePort {
		f.sourcePorts = oneNumber(p.Port)
	}
	if inbound {
		f.src, f.dst, f.in, f.out = f.dst, f.src, p.Link, ""
	}
	return f
}

// hostPrefix returns the prefix that contains only this address.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
