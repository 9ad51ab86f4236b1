package udp

import (
	"encoding/binary"
	"net/netip"
)

const (
	// maxPacket is the longest IP packet without jumbograms, and more than the
	// longest UDP payload, so that a buffer of this size never truncates.
	maxPacket = 65535

	ipv4HeaderLen = 20
	ipv6HeaderLen = 40
	udpHeaderLen  = 8
)

// parsePacket reads the addresses of one bare IP packet. It accepts a packet
// only when its header is whole and its own length is the number of bytes at
// hand: the wire format has no padding, so that anything else was cut,
// stretched or made up. Options and extension headers are the kernel's to
// judge (RFC 791, RFC 8200).
func parsePacket(pkt []byte) (src, dst netip.Addr, why reason) {
	if len(pkt) == 0 {
		return src, dst, truncated
	}
	switch pkt[0] >> 4 {
	case 4:
		if len(pkt) < ipv4HeaderLen {
			return src, dst, truncated
		}
		header := int(pkt[0]&0x0f) * 4
		if header < ipv4HeaderLen || header > len(pkt) || int(binary.BigEndian.Uint16(pkt[2:])) != len(pkt) {
			return src, dst, badLength
		}
		src = netip.AddrFrom4([4]byte(pkt[12:16]))
		dst = netip.AddrFrom4([4]byte(pkt[16:20]))
	case 6:
		if len(pkt) < ipv6HeaderLen {
			return src, dst, truncated
		}
		if ipv6HeaderLen+int(binary.BigEndian.Uint16(pkt[4:])) != len(pkt) {
			return src, dst, badLength
		}
		src = netip.AddrFrom16([16]byte(pkt[8:24]))
		dst = netip.AddrFrom16([16]byte(pkt[24:40]))
	default:
		return src, dst, badVersion
	}
	return src, dst, passed
}

// isGroup says whether an address stands for many hosts. The broadcast of a
// peer's subnet is not among them: only that peer knows it for one.
func isGroup(a netip.Addr) bool {
	return a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// overhead is what the outer headers take from the underlay's MTU, in bytes.
func overhead(outer netip.Addr) int {
	// The two IP headers differ in size.
	if outer.Is4() {
		return ipv4HeaderLen + udpHeaderLen
	}
	return ipv6HeaderLen + udpHeaderLen
}
