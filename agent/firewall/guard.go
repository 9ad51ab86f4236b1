package firewall

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// A guard drops packets that only an attacker sends. Its rules are in nftables whichever kind has the others: a drop is
// final there, whatever rules other programs have and in which order. They are:
//
//   - Only the host itself sends to the UDP ports of its tunnels, and to the endpoints of peers that receive at other
//     ports. A container could otherwise inject packets into the tunnel of a peer, which cannot tell a masqueraded
//     datagram from one of the host, or take the tunnel's port in the connection tracking of its host, and with it all
//     that the peer sends.
//   - The ports of this host's own tunnels do not receive what a container sends: packets to or from an address of a
//     network, and those that arrive by a bridge other than the underlay.
//   - A packet from an address of a sealed network arrives by a tunnel, or by the device by which packets to that
//     address leave: the bridge of a container.
type guard struct {
	tunnels  []networkValue[string]       // packets that arrive by them are not looked at
	pools    []networkValue[netip.Prefix] // forwarded packets to them may be for any port
	inside   []networkValue[netip.Prefix] // the pools of networks that are not the underlay of another one
	ports    []networkValue[uint16]
	peers    []networkValue[netip.AddrPort]
	underlay []networkValue[string]
	sealed   []networkValue[netip.Prefix]
}

// networkValue is a value of a network.
type networkValue[T comparable] struct {
	network string
	value   T
}

// guardOf returns the guard of all networks together.
func guardOf(networks []Network) (out guard) {
	known := true
	for _, n := range networks {
		out.tunnels = appendValues(out.tunnels, n.Name, n.Tunnels)
		out.pools = appendValues(out.pools, n.Name, n.Pools)
		out.ports = appendValues(out.ports, n.Name, n.Ports)
		out.peers = appendValues(out.peers, n.Name, n.Peers)
		out.underlay = appendValues(out.underlay, n.Name, n.Underlay)
		if !isUnderlay(n, networks) {
			out.inside = appendValues(out.inside, n.Name, n.Pools)
		}
		known = known && (len(n.Ports) == 0 || len(n.Underlay) > 0)
		if n.Sealed {
			out.sealed = appendValues(out.sealed, n.Name, n.Pools)
		}
	}
	if !known {
		out.underlay = nil // it may be any device
	}
	return out
}

// isUnderlay reports whether the tunnels of another network use those of n.
func isUnderlay(n Network, networks []Network) bool {
	return slices.ContainsFunc(networks, func(o Network) bool {
		return slices.ContainsFunc(o.Underlay, func(link string) bool { return slices.Contains(n.Tunnels, link) })
	})
}

// appendValues adds values of a network that are not there yet.
func appendValues[T comparable](to []networkValue[T], network string, values []T) []networkValue[T] {
	for _, v := range values {
		if !slices.ContainsFunc(to, func(o networkValue[T]) bool { return o.value == v }) {
			to = append(to, networkValue[T]{network, v})
		}
	}
	return to
}

// isEmpty reports whether the guard drops nothing.
func (g guard) isEmpty() bool { return len(g.ports)+len(g.peers)+len(g.sealed) == 0 }

// The names of the guard's chains.
const tunnelsChain, inputsChain, sourcesChain = "tunnels", "inputs", "sources"

// chains returns the chains of the guard. They come before the chains of filter, so that packets that are dropped are
// neither logged nor counted there as accepted.
func (g guard) chains() (out []nftChain) {
	chain := func(name string, hook *nftables.ChainHook, rules []netfilter.NFTRule) {
		if len(rules) > 0 {
			base := netfilter.Base{Type: nftables.ChainTypeFilter, Hook: *hook, Priority: *nftables.ChainPriorityMangle,
				Policy: nftables.ChainPolicyAccept}
			out = append(out, nftChain{name: name, base: base, rules: rules})
		}
	}
	chain(tunnelsChain, nftables.ChainHookForward, g.portRules())
	chain(inputsChain, nftables.ChainHookInput, g.inputRules())
	chain(sourcesChain, nftables.ChainHookPrerouting, g.sourceRules())
	return out
}

// portRules returns the rules against packets to the ports of the tunnels. Packets within a bridge, which pass through
// here if bridges call the firewall, leave the host only if the bridge is the underlay.
func (g guard) portRules() (out []netfilter.NFTRule) {
	if len(g.ports)+len(g.peers) == 0 {
		return nil
	}
	for _, pool := range g.pools {
		out = append(out, nftRule(pool.network, append(nftAddress(false, pool.value),
			&expr.Verdict{Kind: expr.VerdictReturn})...))
	}
	for _, peer := range g.peers {
		addr := netip.PrefixFrom(peer.value.Addr(), peer.value.Addr().BitLen())
		out = append(out, nftRule(peer.network, slices.Concat(nftAddress(false, addr), nftPort(peer.value.Port()),
			[]expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})...))
	}
	if len(g.ports) == 0 {
		return out
	}
	if len(g.underlay) > 0 {
		for _, port := range g.ports {
			for _, link := range g.underlay {
				leaves := append(nftPort(port.value), nftMeta(expr.MetaKeyOIFNAME, nftName(link.value))...)
				out = append(out, nftRule(port.network, append(leaves, &expr.Verdict{Kind: expr.VerdictDrop})...))
			}
		}
		bridged := nftMeta(metaOIFKind, nftName("bridge"))
		out = append(out, nftRule(g.ports[0].network, append(bridged, &expr.Verdict{Kind: expr.VerdictReturn})...))
	}
	for _, port := range g.ports {
		out = append(out, nftRule(port.network, append(nftPort(port.value), &expr.Verdict{Kind: expr.VerdictDrop})...))
	}
	return out
}

// inputRules returns the rules against packets to the ports of this host's tunnels that containers send.
func (g guard) inputRules() (out []netfilter.NFTRule) {
	if len(g.ports) == 0 {
		return nil
	}
	// A rule with the pool of one network and the port of another one is of the former: nothing about a pool outlives it.
	drop := func(network string, from ...expr.Any) {
		for _, port := range g.ports {
			exprs := slices.Concat(nftPort(port.value), from, []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})
			out = append(out, nftRule(cmp.Or(network, port.network), exprs...))
		}
	}
	for _, pool := range g.inside {
		drop(pool.network, nftAddress(false, pool.value)...)
	}
	for _, link := range g.underlay {
		arrives := nftMeta(expr.MetaKeyIIFNAME, nftName(link.value))
		out = append(out, nftRule(link.network, append(arrives, &expr.Verdict{Kind: expr.VerdictReturn})...))
	}
	for _, pool := range g.inside {
		drop(pool.network, nftAddress(true, pool.value)...)
	}
	if len(g.underlay) > 0 {
		drop("", nftMeta(metaIIFKind, nftName("bridge"))...)
	}
	return out
}

// sourceRules returns the rules against packets with a source in a sealed network that arrive elsewhere. ICMP for the
// host itself passes: peers probe each direction of a tunnel alone with it.
func (g guard) sourceRules() (out []netfilter.NFTRule) {
	if len(g.sealed) == 0 {
		return nil
	}
	for _, link := range g.tunnels {
		arrives := nftMeta(expr.MetaKeyIIFNAME, nftName(link.value))
		out = append(out, nftRule(link.network, append(arrives, &expr.Verdict{Kind: expr.VerdictReturn})...))
	}
	// While a host moves from flannel, others still send to it by flannel's devices: flannel.1, flannel0, flannel-wg.
	byFlannel := append(nftMeta(expr.MetaKeyIIFNAME, []byte("flannel")), &expr.Verdict{Kind: expr.VerdictReturn})
	out = append(out, nftRule(g.sealed[0].network, byFlannel...))
	for _, proto := range []byte{unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6} {
		toHost := append(nftMeta(expr.MetaKeyL4PROTO, []byte{proto}),
			&expr.Fib{Register: unix.NFT_REG_1, FlagDADDR: true, ResultADDRTYPE: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
			&expr.Verdict{Kind: expr.VerdictReturn})
		out = append(out, nftRule(g.sealed[0].network, toHost...))
	}
	for _, pool := range g.sealed {
		exprs := append(nftAddress(true, pool.value),
			&expr.Fib{Register: unix.NFT_REG_1, FlagSADDR: true, FlagIIF: true, FlagPRESENT: true, ResultOIF: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: make([]byte, 4)},
			&expr.Verdict{Kind: expr.VerdictDrop})
		out = append(out, nftRule(pool.network, exprs...))
	}
	return out
}

// NFT_META_IIFKIND and NFT_META_OIFKIND of linux/netfilter/nf_tables.h.
const (
	metaIIFKind expr.MetaKey = 26
	metaOIFKind expr.MetaKey = 27
)

// nftAddress matches the source or destination.
func nftAddress(source bool, p netip.Prefix) []expr.Any {
	at := nftFieldsOf(p.Addr().Is6())
	offset := at.destination
	if source {
		offset = at.source
	}
	return append(nftMeta(expr.MetaKeyNFPROTO, []byte{at.proto}), nftPrefix(offset, p)...)
}

// nftPort matches UDP packets to a port, of both families.
func nftPort(port uint16) []expr.Any {
	return append(nftMeta(expr.MetaKeyL4PROTO, []byte{unix.IPPROTO_UDP}),
		&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2, DestRegister: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: binary.BigEndian.AppendUint16(nil, port)})
}
