package firewall

import (
	"encoding/binary"
	"errors"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// nftRuleFrom parses one rule from a message of the kernel.
func nftRuleFrom(m netlink.Message) (chain string, r nftRule, err error) {
	err = nftMessage(m, func(rule *netlink.AttributeDecoder) {
		switch rule.Type() {
		case unix.NFTA_RULE_CHAIN:
			chain = rule.String()
		case unix.NFTA_RULE_USERDATA:
			r.userdata = rule.Bytes()
		case unix.NFTA_RULE_EXPRESSIONS:
			rule.Do(func(b []byte) error {
				return nftEach(b, func(list *netlink.AttributeDecoder) {
					r.exprs = append(r.exprs, nftExpression(m.Data[0], list.Bytes()))
				})
			})
		}
	})
	return chain, r, err
}

// nftMessage parses the attributes of a message, which follow its head: family, version, resource id.
func nftMessage(m netlink.Message, read func(*netlink.AttributeDecoder)) error {
	if len(m.Data) < 4 {
		return errors.New("an answer without its head")
	}
	return nftEach(m.Data[4:], read)
}

// nftUnknown stands for an expression that no rule of ours has, or that cannot be parsed. It belongs to another
// program and does not stop the parsing.
type nftUnknown struct {
	expr.Any
	name string
}

// nftExtension stands for a match or target of iptables-nft.
type nftExtension struct {
	expr.Any
	name   string
	target bool
}

// nftExpression parses one expression, of the kinds that occur in our rules or in rules that refuse everything.
func nftExpression(family byte, element []byte) expr.Any {
	var name string
	var data []byte
	err := nftEach(element, func(e *netlink.AttributeDecoder) {
		switch e.Type() {
		case unix.NFTA_EXPR_NAME:
			name = e.String()
		case unix.NFTA_EXPR_DATA:
			data = e.Bytes()
		}
	})
	if err != nil {
		return nftUnknown{name: name}
	}
	var e expr.Any
	switch name {
	case "meta":
		e = &expr.Meta{}
	case "cmp":
		e = &expr.Cmp{}
	case "payload":
		e = &expr.Payload{}
	case "bitwise":
		e = &expr.Bitwise{}
	case "nat":
		e = &expr.NAT{}
	case "masq":
		e = &expr.Masq{}
	case "counter":
		e = &expr.Counter{}
	case "log":
		e = &expr.Log{}
	case "reject":
		e = &expr.Reject{}
	case "ct":
		e = &expr.Ct{}
	case "match", "target":
		return nftExtensionOf(data, name == "target")
	case "immediate":
		return nftVerdictOf(data)
	}
	if e == nil || expr.Unmarshal(family, data, e) != nil {
		return nftUnknown{name: name}
	}
	return e
}

// nftExtensionOf parses an extension's name only: the data after it has a different format for each extension.
func nftExtensionOf(data []byte, target bool) expr.Any {
	out := nftExtension{target: target}
	err := nftEach(data, func(extension *netlink.AttributeDecoder) {
		if extension.Type() == unix.NFTA_MATCH_NAME { // the same as NFTA_TARGET_NAME
			out.name = extension.String()
		}
	})
	if err != nil {
		return nftUnknown{name: "extension"}
	}
	return out
}

// nftVerdictOf parses the data for the verdict register. The library parses it too, but without checking lengths.
func nftVerdictOf(data []byte) expr.Any {
	var verdict expr.Verdict
	register, found := uint32(0), false
	err := nftEach(data, func(immediate *netlink.AttributeDecoder) {
		switch immediate.Type() {
		case unix.NFTA_IMMEDIATE_DREG:
			register = immediate.Uint32()
		case unix.NFTA_IMMEDIATE_DATA:
			immediate.Do(func(b []byte) error {
				return nftEach(b, func(data *netlink.AttributeDecoder) {
					if found = data.Type() == unix.NFTA_DATA_VERDICT; found {
						data.Do(func(b []byte) error { return nftVerdictInto(&verdict, b) })
					}
				})
			})
		}
	})
	if err != nil || !found || register != unix.NFT_REG_VERDICT {
		return nftUnknown{name: "immediate"}
	}
	return &verdict
}

func nftVerdictInto(verdict *expr.Verdict, data []byte) error {
	return nftEach(data, func(v *netlink.AttributeDecoder) {
		switch v.Type() {
		case unix.NFTA_VERDICT_CODE:
			verdict.Kind = expr.VerdictKind(int32(v.Uint32()))
		case unix.NFTA_VERDICT_CHAIN:
			verdict.Chain = v.String()
		}
	})
}

// nftEach reads attributes one after the other. Numbers in them are big endian.
func nftEach(data []byte, read func(*netlink.AttributeDecoder)) error {
	attributes, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return err
	}
	attributes.ByteOrder = binary.BigEndian
	for attributes.Next() {
		read(attributes)
	}
	return attributes.Err()
}
