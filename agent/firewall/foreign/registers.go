package foreign

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// operand is what an expression of a rule loads into a register. The zero operand is something unknown.
type operand struct {
	left    object // as nft lists it
	size    int    // in bytes
	format  func(first, last []byte) string
	isField bool // of a packet's header, which implies the protocol
	// ordered means that format also formats ranges. The bits in ignored are not compared.
	ordered bool
	ignored []byte
	// flags are the names of the bits of what consists of flags, and selected those that a mask selects.
	flags    map[uint32]string
	selected []string
}

// registers are what the expressions of one rule have loaded.
type registers struct {
	loaded    map[uint32]operand
	network   string // "ip" or "ip6" if the rule is only for packets of that protocol
	transport string // likewise, "tcp"
}

// load loads what an expression loads into a register. It returns false for an expression that loads nothing.
func (r *registers) load(e expr.Any) bool {
	switch e := e.(type) {
	case *expr.Meta:
		r.loaded[e.Register] = metaOperand(e.Key)
		return !e.SourceRegister
	case *expr.Ct:
		r.loaded[e.Register] = ctOperand(e.Key)
		return !e.SourceRegister
	case *expr.Fib:
		r.loaded[e.Register] = operand{}
	case *expr.Payload:
		r.loaded[e.DestRegister] = r.fieldOperand(e)
		return e.OperationType != expr.PayloadWrite
	case *expr.Bitwise:
		r.loaded[e.DestRegister] = r.loaded[e.SourceRegister].masked(e)
	default:
		return false
	}
	return true
}

func metaOperand(key expr.MetaKey) operand {
	return map[expr.MetaKey]operand{
		expr.MetaKeyIIFNAME:  meta("iifname", unix.IFNAMSIZ, formatName),
		expr.MetaKeyOIFNAME:  meta("oifname", unix.IFNAMSIZ, formatName),
		expr.MetaKeyIIF:      meta("iif", 4, formatIndex),
		expr.MetaKeyOIF:      meta("oif", 4, formatIndex),
		expr.MetaKeyL4PROTO:  meta("l4proto", 1, formatProtocol),
		expr.MetaKeyNFPROTO:  meta("nfproto", 1, formatNetwork),
		expr.MetaKeyPROTOCOL: meta("protocol", 2, formatNetwork),
	}[key]
}

func meta(name string, size int, format func(first, _ []byte) string) operand {
	return operand{left: object{"meta": object{"key": name}}, size: size, format: format}
}

func ctOperand(key expr.CtKey) operand {
	o := operand{size: 4}
	switch key {
	case expr.CtKeySTATE:
		o.left = object{"ct": object{"key": "state"}}
		o.flags = map[uint32]string{
			expr.CtStateBitINVALID: "invalid", expr.CtStateBitESTABLISHED: "established", expr.CtStateBitRELATED: "related",
			expr.CtStateBitNEW: "new", expr.CtStateBitUNTRACKED: "untracked",
		}
	case expr.CtKeySTATUS: // IPS_SRC_NAT and IPS_DST_NAT
		o.left = object{"ct": object{"key": "status"}}
		o.flags = map[uint32]string{1 << 4: "snat", 1 << 5: "dnat"}
	default:
		return operand{}
	}
	o.format = func(b, _ []byte) string { return o.flags[native(b)] }
	return o
}

// fieldOperand returns a field of a packet's network or transport header, as far as the protocol is known. Of an
// address, the first bytes alone may be compared.
func (r *registers) fieldOperand(e *expr.Payload) operand {
	of := func(protocol, name string, size int, format func(first, last []byte) string) operand {
		return operand{left: object{"payload": object{"protocol": protocol, "field": name}}, size: size, format: format,
			isField: true, ordered: size > 1}
	}
	type position struct {
		base     expr.PayloadBase
		protocol string
		offset   uint32
	}
	const network, transport = expr.PayloadBaseNetworkHeader, expr.PayloadBaseTransportHeader
	at := position{e.Base, r.network, e.Offset}
	if e.Base == transport {
		at.protocol = r.transport
	}
	o := map[position]operand{
		{network, "ip", 9}:       of("ip", "protocol", 1, formatProtocol),
		{network, "ip", 12}:      of("ip", "saddr", 4, formatAddrs),
		{network, "ip", 16}:      of("ip", "daddr", 4, formatAddrs),
		{network, "ip6", 6}:      of("ip6", "nexthdr", 1, formatProtocol),
		{network, "ip6", 8}:      of("ip6", "saddr", 16, formatAddrs),
		{network, "ip6", 24}:     of("ip6", "daddr", 16, formatAddrs),
		{transport, "icmp", 0}:   of("icmp", "type", 1, formatNumbers),
		{transport, "icmpv6", 0}: of("icmpv6", "type", 1, formatNumbers),
		{transport, "tcp", 0}:    of("tcp", "sport", 2, formatNumbers),
		{transport, "tcp", 2}:    of("tcp", "dport", 2, formatNumbers),
		{transport, "udp", 0}:    of("udp", "sport", 2, formatNumbers),
		{transport, "udp", 2}:    of("udp", "dport", 2, formatNumbers),
	}[at]
	size := int(e.Len)
	switch isAddress := o.size >= net.IPv4len; {
	case size == o.size:
		return o
	case isAddress && size < o.size:
		o.ignored = append(make([]byte, size), bytes.Repeat([]byte{0xff}, o.size-size)...)
		return o
	}
	return operand{}
}

// masked returns the part of the operand that a mask selects: flags, or bits of an address.
func (o operand) masked(e *expr.Bitwise) operand {
	isPlain := len(e.Mask) == o.size && len(bytes.Trim(e.Xor, "\x00")) == 0 && o.ignored == nil && o.selected == nil
	switch {
	case !isPlain:
		return operand{}
	case o.ordered:
		for _, b := range e.Mask {
			o.ignored = append(o.ignored, ^b)
		}
		return o
	}
	mask := native(e.Mask)
	for bit, name := range o.flags {
		if mask&bit != 0 {
			o.selected, mask = append(o.selected, name), mask&^bit
		}
	}
	if mask != 0 || o.selected == nil {
		return operand{}
	}
	return o
}

// value formats a value with which the operand is compared. Without its last bytes, it is the beginning of values.
func (o operand) value(data []byte) string {
	if !o.ordered {
		return o.format(data, data)
	}
	first := append(bytes.Clone(data), make([]byte, max(0, o.size-len(data)))...)
	last := bytes.Clone(first)
	for i, b := range o.ignored {
		last[i] |= b
	}
	return o.format(first, last)
}

// native returns a number that the kernel keeps in the byte order of the machine, 0 if it has another size.
func native(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// formatName formats the name of a device. The beginning of a name has no byte 0 at the end.
func formatName(b, _ []byte) string {
	name, _, isWhole := bytes.Cut(b, []byte{0})
	if !isWhole {
		return string(name) + "*"
	}
	return string(name)
}

func formatIndex(b, _ []byte) string {
	i, err := net.InterfaceByIndex(int(native(b)))
	if err != nil {
		return strconv.Itoa(int(native(b))) // there is no such device
	}
	return i.Name
}

// formatNetwork formats a family of addresses or a type of Ethernet frames.
func formatNetwork(b, _ []byte) string {
	return map[string]string{"\x02": "ipv4", "\x0a": "ipv6", "\x08\x00": "ip", "\x86\xdd": "ip6"}[string(b)]
}

func formatProtocol(b, _ []byte) string {
	for _, name := range []string{"tcp", "udp", "icmp", "icmpv6"} {
		if n, _ := protocolNumber(name); len(b) == 1 && int(b[0]) == n {
			return name
		}
	}
	return formatNumbers(b, b)
}

func formatNumbers(first, last []byte) string {
	number := func(b []byte) (n int) {
		for _, digit := range b {
			n = n<<8 | int(digit)
		}
		return n
	}
	if bytes.Equal(first, last) {
		return strconv.Itoa(number(first))
	}
	return strconv.Itoa(number(first)) + "-" + strconv.Itoa(number(last))
}

// formatAddrs formats a range of addresses, as a prefix if it is one.
func formatAddrs(first, last []byte) string {
	from, _ := netip.AddrFromSlice(first)
	to, _ := netip.AddrFromSlice(last)
	if from == to {
		return from.String()
	}
	for n := range from.BitLen() {
		if p := netip.PrefixFrom(from, n); p.Masked() == p && p.Contains(to) && !p.Contains(to.Next()) {
			return p.String()
		}
	}
	return from.String() + "-" + to.String()
}
