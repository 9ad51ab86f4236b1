package firewall

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// nftRuleOf compiles a rule as the program nft does, so that a rule set that nft listed and loaded again is still the
// wanted one.
func nftRuleOf(r rule, in nftPlace) netfilter.NFTRule {
	at := nftFieldsOf(r.is6())
	// A chain of the inet family sees packets of both families.
	exprs := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{at.proto}},
	}
	exprs = append(exprs, nftPrefix(at.source, r.src)...)
	exprs = append(exprs, nftPrefix(at.destination, r.dst)...)
	if r.in != "" {
		exprs = append(exprs, nftMeta(expr.MetaKeyIIFNAME, nftName(r.in))...)
	}
	switch r.of {
	case known:
		exprs = append(exprs, nftTracked(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)...)
	case published:
		exprs = append(exprs, nftTracked(expr.CtKeySTATUS, statusDNAT)...)
	}
	switch {
	case r.verdict == masquerade:
		// Every kernel that masquerades in the inet family supports random ports.
		exprs = append(exprs, &expr.Masq{FullyRandom: r.randomFully})
	case r.verdict == leave:
		exprs = append(exprs, &expr.Verdict{Kind: expr.VerdictReturn})
	case in.keeps:
		exprs = append(exprs, nftKeep(at)...)
	default:
		exprs = append(exprs, &expr.Verdict{Kind: expr.VerdictAccept})
	}
	return nftRule(r.network, exprs...)
}

// nftRule returns a rule of one network.
func nftRule(network string, exprs ...expr.Any) netfilter.NFTRule {
	comment := userdata.AppendString(nil, userdata.TypeComment, Comment(network))
	return netfilter.NFTRule{Exprs: exprs, UserData: comment}
}

// nftMeta matches a property of the packet.
func nftMeta(key expr.MetaKey, value []byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: value},
	}
}

// nftName returns a name as the kernel compares it.
func nftName(name string) []byte {
	out := make([]byte, unix.IFNAMSIZ)
	copy(out, name)
	return out
}

// statusDNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const statusDNAT = 1 << 5

// nftTracked matches packets whose connection has one of the bits.
func nftTracked(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: unix.NFT_REG_1},
		maskWith(binary.NativeEndian.AppendUint32(nil, bits)),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: make([]byte, 4)},
	}
}

// nftFields holds the offsets, in bytes, of the matched fields in a family's header.
type nftFields struct {
	proto                     byte
	source, destination, size uint32 // of addresses
}

func nftFieldsOf(v6 bool) nftFields {
	if v6 {
		return nftFields{unix.NFPROTO_IPV6, 8, 24, 16} // RFC 8200 section 3
	}
	return nftFields{unix.NFPROTO_IPV4, 12, 16, 4} // RFC 791 section 3.1
}

// nftKeep makes a connection keep its source. An accept would not: the kernel calls the chains of type nat one after
// the other until one has given the connection an address, whatever the verdict.
func nftKeep(at nftFields) []expr.Any {
	return []expr.Any{
		loadBytes(at.source, at.size),
		&expr.NAT{
			Type:       expr.NATTypeSourceNAT,
			Family:     uint32(at.proto),
			RegAddrMin: unix.NFT_REG_1,
			RegAddrMax: unix.NFT_REG_1,
		},
	}
}

// loadBytes loads a part of the network header.
func loadBytes(offset, length uint32) *expr.Payload {
	return &expr.Payload{
		Base:         expr.PayloadBaseNetworkHeader,
		Offset:       offset,
		Len:          length,
		DestRegister: unix.NFT_REG_1,
	}
}

// maskWith keeps the bits of the mask in what was loaded.
func maskWith(mask []byte) *expr.Bitwise {
	return &expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: uint32(len(mask)), Mask: mask,
		Xor: make([]byte, len(mask))}
}

// nftPrefix matches the address at this offset of the network header; it returns nothing for the zero Prefix. Whole
// bytes are compared directly, other lengths through a mask.
func nftPrefix(offset uint32, p netip.Prefix) []expr.Any {
	if !p.IsValid() {
		return nil
	}
	address, length := p.Masked().Addr().AsSlice(), p.Bits()/8
	if p.Bits()%8 == 0 && length > 0 {
		return []expr.Any{
			loadBytes(offset, uint32(length)),
			&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: address[:length]},
		}
	}
	mask := make([]byte, len(address))
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		loadBytes(offset, uint32(len(address))),
		maskWith(mask),
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: address},
	}
}

// nftChain is one chain of our table.
type nftChain struct {
	name  string
	base  netfilter.Base
	rules []netfilter.NFTRule
}

// Our table.
const (
	TableName    = "leno"
	nftTableName = "inet " + TableName // as people write it
)

// nftPlace is one of our chains and where the kernel calls it. All have the policy accept: leno leaves packets
// without a rule of its own alone.
type nftPlace struct {
	name  string
	base  netfilter.Base
	rules func(rules) []rule
	keeps bool // accepted packets keep their source
}

// nftPlaces returns all of our chains.
//
// The first chain of type nat that gives a connection an address decides, and of chains with the same priority the
// kernel calls the youngest first. So the rules for packets that keep their source come before the usual priority,
// srcnat, where others masquerade. Our own masquerading comes after it: an operator's rule that rewrites the same
// packets is there on purpose, and goes first.
//
// An accept ends one chain, not the hook: no priority of the forward chain can overrule a drop of another program
// (see [ForwardDrops]). The chain is where an operator looks for it.
func nftPlaces() []nftPlace {
	base := func(t nftables.ChainType, h *nftables.ChainHook, p nftables.ChainPriority) netfilter.Base {
		return netfilter.Base{Type: t, Hook: *h, Priority: p, Policy: nftables.ChainPolicyAccept}
	}
	srcnat := *nftables.ChainPriorityNATSource
	return []nftPlace{
		{
			name:  "overlay",
			base:  base(nftables.ChainTypeNAT, nftables.ChainHookPostrouting, srcnat-10),
			rules: func(r rules) []rule { return r.exempt },
			keeps: true,
		},
		{
			name:  "postrouting",
			base:  base(nftables.ChainTypeNAT, nftables.ChainHookPostrouting, srcnat+10),
			rules: func(r rules) []rule { return r.masquerade },
		},
		{
			name:  "forward",
			base:  base(nftables.ChainTypeFilter, nftables.ChainHookForward, *nftables.ChainPriorityFilter),
			rules: func(r rules) []rule { return r.forward },
		},
	}
}

// nftChains returns the chains that hold the wanted rules, of both families. A chain without rules is not wanted,
// since one of type nat alone makes the kernel track every connection.
func nftChains(want rules) []nftChain {
	var out []nftChain
	for _, place := range nftPlaces() {
		list := place.rules(want)
		if len(list) == 0 {
			continue
		}
		chain := nftChain{name: place.name, base: place.base}
		for _, r := range list {
			chain.rules = append(chain.rules, nftRuleOf(r, place))
		}
		out = append(out, chain)
	}
	return append(out, want.guard.chains()...)
}
