package udp

import (
	"fmt"
	"net/netip"
	"time"
)

const (
	plainSeq   = 0xffff_f000 // wraps soon
	sinkPort   = 5001
	sourcePort = 5002
)

// mss is the TCP option for a segment size that is too large for the overlay.
var mss = string([]byte{2, 4, 1460 >> 8, 1460 & 0xff})

// segment returns the next TCP segment to a port.
func (p *plainPeer) segment(port uint16) (ipPacket, tcpSegment, error) {
	for {
		pkt, err := p.receive(protoTCP)
		if err != nil {
			return pkt, tcpSegment{}, err
		}
		s, err := readTCP(pkt.payload)
		if err != nil || s.dst == port {
			return pkt, s, err
		}
	}
}

// sink accepts one TCP connection, from its first packet to its end, and returns the data sent over
// it.
func (p *plainPeer) sink() ([]byte, error) {
	var data []byte
	var next uint32 // expected
	for {
		pkt, s, err := p.segment(sinkPort)
		if err != nil {
			return data, fmt.Errorf("after %d bytes: %w", len(data), err)
		}
		reply := tcpSegment{src: s.dst, dst: s.src, seq: plainSeq + 1, flags: tcpACK, window: 0xffff}
		switch {
		case s.flags&tcpSYN != 0:
			next = s.seq + 1
			reply.seq, reply.flags, reply.options = plainSeq, tcpSYN|tcpACK, []byte(mss)
		case s.flags&tcpRST != 0 || s.flags&tcpACK == 0:
			return data, fmt.Errorf("after %d bytes: %+v", len(data), s)
		case len(s.data) == 0 && s.flags&tcpFIN == 0:
			continue // an acknowledgement
		case s.seq == next:
			data = append(data, s.data...)
			next += uint32(len(s.data))
			if s.flags&tcpFIN != 0 {
				next++
				reply.flags |= tcpFIN
			}
		}
		reply.ack = next
		if err := p.send(pkt.answer(reply.bytes())); err != nil {
			return data, err
		}
		if reply.flags&tcpFIN != 0 {
			return data, nil
		}
	}
}

// source opens a TCP connection and sends data over it, in bursts of segments. Some are sent twice,
// first with a wrong byte and the checksum of the correct segment.
func (p *plainPeer) source(from netip.Addr, to netip.AddrPort, data []byte) error {
	send := func(s tcpSegment, spoil bool) error {
		s.src, s.dst, s.window, s.flags = sourcePort, to.Port(), 0xffff, s.flags|tcpACK
		pkt := ipPacket{src: from, dst: to.Addr(), proto: protoTCP, ttl: 64, df: true, id: uint16(s.seq >> 8), payload: s.bytes()}.bytes()
		if spoil {
			pkt[len(pkt)-1] ^= 0xff
		}
		return p.send(pkt)
	}
	syn := tcpSegment{src: sourcePort, dst: to.Port(), seq: plainSeq, flags: tcpSYN, window: 0xffff, options: []byte(mss)}
	if err := p.send(ipPacket{src: from, dst: to.Addr(), proto: protoTCP, ttl: 64, payload: syn.bytes()}.bytes()); err != nil {
		return err
	}
	_, s, err := p.segment(sourcePort)
	if err != nil || s.flags != tcpSYN|tcpACK || s.ack != plainSeq+1 {
		return fmt.Errorf("answer to SYN %+v: %w", s, err)
	}
	ack, window := s.seq+1, int(s.window)
	sizes := []int{1400, 1400, 1400, 1400, 1400, 1400, 1400, 1400, 1400, 1400, 1400, 300, 1, 536, 536, 536, 537}
	for sent, count := 0, 0; sent < len(data); {
		at := sent
		for burst := 0; burst < 40 && at < len(data); burst++ {
			size := min(sizes[count%len(sizes)], len(data)-at)
			if at-sent+size > window {
				break
			}
			s := tcpSegment{seq: plainSeq + 1 + uint32(at), ack: ack, data: data[at : at+size]}
			if count++; count%13 == 0 {
				s.flags = tcpPSH
			}
			if count%29 == 0 {
				if err := send(s, true); err != nil {
					return err
				}
			}
			if err := send(s, false); err != nil {
				return err
			}
			at += size
		}
		before := sent
		if sent, window, err = p.acknowledged(before, at, window); err != nil {
			return fmt.Errorf("after %d bytes: %w", before, err)
		}
	}
	if err := send(tcpSegment{seq: plainSeq + 1 + uint32(len(data)), ack: ack, flags: tcpFIN}, false); err != nil {
		return err
	}
	for {
		pkt, s, err := p.segment(sourcePort)
		if err != nil {
			return fmt.Errorf("end: %w", err)
		}
		if s.flags&tcpFIN != 0 {
			last := tcpSegment{src: sourcePort, dst: s.src, seq: s.ack, ack: s.seq + 1, flags: tcpACK, window: 0xffff}
			return p.send(pkt.answer(last.bytes()))
		}
	}
}

// acknowledged waits until all bytes up to to are acknowledged, or until no segment arrives for so
// long that the rest has to be sent again.
func (p *plainPeer) acknowledged(from, to, window int) (int, int, error) {
	deadline := time.Now().Add(trafficTime)
	defer func() { _ = p.conn.SetReadDeadline(deadline) }()
	for from < to {
		if err := p.conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return from, window, err
		}
		_, s, err := p.segment(sourcePort)
		switch {
		case nothingCame(err) && time.Now().Before(deadline):
			return from, window, nil
		case err != nil:
			return from, window, err
		case s.flags&tcpRST != 0:
			return from, window, fmt.Errorf("reset")
		}
		if acked := int(s.ack - (plainSeq + 1)); acked > from && acked <= to {
			from, window = acked, int(s.window)
		}
	}
	return from, window, nil
}
