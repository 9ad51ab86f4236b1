package udp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// TestWireCarriesBarePackets captures the wire as a network card would see it, while TCP and bursts
// of UDP cross that the containers' kernels pass on in super packets. The wire carries bare IP
// packets, one per datagram, complete and with correct checksums. The containers receive what the
// wire carried.
func TestWireCarriesBarePackets(t *testing.T) {
	t.Parallel()
	for _, outer := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d outside", outer), func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, outer)
			captures := map[*host]*recording{}
			for _, h := range []*host{a, b} {
				asOnAWire(h.ns, "eth0")
				asOnAWire(h.ns, "c0")
				captures[h] = record(t, h.ns, "c0")
			}
			wire := record(t, a.ns, "eth0")
			for i, addr := range inner(1) {
				client, server := connect(t, b.container, a.container, addr, unusualHeaders(addr)...)
				if err := pour(client, server, randomBytes(512<<10)); err != nil {
					t.Error(err)
				}
				crossInBursts(t, a, b, i)
			}
			for _, addr := range inner(2) {
				client, server := connect(t, a.container, b.container, addr)
				if err := pour(client, server, randomBytes(1<<20)); err != nil {
					t.Error(err)
				}
				ping(t, a.container, addr, "-s", "4000")
			}
			for _, addr := range []string{"10.5.2.0", "fd00:5:0:2::"} { // the hosts' own
				client, server := connect(t, a.ns, b.ns, addr)
				if err := pour(client, server, randomBytes(256<<10)); err != nil {
					t.Error(err)
				}
			}
			// The wire comes last: TCP may still send acknowledgements, and all that arrived was on the wire before.
			atA, atB := sentOf(captures[a].stop()), sentOf(captures[b].stop())
			out, in := checkWire(t, wire.stop(), outer)
			checkArrived(t, "at host 2", out, 1, atB)
			checkArrived(t, "at host 1", in, 1, atA)
		})
	}
}

// unusualHeaders returns options that make a TCP socket's packets unusual: longer headers before
// the segments, and for IPv4 no DF, so that each needs its own identification. Segments are small,
// because Linux does not adapt to a path's MTU when they have extension headers, even without an
// overlay.
func unusualHeaders(addr string) []option {
	if netip.MustParseAddr(addr).Is6() {
		return []option{{unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, paddingOptions}, number(unix.IPPROTO_TCP, unix.TCP_MAXSEG, 1300)}
	}
	return []option{
		number(unix.IPPROTO_TCP, unix.TCP_MAXSEG, 1300),
		number(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT),
		{unix.IPPROTO_IP, unix.IP_OPTIONS, "\x01\x01\x01\x01"},
	}
}

// paddingOptions is an IPv6 options header, hop-by-hop or destination, that contains only padding
// (RFC 8200, 4.2).
const paddingOptions = "\x00\x00\x01\x04\x00\x00\x00\x00"

// crossInBursts sends numbered datagrams both ways and waits for those that arrive.
func crossInBursts(t *testing.T, a, b *host, family int) {
	t.Helper()
	var group errgroup.Group
	for _, way := range []struct{ from, to *host }{{a, b}, {b, a}} {
		var options []option
		if family == 0 && way.from == b {
			options = append(options, number(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT))
		}
		from := listenUDP(t, way.from.container, net.JoinHostPort(inner(way.from.n)[family], "0"), options...)
		to := listenUDP(t, way.to.container, net.JoinHostPort(inner(way.to.n)[family], "0"))
		at := netip.MustParseAddrPort(to.LocalAddr().String())
		group.Go(func() error {
			buf := make([]byte, maxPacket)
			var seq, next uint32
			for round := range 4 {
				for _, burst := range bursts(1400) {
					first := seq
					var err error
					if seq, err = burst.send(from, at, byte(round), seq, round%2 == 0); err != nil {
						return err
					}
					// A pair of containers connected only through a process is not flooded, so none
					// may be lost.
					for i, size := range burst.sizes() {
						n, _, err := to.ReadFromUDPAddrPort(buf)
						if err != nil {
							return fmt.Errorf("datagram %d of %+v: %w", i, burst, err)
						}
						_, got, err := numberOf(buf[:n])
						if err != nil || got != next || n != size {
							return fmt.Errorf("got %d bytes, number %d, want %d bytes, number %d: %w", n, got, size, first+uint32(i), err)
						}
						next++
					}
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// checkWire compares every datagram of a capture with the wire format, and returns what host 1 sent
// and received, unwrapped.
func checkWire(t *testing.T, packets []captured, outer int) (out, in [][]byte) {
	t.Helper()
	seen := map[string]int{}
	used := ids{}
	for _, c := range packets {
		whole, err := readPacket(c.pkt)
		if whole.proto == protoICMP6 {
			continue // neighbour discovery
		}
		if err != nil {
			t.Fatalf("outer packet: %v", err)
		}
		from, to := underlayAddr(outer, 2), underlayAddr(outer, 1)
		if c.sent {
			from, to = to, from
		}
		ports := [2]uint16{binary.BigEndian.Uint16(whole.payload), binary.BigEndian.Uint16(whole.payload[2:])}
		switch {
		case whole.proto != protoUDP || whole.src.String() != from || whole.dst.String() != to || ports != [2]uint16{8285, 8285}:
			t.Fatalf("from %s to %s, protocol %d, ports %v", whole.src, whole.dst, whole.proto, ports)
		case len(c.pkt) > 1500 || whole.fragment || whole.df || whole.unsummed && outer == 6 || len(whole.options) != 0:
			t.Fatalf("%d bytes, outer header %+v", len(c.pkt), whole)
		case whole.tos != 0:
			// Congestion marks set on an outer header are not copied to the inner one, so the outer
			// header must not enable them (RFC 6040).
			t.Fatalf("outer TOS %#x", whole.tos)
		}
		pkt := whole.payload[8:]
		p, err := readPacket(pkt)
		if err != nil {
			t.Fatalf("inner packet: %v", err)
		}
		if err := used.add(p); err != nil {
			t.Fatalf("inner packet: %v", err)
		}
		kind := fmt.Sprintf("protocol %d in %d bytes of IP", p.proto, p.src.BitLen()/8)
		if p.fragment {
			kind = fmt.Sprintf("fragment in %d bytes of IP", p.src.BitLen()/8)
		}
		seen[kind]++
		ttl := byte(63)
		if first := p.src.AsSlice(); first[len(first)-1] == 0 { // the host's own
			ttl = 64
			seen["of a host"]++
		}
		if p.ttl != ttl && p.proto != p.icmp() {
			t.Fatalf("TTL %d in %s from %s", p.ttl, kind, p.src)
		}
		if c.sent {
			out = append(out, pkt)
		} else {
			in = append(in, pkt)
		}
	}
	for kind, least := range map[string]int{
		"protocol 6 in 4 bytes of IP": 1125, "protocol 17 in 4 bytes of IP": 1800, "fragment in 4 bytes of IP": 6,
		"of a host": 360, "protocol 6 in 16 bytes of IP": 1125, "protocol 17 in 16 bytes of IP": 1800, "fragment in 16 bytes of IP": 6,
	} {
		if seen[kind] < least {
			t.Errorf("%d packets captured of %s, want %d: %v", seen[kind], kind, least, seen)
		}
	}
	return out, in
}

// ids finds identifications that are reused too soon (RFC 6864). It checks only TCP: Linux itself
// gives a burst of datagrams, except for the first, the identifications of the next burst.
type ids map[string][]uint16

func (u ids) add(p ipPacket) error {
	if p.src.Is6() || p.df || p.fragment || p.proto != protoTCP {
		return nil
	}
	flow := flowOf(p)
	recent := u[flow]
	if slices.Contains(recent, p.id) {
		return fmt.Errorf("identification %#x is used twice within %d packets of %s", p.id, len(recent), flow)
	}
	if len(recent) == 64 {
		recent = recent[1:]
	}
	u[flow] = append(recent, p.id)
	return nil
}

// sentOf returns the packets that a namespace sent.
func sentOf(packets []captured) (sent [][]byte) {
	for _, c := range packets {
		if c.sent {
			sent = append(sent, c.pkt)
		}
	}
	return sent
}

// checkArrived checks that the packets that arrived are those seen hops routers earlier, each byte
// the same. Packets may be lost on the way, but not created. In a flow they keep their order, with
// a few exceptions: when a thread changes processors between two packets, the kernel of a busy
// machine may let the second one overtake.
func checkArrived(t *testing.T, where string, before [][]byte, hops byte, arrived [][]byte) {
	t.Helper()
	flows := map[string][]string{}
	of := func(pkt []byte) string {
		p, err := readPacket(pkt)
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		// The kernel reassembles fragments and fragments the packets again.
		if p.fragment || p.proto != protoTCP && p.proto != protoUDP {
			return ""
		}
		return flowOf(p)
	}
	for _, pkt := range before {
		if flow := of(pkt); flow != "" {
			flows[flow] = append(flows[flow], essence(pkt, 0))
		}
	}
	count, late := 0, 0
	skipped := map[string]int{} // how often, by packet
	for _, pkt := range arrived {
		flow := of(pkt)
		if flow == "" {
			continue
		}
		rest, want := flows[flow], essence(pkt, hops)
		count++
		if skipped[want] > 0 {
			skipped[want]--
			late++
			continue
		}
		at := slices.Index(rest, want)
		if at < 0 {
			t.Fatalf("%s: packet %d, of %s, is none that was sent:\n%.100x", where, count, flow, pkt)
		}
		for _, skip := range rest[:at] {
			skipped[skip]++
		}
		flows[flow] = rest[at+1:]
	}
	if late > count/50 {
		t.Errorf("%s: %d packets of %d were overtaken", where, late, count)
	}
	if count < len(before)/2 {
		t.Errorf("%s: %d packets of %d", where, count, len(before))
	}
}

func flowOf(p ipPacket) string {
	if p.proto == protoTCP || p.proto == protoUDP {
		return fmt.Sprintf("%s %s protocol %d ports %x", p.src, p.dst, p.proto, p.payload[:4])
	}
	return fmt.Sprintf("%s %s protocol %d", p.src, p.dst, p.proto)
}

// essence returns a packet as it was hops routers earlier, without the identification where it has
// no meaning: in a packet that is not a fragment and must not become one (RFC 6864).
func essence(pkt []byte, hops byte) string {
	pkt = append([]byte(nil), pkt...)
	if pkt[0]>>4 == 6 {
		pkt[7] += hops
		return string(pkt)
	}
	pkt[8] += hops
	pkt[10], pkt[11] = 0, 0 // the checksum was verified before
	if pkt[6]&0x40 != 0 {
		pkt[4], pkt[5] = 0, 0
	}
	return string(pkt)
}
