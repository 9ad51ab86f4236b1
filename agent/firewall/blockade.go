package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Lane describes how a network's packets between this host and another host pass this host's rules: as UDP datagrams
// of the host itself.
type Lane struct {
	Network string
	Link    string     // device between hosts
	Own     netip.Addr // this host's address there
	Peer    netip.Addr // the other host's
	Port    int        // UDP, the same on both hosts
	// SamePort reports whether datagrams are also sent from that port, so that those of the other host may count as
	// answers.
	SamePort bool
}

// Blockade is a rule of this host that drops a lane's datagrams.
type Blockade struct {
	Lane    Lane
	Inbound bool   // drops received datagrams; else sent ones
	Where   string // "iptables table filter chain INPUT"
	Rule    string // as its program prints it, or "policy DROP"
}

func (b Blockade) String() string { return fmt.Sprintf("%s: %q", b.Where, b.Rule) }

// datagrams marks a flow as one of the host itself.
type datagrams struct {
	answers bool // the packets may be answers to earlier ones
}

// InTheWay returns what Obstacles returns, and the rules of this host, in every variant of iptables and in nftables,
// that drop datagrams between hosts. It reads the rules once for all networks. It changes nothing and reports only
// what it is sure of, so an empty result is no proof. Like Obstacles, it starts programs from the calling thread.
func InTheWay(ctx context.Context, crossings []Crossing, lanes []Lane) ([]Obstacle, []Blockade, error) {
	bases, _, err := standing(ctx)
	bridges, listing := bridgesOf(crossings)
	return obstacles(bases, crossings, bridges), blockades(bases, lanes), errors.Join(err, listing)
}

// blockades returns what the rules do to the lanes, at most one blockade for each direction. It is pure.
func blockades(bases []base, lanes []Lane) []Blockade {
	var out []Blockade
	for _, l := range lanes {
		for _, inbound := range []bool{true, false} {
			met := trace(bases, l.flow(inbound))
			if i := slices.IndexFunc(met, func(f found) bool { return f.what == dropped && f.whole }); i >= 0 {
				where, rule := met[i].place()
				out = append(out, Blockade{Lane: l, Inbound: inbound, Where: where, Rule: rule})
			}
		}
	}
	return out
}

func (l Lane) flow(inbound bool) flow {
	f := flow{src: single(l.Own), dst: single(l.Peer), out: l.Link, host: &datagrams{l.SamePort}, inbound: inbound,
		protocols: oneNumber(protocolUDP), ports: oneNumber(l.Port)}
	if l.SamePort {
		f.sourcePorts = oneNumber(l.Port)
	}
	if inbound {
		f.src, f.dst, f.in, f.out = f.dst, f.src, l.Link, ""
	}
	return f
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
