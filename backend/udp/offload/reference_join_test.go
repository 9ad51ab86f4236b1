package offload

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// refFlow returns the key of a packet's flow: addresses, protocol and ports. The flow is unknown
// for packets with options or extension headers, fragments, truncated packets and other protocols;
// then the key is the addresses alone.
func refFlow(pkt []byte) (hosts, flow string, known bool) {
	at, proto := 20, byte(0)
	if pkt[0]>>4 == 4 {
		hosts = "4" + string(pkt[12:20])
		if pkt[0] == 0x45 && binary.BigEndian.Uint16(pkt[6:])&0xbfff == 0 {
			proto = pkt[9]
		}
	} else {
		hosts, at, proto = "6"+string(pkt[8:40]), 40, pkt[6]
	}
	transport := pkt[at:]
	if proto == 17 && len(transport) >= 8 {
		return hosts, hosts + "u" + string(transport[:4]), true
	}
	if proto == 6 && len(transport) >= 20 {
		if n := int(transport[12]>>4) * 4; n >= 20 && n <= len(transport) {
			return hosts, hosts + "t" + string(transport[:4]), true
		}
	}
	return hosts, "", false
}

// refFit reports whether a packet of a known flow may be part of a joined frame, apart from its
// checksums. last reports whether it must be the last one.
func refFit(pkt []byte) (fits, last bool) {
	at, proto := refTransport(pkt)
	if len(pkt) == refHeaders(pkt) {
		return false, false
	}
	if proto == 17 {
		return int(binary.BigEndian.Uint16(pkt[at+4:])) == len(pkt)-at && !bytes.Equal(pkt[at+6:at+8], []byte{0, 0}), false
	}
	flags := binary.BigEndian.Uint16(pkt[at+12:]) & 0x0fff
	return flags == 0x10 || flags == 0x18, flags == 0x18
}

// refRight reports whether a packet has the checksums that segmentation makes.
func refRight(pkt []byte) bool {
	right := bytes.Clone(pkt)
	refFinish(right)
	return bytes.Equal(pkt, right)
}

// refFollows reports whether segmentation of a super packet could have produced next after the
// given packets, apart from its checksums.
func refFollows(pkts [][]byte, next []byte) bool {
	begin, last := refHeaders(pkts[0]), pkts[len(pkts)-1]
	_, ends := refFit(last)
	if ends || len(last) != len(pkts[0]) || len(next) > len(last) {
		return false
	}
	joined := bytes.Clone(pkts[0])
	for _, pkt := range append(slices.Clone(pkts[1:]), next) {
		if refHeaders(pkt) != begin {
			return false
		}
		joined = append(joined, pkt[begin:]...)
	}
	at, proto := refTransport(next)
	if len(joined) > 65535 || len(pkts) == 128 || proto == 17 && len(pkts) == 64 {
		return false
	}
	if _, push := refFit(next); proto == 6 && push {
		joined[at+13] |= 0x08
	}
	right := bytes.Clone(next)
	refFinish(right)
	cut := refSplit(joined, len(pkts[0])-begin)
	return sameButID(cut[len(cut)-1], right)
}

// refJoin returns which frame each packet goes into.
func refJoin(pkts [][]byte) (into []int) {
	type open struct {
		frame       int
		hosts, flow string
		pkts        [][]byte
	}
	var opens []*open // oldest first
	frames := 0
	for _, pkt := range pkts {
		hosts, flow, known := refFlow(pkt)
		if !known {
			opens = slices.DeleteFunc(opens, func(o *open) bool { return o.hosts == hosts })
			into, frames = append(into, frames), frames+1
			continue
		}
		fits, last := refFit(pkt)
		keep := fits && !last
		at := slices.IndexFunc(opens, func(o *open) bool { return o.flow == flow })
		if at >= 0 {
			o := opens[at]
			if fits && refFollows(o.pkts, pkt) && refRight(o.pkts[0]) {
				if refRight(pkt) {
					o.pkts, into = append(o.pkts, pkt), append(into, o.frame)
					if last || len(pkt) < len(o.pkts[0]) {
						opens = slices.Delete(opens, at, at+1)
					}
					continue
				}
				keep = false
			}
			opens = slices.Delete(opens, at, at+1)
		}
		if keep {
			if len(opens) == 8 {
				opens = opens[1:]
			}
			opens = append(opens, &open{frame: frames, hosts: hosts, flow: flow, pkts: [][]byte{pkt}})
		}
		into, frames = append(into, frames), frames+1
	}
	return into
}
