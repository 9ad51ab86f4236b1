package firewall

import (
	"bytes"
	"net/netip"
	"reflect"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// nftRule is one rule as the kernel keeps it. Handles and places are left out:
// order is what the list of rules says.
type nftRule struct {
	exprs    []expr.Any
	userdata []byte // the comment, for people
}

func (r nftRule) equal(other nftRule) bool {
	return bytes.Equal(r.userdata, other.userdata) && reflect.DeepEqual(r.exprs, other.exprs)
}

// nftRuleOf compiles a rule as the program nft does, so that a rule set that was
// listed and loaded again by it is still as wanted.
func nftRuleOf(r rule, randomFully bool) nftRule {
	proto := byte(unix.NFPROTO_IPV4)
	if r.is6() {
		proto = unix.NFPROTO_IPV6
	}
	// A chain of the inet family sees packets of both.
	exprs := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{proto}},
	}
	source, destination := uint32(12), uint32(16) // RFC 791 section 3.1
	if r.is6() {
		source, destination = 8, 24 // RFC 8200 section 3
	}
	exprs = append(exprs, nftPrefix(source, r.src)...)
	exprs = append(exprs, nftPrefix(destination, r.dst)...)
	switch r.verdict {
	case leave:
		exprs = append(exprs, &expr.Verdict{Kind: expr.VerdictReturn})
	case accept:
		exprs = append(exprs, &expr.Verdict{Kind: expr.VerdictAccept})
	case masquerade:
		// Without fully random ports two connections can be given the same one at
		// the same instant, and one loses its first packet.
		exprs = append(exprs, &expr.Masq{FullyRandom: randomFully})
	}
	return nftRule{exprs: exprs, userdata: userdata.AppendString(nil, userdata.TypeComment, r.comment())}
}

// nftPrefix matches the address at this offset of the network header; nothing
// for the zero Prefix. Whole bytes are compared as they are, other lengths
// through a mask.
func nftPrefix(offset uint32, p netip.Prefix) []expr.Any {
	if !p.IsValid() {
		return nil
	}
	address, length := p.Masked().Addr().AsSlice(), p.Bits()/8
	if p.Bits()%8 == 0 && length > 0 {
		return []expr.Any{
			&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(length), DestRegister: unix.NFT_REG_1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: address[:length]},
		}
	}
	size, mask := len(address), make([]byte, len(address))
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(size), DestRegister: unix.NFT_REG_1},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: uint32(size), Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: address},
	}
}

// nftBase says where the kernel calls a chain; the zero value is one that only
// other chains call.
type nftBase struct {
	kind     nftables.ChainType
	hook     nftables.ChainHook
	priority nftables.ChainPriority
	policy   nftables.ChainPolicy
}

// nftChain is one chain of our table.
type nftChain struct {
	name  string
	base  nftBase
	rules []nftRule
}

// Chains of our table. Both end in the policy accept: what leno has no rule for
// is no business of leno's.
const (
	nftTable       = "leno"
	nftTableName   = "inet " + nftTable // as people write it
	nftPostrouting = "postrouting"
	nftForward     = "forward"
)

// nftChains is the chains that hold the wanted rules, of both families; a chain
// without rules is not wanted, since one of type nat alone makes the kernel
// track every connection.
//
// The first chain of type nat that gives a connection an address decides, and
// of chains with the same priority the kernel calls the youngest first. So ours
// comes after the usual priority, srcnat: an operator's rule that rewrites the
// same packets is there on purpose, and goes first.
//
// An accept ends one chain, not the hook: no priority of the forward chain can
// overrule a drop of somebody else's (see [ForwardDrops]). It stands where an
// operator looks for it.
func nftChains(want rules, randomFully bool) []nftChain {
	all := []struct {
		nftChain
		want []rule
	}{
		{nftChain{name: nftPostrouting, base: nftBase{kind: nftables.ChainTypeNAT, hook: *nftables.ChainHookPostrouting,
			priority: *nftables.ChainPriorityNATSource + 10, policy: nftables.ChainPolicyAccept}}, want.masquerade},
		{nftChain{name: nftForward, base: nftBase{kind: nftables.ChainTypeFilter, hook: *nftables.ChainHookForward,
			priority: *nftables.ChainPriorityFilter, policy: nftables.ChainPolicyAccept}}, want.forward},
	}
	var out []nftChain
	for _, c := range all {
		if len(c.want) == 0 {
			continue
		}
		chain := c.nftChain
		for _, r := range c.want {
			chain.rules = append(chain.rules, nftRuleOf(r, randomFully))
		}
		out = append(out, chain)
	}
	return out
}
