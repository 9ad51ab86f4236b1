package udp

import (
	"encoding/binary"
	"net/netip"
)

const (
	// maxPacket is the length of the longest IP packet without jumbograms. It is more than the
	// longest UDP payload, so a buffer of this size never truncates.
	maxPacket = 65535

	ipv4HeaderLen = 20
	ipv6HeaderLen = 40
	udpHeaderLen  = 8
)

// parsePacket reads the addresses of one bare IP packet. It accepts a packet only if its header is
// complete and its length field equals len(pkt): the wire format has no padding, so any other
// packet was truncated, padded or forged. Options and extension headers are left to the kernel (RFC
// 791, RFC 8200).
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

// isGroup reports whether an address stands for many hosts. It does not detect the broadcast
// address of a peer's subnet, which only that peer knows.
func isGroup(a netip.Addr) bool {
	return a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// overhead returns the bytes that the outer headers take from the underlay's MTU.
func overhead(outer netip.Addr) int {
	if outer.Is4() {
		return ipv4HeaderLen + udpHeaderLen
	}
	return ipv6HeaderLen + udpHeaderLen
}
