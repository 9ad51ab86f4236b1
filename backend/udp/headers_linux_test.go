package udp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Not in x/sys: from linux/udp.h.
const (
	udpNoCheck6Tx = 101
	udpNoCheck6Rx = 102
)

// sending is a way to send datagrams.
type sending struct {
	name    string
	options []option
	plain   bool // only one datagram at a time
}

// sendings returns the ways to send, by family.
func sendings() [2][]sending {
	return [2][]sending{
		{
			{name: "DF"},
			{name: "no DF", options: []option{number(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)}, plain: true},
			{name: "no checksum", options: []option{number(unix.SOL_SOCKET, unix.SO_NO_CHECK, 1)}, plain: true},
			{name: "options", options: []option{{unix.IPPROTO_IP, unix.IP_OPTIONS, "\x01\x01\x01\x00"}}},
			{name: "router alert", options: []option{{unix.IPPROTO_IP, unix.IP_OPTIONS, "\x94\x04\x00\x00"}}},
			{name: "TTL", options: []option{number(unix.IPPROTO_IP, unix.IP_TTL, 17)}},
			{name: "TOS", options: []option{number(unix.IPPROTO_IP, unix.IP_TOS, 0xbb)}},
		},
		{
			{name: "plainly"},
			{name: "no checksum", options: []option{number(unix.SOL_UDP, udpNoCheck6Tx, 1)}, plain: true},
			{name: "hop-by-hop options", options: []option{{unix.IPPROTO_IPV6, unix.IPV6_HOPOPTS, paddingOptions}}},
			{name: "destination options", options: []option{{unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, paddingOptions}}},
			{name: "hop limit", options: []option{number(unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 17)}},
			{name: "traffic class", options: []option{number(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 0xbb)}},
		},
	}
}

// TestHeadersCrossUnchanged compares what leaves one container with what reaches the other:
// everything is equal, except for two hops.
func TestHeadersCrossUnchanged(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, 4)
	asOnAWire(a.container, "eth0")
	asOnAWire(b.ns, "c0")
	for _, h := range []*host{a, b} {
		h.container.Sh(fmt.Sprint("ip link set eth0 mtu ", h.state.MTU))
	}
	for _, addr := range inner(2) { // packets that wait for a neighbour's address may be overtaken
		ping(t, a.container, addr)
	}
	for family, addr := range inner(2) {
		to := listenUDP(t, b.container, net.JoinHostPort(addr, "0"), number(unix.SOL_UDP, udpNoCheck6Rx, 1))
		at := netip.MustParseAddrPort(to.LocalAddr().String())
		for _, tt := range sendings()[family] {
			t.Run(fmt.Sprintf("%s, %s", addr, tt.name), func(t *testing.T) {
				crossUnchanged(t, a, b, family, func() {
					from := listenUDP(t, a.container, net.JoinHostPort(inner(1)[family], "0"), tt.options...)
					buf := make([]byte, maxPacket)
					for _, segmented := range []bool{false, true} {
						if segmented && tt.plain {
							continue // Linux creates no such super packets
						}
						many := burst{600, 20, 9}
						if _, err := many.send(from, at, 1, 0, segmented); err != nil {
							t.Fatal(err)
						}
						for range many.sizes() {
							if _, err := to.Read(buf); err != nil {
								t.Fatal(err)
							}
						}
					}
				})
			})
		}
		t.Run("ping "+addr, func(t *testing.T) {
			crossUnchanged(t, a, b, family, func() {
				for _, options := range []string{"-M do", "-M dont", "-Q 1", "-Q 2", "-Q 3", "-Q 0xb8", "-t 9", "-s 0", "-s 1201"} {
					ping(t, a.container, addr, options)
				}
			})
		})
		t.Run("neither TCP nor UDP, "+addr, func(t *testing.T) {
			crossUnchanged(t, a, b, family, func() {
				var conn, there net.Conn
				inNS(t, a.container, func() (err error) {
					conn, err = net.Dial([]string{"ip4:253", "ip6:253"}[family], addr)
					return err
				})
				inNS(t, b.container, func() (err error) {
					there, err = net.ListenIP([]string{"ip4:253", "ip6:253"}[family], &net.IPAddr{IP: net.ParseIP(addr)})
					return err
				})
				defer conn.Close()
				defer there.Close()
				for _, size := range []int{1, 2, 600, 600, 600, 600, 9} {
					if _, err := conn.Write(randomBytes(size)); err != nil {
						t.Fatal(err)
					}
					if _, err := there.Read(make([]byte, maxPacket)); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

// crossUnchanged compares the packets from container to container while act runs, which waits for
// their arrival.
func crossUnchanged(t *testing.T, a, b *host, family int, act func()) {
	t.Helper()
	out, in := record(t, a.container, "eth0"), record(t, b.container, "eth0")
	act()
	from, to := netip.MustParseAddr(inner(1)[family]), netip.MustParseAddr(inner(2)[family])
	matches := func(c captured) bool {
		p, _ := readPacket(c.pkt)
		return p.src == from && p.dst == to
	}
	await(func() bool { return in.count(matches) >= out.count(matches) }) // ping may send more than it waits for
	lists := [2][]string{}
	for i, packets := range [][]captured{out.stop(), in.stop()} {
		for _, c := range packets {
			_, err := readPacket(c.pkt)
			if !matches(c) {
				continue
			}
			if err != nil {
				t.Fatalf("%d hops on: %v", 2*i, err)
			}
			lists[i] = append(lists[i], essence(c.pkt, byte(2*i)))
		}
	}
	if len(lists[0]) == 0 || len(lists[0]) != len(lists[1]) {
		t.Fatalf("%d packets left, %d arrived", len(lists[0]), len(lists[1]))
	}
	for i, want := range lists[0] {
		if got := lists[1][i]; got != want {
			t.Fatalf("packet %d arrived as\n%.100x, left as\n%.100x", i, got, want)
		}
	}
}

// TestRecordRoute checks that options that ask routers to write into them are filled in by both
// hosts, in both directions.
func TestRecordRoute(t *testing.T) {
	t.Parallel()
	a, _ := newHosts(t, 4)
	hops := regexp.MustCompile(`\t(10\.\S+)`)
	for options, want := range map[string][]string{
		"-R":           {"10.5.1.2", "10.5.1.0", "10.5.2.1", "10.5.2.2", "10.5.2.2", "10.5.2.0", "10.5.1.1", "10.5.1.2"},
		"-T tsandaddr": {"10.5.1.2", "10.5.1.1", "10.5.2.0", "10.5.2.2"},
	} {
		out := ping(t, a.container, "10.5.2.2", options)
		first, _, _ := strings.Cut(out, "icmp_seq=2")
		var got []string
		for _, hop := range hops.FindAllStringSubmatch(first, -1) {
			got = append(got, hop[1])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v:\n%s", got, want, out)
		}
	}
}

// tosOf returns the traffic class that came with a datagram.
func tosOf(oob []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0, err
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TOS:
			return int(m.Data[0]), nil
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_TCLASS:
			return int(binary.NativeEndian.Uint32(m.Data)), nil
		}
	}
	return 0, fmt.Errorf("no traffic class in %x", oob)
}

// TestECNOfEachDatagram checks that each packet keeps its own congestion mark, also within one
// burst of a flow.
func TestECNOfEachDatagram(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, 4)
	for family, addr := range inner(2) {
		level := []int{unix.IPPROTO_IP, unix.IPPROTO_IPV6}[family]
		receiving := []int{unix.IP_RECVTOS, unix.IPV6_RECVTCLASS}[family]
		kind := []int{unix.IP_TOS, unix.IPV6_TCLASS}[family]
		from := listenUDP(t, a.container, net.JoinHostPort(inner(1)[family], "0"))
		to := listenUDP(t, b.container, net.JoinHostPort(addr, "0"), number(level, receiving, 1))
		at := netip.MustParseAddrPort(to.LocalAddr().String())
		ping(t, a.container, addr) // otherwise most would wait for a neighbour's address, where there is room for few
		var want []int
		var seq uint32
		for i := range 40 {
			tos := []int{0, 1, 2, 3, 0xb8, 0xbb}[i%6]
			b := burst{size: 700, count: 1 + i%5}
			var err error
			if seq, err = b.send(from, at, 1, seq, i%2 == 0, cmsg(level, kind, binary.NativeEndian.AppendUint32(nil, uint32(tos))...)); err != nil {
				t.Fatal(err)
			}
			for range b.count {
				want = append(want, tos)
			}
		}
		buf, oob := make([]byte, maxPacket), make([]byte, 256)
		for i, tos := range want {
			n, noob, _, _, err := to.ReadMsgUDPAddrPort(buf, oob)
			if err != nil {
				t.Fatal(err)
			}
			_, seq, err := numberOf(buf[:n])
			if err != nil || int(seq) != i {
				t.Fatalf("datagram %d, want %d: %v", seq, i, err)
			}
			if got, err := tosOf(oob[:noob]); err != nil || got != tos {
				t.Errorf("datagram %d to %s: TOS %#x, want %#x, %v", i, addr, got, tos, err)
			}
		}
	}
}

// TestECNOfTCP checks that a TCP connection with ECN learns of a mark that the first host made, and
// reports it once: the segments of one super packet do not all repeat it.
func TestECNOfTCP(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, 4)
	asOnAWire(b.ns, "c0")
	for _, h := range []*host{a, b} {
		h.container.Sh("sysctl -qw net.ipv4.tcp_ecn=1")
	}
	a.ns.Sh(`nft -f - <<END
table inet marks {
	chain forward {
		type filter hook forward priority 0
		ip ecn ect0 numgen inc mod 20 == 7 ip ecn set ce
		ip6 ecn ect0 numgen inc mod 20 == 7 ip6 ecn set ce
	}
}
END`)
	for _, addr := range inner(2) {
		arriving, heard := record(t, b.ns, "c0"), record(t, a.container, "eth0")
		client, server := connect(t, a.container, b.container, addr)
		if err := pour(client, server, randomBytes(4<<20)); err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		var answers []tcpSegment // as sent: the kernel leaves the splitting of large ones to the backend
		for _, c := range heard.stop() {
			p, err := readPacket(c.pkt)
			if err != nil || p.proto != protoTCP {
				continue
			}
			s, err := readTCP(p.payload)
			switch {
			case err != nil || s.flags&tcpSYN != 0:
			case !c.sent && s.flags&tcpECE != 0:
				seen["heard"]++
			case c.sent && s.flags&tcpCWR != 0:
				answers = append(answers, s)
			}
		}
		for _, c := range arriving.stop() {
			p, err := readPacket(c.pkt)
			if err != nil || !c.sent || p.proto != protoTCP || p.dst.String() != addr {
				continue
			}
			s, err := readTCP(p.payload)
			if err != nil {
				t.Fatal(err)
			}
			if p.tos&3 == 3 {
				seen["marked"]++
			}
			if s.flags&tcpCWR == 0 || s.flags&tcpSYN != 0 || len(s.data) == 0 {
				continue
			}
			seen["answered"]++
			for _, whole := range answers {
				if offset := s.seq - whole.seq; offset > 0 && offset < uint32(len(whole.data)) {
					t.Errorf("CWR again %d bytes into a segment", offset)
				}
			}
		}
		if seen["marked"] == 0 || seen["heard"] == 0 || seen["answered"] == 0 {
			t.Errorf("TCP to %s: %v", addr, seen)
		}
	}
}

// TestGroupsDoNotCross checks that multicast and broadcast are not carried in either direction, and
// are counted.
func TestGroupsDoNotCross(t *testing.T) {
	t.Parallel()
	a, peer := newPlainPeer(t, 4)
	wire := record(t, a.ns, "eth0")
	tx := func() uint64 { return a.backend.Counters()[""].Drops["tx_multicast"] }
	for _, group := range []string{"224.0.0.251", "239.1.2.3", "-b 255.255.255.255", "ff02::1%" + testLink, "ff0e::99"} {
		before := tx()
		_, _ = a.ns.Try("ping -n -c 1 -W 0.1 -I " + testLink + " " + group) // the host itself may answer
		eventually(t, group+" is counted", func() bool { return tx() > before })
	}
	inside := record(t, a.ns, "c0")
	rx := func() uint64 { return a.backend.Counters()["host-2"].Drops["rx_foreign_destination"] }
	for i, group := range []string{"224.0.0.1", "239.1.2.3", "255.255.255.255", "0.0.0.0", "ff02::1", "ff0e::99", "::"} {
		dst := netip.MustParseAddr(group)
		src := netip.MustParseAddr(absent(map[bool]int{true: 0, false: 1}[dst.Is4()]))
		pkt := ipPacket{src: src, dst: dst, proto: protoUDP, ttl: 64, payload: udpDatagram(9, 7, []byte(strconv.Itoa(i)))}
		before := rx()
		if err := peer.send(pkt.bytes()); err != nil {
			t.Fatal(err)
		}
		eventually(t, group+" is counted", func() bool { return rx() == before+1 })
	}
	for _, c := range inside.stop() {
		if p, err := readPacket(c.pkt); err == nil && c.sent && p.proto == protoUDP {
			t.Errorf("let in: %s to %s", p.src, p.dst)
		}
	}
	for _, c := range wire.stop() {
		if p, err := readPacket(c.pkt); err == nil && c.sent && p.proto == protoUDP {
			t.Errorf("on the wire: %.80x", p.payload)
		}
	}
}
