package probe

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

const (
	header4, header6 = 20, 40 // bytes of an IP header without options
	headerICMP       = 8
	cookieLen        = 8
	minSize          = 64 // bytes of a packet: room for a cookie in both families
)

// cookie begins the payload of all packets of one pinger, so that packets of other programs are not taken for ours.
type cookie [cookieLen]byte

// marshal returns the ICMP message of an echo request whose IP packet has the given size. The kernel computes the
// checksum of ICMPv6.
func marshal(to netip.Addr, id, seq, size int, c cookie) ([]byte, error) {
	header, kind := header4, icmp.Type(ipv4.ICMPTypeEcho)
	if to.Is6() {
		header, kind = header6, ipv6.ICMPTypeEchoRequest
	}
	data := make([]byte, max(size-header-headerICMP, cookieLen))
	copy(data, c[:])
	m := icmp.Message{Type: kind, Body: &icmp.Echo{ID: id, Seq: seq, Data: data}}
	return m.Marshal(nil)
}

// message holds the relevant parts of a received packet.
type message struct {
	reply  bool // answers an echo request; else it is an error about the quoted packet
	reason string
	mtu    int // that a fragment would have to fit, 0 if the error has none

	// The echo request that it is about, with the address that was asked.
	echo    bool
	id, seq int
	to      netip.Addr // of an error: the destination of the quoted packet
	cookie  cookie     // of a reply

	port int // of an error about a UDP packet: its destination port
}

// parse4 parses an IPv4 packet from a raw socket, including its header; ok is false unless it is a reply, or an error
// about an echo request or a UDP packet.
func parse4(packet []byte) (message, bool) {
	body, ok := payload4(packet)
	if !ok {
		return message{}, false
	}
	m, err := icmp.ParseMessage(ipv4.ICMPTypeEcho.Protocol(), body)
	if err != nil {
		return message{}, false
	}
	out := message{}
	switch m.Type {
	case ipv4.ICMPTypeEchoReply:
		return out.parseReply(body)
	case ipv4.ICMPTypeDestinationUnreachable:
		out.reason = codeName(unreachable4, m.Code, "destination unreachable")
		if m.Code == tooBig4 {
			out.mtu = int(binary.BigEndian.Uint16(body[6:])) // RFC 1191
		}
	case ipv4.ICMPTypeTimeExceeded:
		out.reason = timeExceeded
	case ipv4.ICMPTypeParameterProblem:
		out.reason = "parameter problem"
	default:
		return out, false
	}
	return out.parseQuote4(body[headerICMP:])
}

// parse6 parses an ICMPv6 message.
func parse6(body []byte) (message, bool) {
	m, err := icmp.ParseMessage(ipv6.ICMPTypeEchoRequest.Protocol(), body)
	if err != nil || len(body) < headerICMP {
		return message{}, false
	}
	out := message{}
	switch m.Type {
	case ipv6.ICMPTypeEchoReply:
		return out.parseReply(body)
	case ipv6.ICMPTypeDestinationUnreachable:
		out.reason = codeName(unreachable6, m.Code, "destination unreachable")
	case ipv6.ICMPTypePacketTooBig:
		out.reason, out.mtu = fragmentationNeeded, int(min(binary.BigEndian.Uint32(body[4:]), 1<<16))
	case ipv6.ICMPTypeTimeExceeded:
		out.reason = timeExceeded
	case ipv6.ICMPTypeParameterProblem:
		out.reason = "parameter problem"
	default:
		return out, false
	}
	return out.parseQuote6(body[headerICMP:])
}

// payload4 returns the data after the header of an IPv4 packet.
func payload4(packet []byte) ([]byte, bool) {
	if len(packet) < header4 || packet[0]>>4 != 4 {
		return nil, false
	}
	n := int(packet[0]&0xf) * 4
	if n < header4 || len(packet) < n+headerICMP {
		return nil, false
	}
	return packet[n:], true
}

func (m message) parseReply(body []byte) (message, bool) {
	if len(body) < headerICMP+cookieLen {
		return m, false
	}
	m.reply, m.echo = true, true
	m.id, m.seq = int(binary.BigEndian.Uint16(body[4:])), int(binary.BigEndian.Uint16(body[6:]))
	m.cookie = cookie(body[headerICMP:])
	return m, true
}

// parseQuote4 parses the packet that an error is about. The quote may contain no more than the header and 8 bytes (RFC
// 792).
func (m message) parseQuote4(quote []byte) (message, bool) {
	body, ok := payload4(quote)
	if !ok {
		return m, false
	}
	m.to = netip.AddrFrom4([4]byte(quote[16:]))
	return m.parseQuote(int(quote[9]), ipv4.ICMPTypeEcho.Protocol(), int(ipv4.ICMPTypeEcho), body)
}

// parseQuote6 is quoted4 for IPv6. Our packets have no extension headers.
func (m message) parseQuote6(quote []byte) (message, bool) {
	if len(quote) < header6+headerICMP || quote[0]>>4 != 6 {
		return m, false
	}
	m.to = netip.AddrFrom16([16]byte(quote[24:]))
	return m.parseQuote(int(quote[6]), ipv6.ICMPTypeEchoRequest.Protocol(), int(ipv6.ICMPTypeEchoRequest), quote[header6:])
}

func (m message) parseQuote(protocol, icmpProtocol, echoType int, body []byte) (message, bool) {
	const udp = 17
	switch {
	case protocol == udp:
		m.port = int(binary.BigEndian.Uint16(body[2:]))
		return m, true
	case protocol == icmpProtocol && int(body[0]) == echoType:
		m.echo = true
		m.id, m.seq = int(binary.BigEndian.Uint16(body[4:])), int(binary.BigEndian.Uint16(body[6:]))
		return m, true
	}
	return m, false
}

// Reasons, in words that both families share where they mean the same.
const (
	fragmentationNeeded = "fragmentation needed"
	timeExceeded        = "time exceeded"
	portUnreachable     = "port unreachable"
	tooBig4             = 4 // code of destination unreachable
)

// unreachable4 and unreachable6 name the codes of destination unreachable (RFC
// 792, RFC 1812; RFC 4443).
var (
	unreachable4 = []string{"network unreachable", "host unreachable", "protocol unreachable", portUnreachable,
		fragmentationNeeded,
		"source route failed", "network unknown", "host unknown", "source isolated", "network prohibited", "host prohibited",
		"network unreachable for this service", "host unreachable for this service", "prohibited by a firewall"}
	unreachable6 = []string{"no route", "prohibited by a firewall", "beyond the scope of the source", "host unreachable",
		portUnreachable,
		"source address refused by a policy", "route rejects it"}
)

func codeName(names []string, code int, otherwise string) string {
	if code < len(names) {
		return names[code]
	}
	return fmt.Sprintf("%s, code %d", otherwise, code)
}

// exceedsMTU is the reason given for a packet that does not fit this host's device.
const exceedsMTU = "longer than the MTU of the device it would leave by"
