package netfilter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// NFTRule is one rule as the kernel keeps it. It has no handle and no position: the list of rules gives the order.
type NFTRule struct {
	Exprs    []expr.Any
	UserData []byte // the comment
}

// Equal reports whether both rules have the same expressions and comment.
func (r NFTRule) Equal(other NFTRule) bool {
	return bytes.Equal(r.UserData, other.UserData) && reflect.DeepEqual(r.Exprs, other.Exprs)
}

// ParseNFTRule parses one rule from a message of the kernel.
func ParseNFTRule(m netlink.Message) (chain string, r NFTRule, err error) {
	err = eachAttributeOf(m, func(rule *netlink.AttributeDecoder) {
		switch rule.Type() {
		case unix.NFTA_RULE_CHAIN:
			chain = rule.String()
		case unix.NFTA_RULE_USERDATA:
			r.UserData = rule.Bytes()
		case unix.NFTA_RULE_EXPRESSIONS:
			rule.Do(func(b []byte) error {
				return eachAttribute(b, func(list *netlink.AttributeDecoder) {
					r.Exprs = append(r.Exprs, parseExpression(m.Data[0], list.Bytes()))
				})
			})
		}
	})
	return chain, r, err
}

// eachAttributeOf parses the attributes of a message, which follow its head: family, version, resource id.
func eachAttributeOf(m netlink.Message, read func(*netlink.AttributeDecoder)) error {
	if len(m.Data) < 4 {
		return errors.New("an answer without its head")
	}
	return eachAttribute(m.Data[4:], read)
}

// Unknown stands for an expression of a kind that is not parsed, or that cannot be. It does not stop the parsing.
type Unknown struct {
	expr.Any
	Name string
}

// Extension stands for a match or target of iptables-nft.
type Extension struct {
	expr.Any
	Name   string
	Target bool
}

// VerdictMap stands for a lookup of a register's value whose result is the verdict.
type VerdictMap struct {
	expr.Any
	Name     string
	Register uint32
}

// parseExpression parses one expression, of the kinds that occur in our rules or that decide which packets others drop.
func parseExpression(family byte, element []byte) expr.Any {
	var name string
	var data []byte
	err := eachAttribute(element, func(e *netlink.AttributeDecoder) {
		switch e.Type() {
		case unix.NFTA_EXPR_NAME:
			name = e.String()
		case unix.NFTA_EXPR_DATA:
			data = e.Bytes()
		}
	})
	if err != nil {
		return Unknown{Name: name}
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
	case "fib":
		e = &expr.Fib{}
	case "match", "target":
		return parseExtension(data, name == "target")
	case "immediate":
		return parseVerdict(data)
	case "lookup":
		var lookup expr.Lookup
		err := expr.Unmarshal(family, data, &lookup)
		switch {
		case err == nil && !lookup.IsDestRegSet:
			return &lookup
		case err == nil && lookup.DestRegister == unix.NFT_REG_VERDICT:
			return VerdictMap{Name: lookup.SetName, Register: lookup.SourceRegister}
		}
	}
	if e == nil || expr.Unmarshal(family, data, e) != nil {
		return Unknown{Name: name}
	}
	return e
}

// parseExtension parses an extension's name only: the data after it has a different format for each extension.
func parseExtension(data []byte, target bool) expr.Any {
	out := Extension{Target: target}
	err := eachAttribute(data, func(extension *netlink.AttributeDecoder) {
		if extension.Type() == unix.NFTA_MATCH_NAME { // the same as NFTA_TARGET_NAME
			out.Name = extension.String()
		}
	})
	if err != nil {
		return Unknown{Name: "extension"}
	}
	return out
}

// parseVerdict parses the data for the verdict register. The library parses it too, but without checking lengths.
func parseVerdict(data []byte) expr.Any {
	var verdict expr.Verdict
	register, found := uint32(0), false
	err := eachAttribute(data, func(immediate *netlink.AttributeDecoder) {
		switch immediate.Type() {
		case unix.NFTA_IMMEDIATE_DREG:
			register = immediate.Uint32()
		case unix.NFTA_IMMEDIATE_DATA:
			immediate.Do(func(b []byte) error {
				return eachAttribute(b, func(data *netlink.AttributeDecoder) {
					if found = data.Type() == unix.NFTA_DATA_VERDICT; found {
						data.Do(func(b []byte) error { return parseVerdictInto(&verdict, b) })
					}
				})
			})
		}
	})
	if err != nil || !found || register != unix.NFT_REG_VERDICT {
		return Unknown{Name: "immediate"}
	}
	return &verdict
}

// ParseVerdict parses the verdict of an element of a verdict map. It returns false for what is none.
func ParseVerdict(data []byte) (verdict expr.Verdict, ok bool) {
	return verdict, parseVerdictInto(&verdict, data) == nil
}

func parseVerdictInto(verdict *expr.Verdict, data []byte) error {
	return eachAttribute(data, func(v *netlink.AttributeDecoder) {
		switch v.Type() {
		case unix.NFTA_VERDICT_CODE:
			verdict.Kind = expr.VerdictKind(int32(v.Uint32()))
		case unix.NFTA_VERDICT_CHAIN:
			verdict.Chain = v.String()
		}
	})
}

// eachAttribute reads attributes one after the other. Numbers in them are big endian.
func eachAttribute(data []byte, read func(*netlink.AttributeDecoder)) error {
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
