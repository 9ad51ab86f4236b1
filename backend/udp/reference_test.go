package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Reference code for IP packets. It shares nothing with the backend, and is simple rather than
// fast.

const (
	protoICMP  = 1
	protoTCP   = 6
	protoUDP   = 17
	protoICMP6 = 58
)

const (
	tcpFIN = 1 << iota
	tcpSYN
	tcpRST
	tcpPSH
	tcpACK
	tcpURG
	tcpECE
	tcpCWR
)

// ipPacket is one packet of either family.
type ipPacket struct {
	src, dst netip.Addr
	ttl, tos byte
	proto    byte   // of the payload, behind all extension headers
	id       uint16 // IPv4 only
	df       bool   // IPv4 only
	fragment bool   // a part of a larger packet
	options  []byte // of IPv4; extension headers of IPv6
	next     byte   // IPv6: number of the first extension header
	payload  []byte // transport header and data
	unsummed bool   // UDP without a checksum
}

// sum16 computes the RFC 1071 sum of the parts; all but the last have an even length.
func sum16(parts ...[]byte) uint16 {
	var sum uint64
	for _, b := range parts {
		for ; len(b) > 1; b = b[2:] {
			sum += uint64(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint64(b[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// pseudo returns the part of the IP header that the transport checksum covers.
func (p ipPacket) pseudo() []byte {
	b := append(p.src.AsSlice(), p.dst.AsSlice()...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(p.payload)))
	return append(b, 0, 0, 0, p.proto)
}

// transportSum returns the sum over the payload, including its checksum: 0 is correct.
func (p ipPacket) transportSum() uint16 {
	if p.proto == protoICMP {
		return sum16(p.payload)
	}
	return sum16(p.pseudo(), p.payload)
}

// readPacket parses a packet. All its lengths must match the bytes and all its checksums must be
// correct.
func readPacket(b []byte) (ipPacket, error) {
	var p ipPacket
	var err error
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		p, err = readIPv4(b)
	case len(b) >= 40 && b[0]>>4 == 6:
		p, err = readIPv6(b)
	default:
		err = errors.New("not an IP packet")
	}
	if err == nil && !p.fragment {
		err = p.checkTransport()
	}
	if err != nil {
		return p, fmt.Errorf("%d bytes %.60x: %w", len(b), b, err)
	}
	return p, nil
}

func readIPv4(b []byte) (ipPacket, error) {
	header := int(b[0]&15) * 4
	if header < 20 || header > len(b) {
		return ipPacket{}, fmt.Errorf("IPv4 header of %d bytes", header)
	}
	if total := int(binary.BigEndian.Uint16(b[2:])); total != len(b) {
		return ipPacket{}, fmt.Errorf("IPv4 total length %d", total)
	}
	if sum16(b[:header]) != 0 {
		return ipPacket{}, errors.New("IPv4 header checksum")
	}
	where := binary.BigEndian.Uint16(b[6:])
	return ipPacket{
		src: netip.AddrFrom4([4]byte(b[12:])), dst: netip.AddrFrom4([4]byte(b[16:])),
		ttl: b[8], tos: b[1], proto: b[9], id: binary.BigEndian.Uint16(b[4:]),
		df: where&0x4000 != 0, fragment: where&0x3fff != 0,
		options: b[20:header], payload: b[header:],
	}, nil
}

func readIPv6(b []byte) (ipPacket, error) {
	if length := int(binary.BigEndian.Uint16(b[4:])); length != len(b)-40 {
		return ipPacket{}, fmt.Errorf("IPv6 payload length %d", length)
	}
	p := ipPacket{
		src: netip.AddrFrom16([16]byte(b[8:])), dst: netip.AddrFrom16([16]byte(b[24:])),
		ttl: b[7], tos: byte(binary.BigEndian.Uint16(b) >> 4), proto: b[6], next: b[6], payload: b[40:],
	}
	for {
		length := 8
		switch p.proto {
		case 0, 43, 60: // hop-by-hop options, routing, destination options
			if len(p.payload) >= 8 {
				length += int(p.payload[1]) * 8
			}
		case 44:
			p.fragment = true
		default:
			p.options = b[40 : len(b)-len(p.payload)]
			return p, nil
		}
		if len(p.payload) < length {
			return p, errors.New("IPv6 extension header is cut")
		}
		p.proto, p.payload = p.payload[0], p.payload[length:]
	}
}

func (p *ipPacket) checkTransport() error {
	least, known := map[byte]int{protoICMP: 8, protoICMP6: 4, protoTCP: 20, protoUDP: 8}[p.proto]
	if !known {
		return nil
	}
	if len(p.payload) < least {
		return fmt.Errorf("protocol %d: %d bytes", p.proto, len(p.payload))
	}
	if p.proto == protoUDP {
		if length := int(binary.BigEndian.Uint16(p.payload[4:])); length != len(p.payload) {
			return fmt.Errorf("UDP length %d of %d", length, len(p.payload))
		}
		p.unsummed = p.payload[6] == 0 && p.payload[7] == 0
	}
	if !p.unsummed && p.transportSum() != 0 {
		return fmt.Errorf("checksum of protocol %d", p.proto)
	}
	return nil
}

// bytes encodes a packet, with its checksums.
func (p ipPacket) bytes() []byte {
	p.payload = append([]byte(nil), p.payload...)
	if at, ok := map[byte]int{protoICMP: 2, protoICMP6: 2, protoTCP: 16, protoUDP: 6}[p.proto]; ok && !p.fragment {
		binary.BigEndian.PutUint16(p.payload[at:], 0)
		if !p.unsummed {
			sum := p.transportSum()
			if sum == 0 && p.proto == protoUDP {
				sum = 0xffff // RFC 768: zero means that there is none
			}
			binary.BigEndian.PutUint16(p.payload[at:], sum)
		}
	}
	if p.src.Is6() {
		next := p.proto
		if len(p.options) > 0 {
			next = p.next
		}
		b := []byte{0x60 | p.tos>>4, p.tos << 4, 0, 0, 0, 0, next, p.ttl}
		binary.BigEndian.PutUint16(b[4:], uint16(len(p.options)+len(p.payload)))
		b = append(append(b, p.src.AsSlice()...), p.dst.AsSlice()...)
		return append(append(b, p.options...), p.payload...)
	}
	header := 20 + len(p.options)
	b := []byte{0x40 | byte(header/4), p.tos, 0, 0, 0, 0, 0, 0, p.ttl, p.proto, 0, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(header+len(p.payload)))
	binary.BigEndian.PutUint16(b[4:], p.id)
	if p.df {
		b[6] = 0x40
	}
	b = append(append(append(b, p.src.AsSlice()...), p.dst.AsSlice()...), p.options...)
	binary.BigEndian.PutUint16(b[10:], sum16(b))
	return append(b, p.payload...)
}

// icmp returns the protocol number of ICMP in the packet's family.
func (p ipPacket) icmp() byte {
	if p.src.Is6() {
		return protoICMP6
	}
	return protoICMP
}

// udpDatagram returns a UDP header, without its checksum, and data.
func udpDatagram(src, dst uint16, data []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, src)
	b = binary.BigEndian.AppendUint16(b, dst)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(data)))
	return append(append(b, 0, 0), data...)
}

// tcpSegment is one TCP header and its data.
type tcpSegment struct {
	src, dst uint16
	seq, ack uint32
	flags    byte
	window   uint16
	options  []byte // a multiple of four bytes
	data     []byte
}

func readTCP(b []byte) (tcpSegment, error) {
	header := int(b[12]>>4) * 4
	if header < 20 || header > len(b) {
		return tcpSegment{}, fmt.Errorf("TCP header of %d bytes in %d", header, len(b))
	}
	return tcpSegment{
		src: binary.BigEndian.Uint16(b), dst: binary.BigEndian.Uint16(b[2:]),
		seq: binary.BigEndian.Uint32(b[4:]), ack: binary.BigEndian.Uint32(b[8:]),
		flags: b[13], window: binary.BigEndian.Uint16(b[14:]),
		options: b[20:header], data: b[header:],
	}, nil
}

func (s tcpSegment) bytes() []byte {
	b := binary.BigEndian.AppendUint16(nil, s.src)
	b = binary.BigEndian.AppendUint16(b, s.dst)
	b = binary.BigEndian.AppendUint32(b, s.seq)
	b = binary.BigEndian.AppendUint32(b, s.ack)
	b = append(b, byte(20+len(s.options))<<2, s.flags)
	b = binary.BigEndian.AppendUint16(b, s.window)
	return append(append(append(b, 0, 0, 0, 0), s.options...), s.data...)
}
