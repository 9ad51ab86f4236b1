package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// lies returns packets that a peer's address must not send, by the reason they are dropped for.
func lies() map[string][]byte {
	whole := udpPacket([4]byte{10, 5, 2, 3}, [4]byte{10, 5, 1, 2}, "lie")
	return map[string][]byte{
		"rx_foreign_source":      udpPacket([4]byte{10, 5, 3, 3}, [4]byte{10, 5, 1, 2}, "lie"),
		"rx_foreign_destination": udpPacket([4]byte{10, 5, 2, 3}, [4]byte{10, 5, 9, 2}, "lie"),
		"rx_truncated":           whole[:13],
		"rx_bad_length":          append(udpPacket([4]byte{10, 5, 2, 3}, [4]byte{10, 5, 1, 2}, "lie"), 0),
		"rx_bad_version":         append([]byte{0x75}, whole[1:]...),
	}
}

// floodTime limits how long valid traffic may take to get through a flood. The flood takes its
// share of the socket and of all CPUs, and so do other tests, so how many packets are lost, and for
// how long at a time, means nothing.
const floodTime = 2 * time.Minute

// TestFlood checks that floods from a stranger, as fast as this machine sends, and invalid packets
// from a peer's address do not stop valid traffic, and are counted.
func TestFlood(t *testing.T) {
	a, b := newHosts(t, 4)
	b.ns.Sh("ip addr add 192.0.2.66/24 dev eth0")
	stranger := listenReal(t, b.ns, addrPort("192.0.2.66:8285"), 1, allOffloads)[0]
	var liar int
	inNS(t, b.ns, func() (err error) {
		liar, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	defer unix.Close(liar)

	// One connection each way, made before the flood: connecting fails after a few lost packets.
	var ends [2][2]*net.TCPConn
	for i, way := range [2][2]*host{{a, b}, {b, a}} {
		client, server := connect(t, way[0].container, way[1].container, inner(way[1].n)[0])
		until := time.Now().Add(floodTime)
		if err := errors.Join(client.SetDeadline(until), server.SetDeadline(until)); err != nil {
			t.Fatal(err)
		}
		ends[i] = [2]*net.TCPConn{client, server}
	}

	var floods errgroup.Group
	var stop atomic.Bool
	defer func() { // also when the test has failed, before the socket is closed
		stop.Store(true)
		_ = floods.Wait()
	}()
	var strange int
	floods.Go(func() error {
		good := udpPacket([4]byte{10, 5, 2, 3}, [4]byte{10, 5, 1, 2}, "flood")
		pkts := make([][]byte, 64)
		for i := range pkts {
			pkts[i] = good
		}
		messages := message(addrPort("192.0.2.1:8285"), pkts...)
		for !stop.Load() {
			n, err := stranger.Send(messages)
			if strange += n; err != nil {
				return err
			}
		}
		return nil
	})
	told := map[string]uint64{}
	floods.Go(func() error {
		for !stop.Load() {
			for why, pkt := range lies() {
				if err := unix.Sendto(liar, spoofed(pkt), 0, &unix.SockaddrInet4{Addr: [4]byte{192, 0, 2, 1}}); err != nil {
					return err
				}
				told[why]++
			}
		}
		return nil
	})

	eventually(t, "the floods have come, and are counted", func() bool {
		counters := a.backend.Counters()
		for why := range lies() {
			if counters["host-2"].Drops[why] == 0 {
				return false
			}
		}
		return counters[""].Drops["rx_unknown_peer"] > 0
	})
	for _, pair := range ends {
		if err := pour(pair[0], pair[1], randomBytes(256<<10)); err != nil {
			t.Fatalf("TCP: %v", err)
		}
	}
	// With -w, ping sends until it has received that many answers.
	if out, err := a.container.Try(fmt.Sprintf("ping -n -q -c 50 -i 0.01 -w %.0f %s", floodTime.Seconds(), inner(2)[0])); err != nil {
		t.Fatalf("ping: %v\n%s", err, out)
	}
	stop.Store(true)
	if err := floods.Wait(); err != nil {
		t.Fatal(err)
	}
	counters := a.backend.Counters()
	if got := counters[""].Drops["rx_unknown_peer"]; got > uint64(strange) {
		t.Errorf("%d datagrams of the stranger's %d are counted", got, strange)
	}
	for why, sent := range told {
		if got := counters["host-2"].Drops[why]; got > sent {
			t.Errorf("%s: %d of %d are counted", why, got, sent)
		}
	}
}

// spoofed returns a datagram from host 2's address and port to host 1's.
func spoofed(payload []byte) []byte {
	pkt := make([]byte, 28, 28+len(payload))
	pkt[0], pkt[8], pkt[9] = 0x45, 64, unix.IPPROTO_UDP
	from, to := netip.MustParseAddr(underlayAddr(4, 2)).As4(), netip.MustParseAddr(underlayAddr(4, 1)).As4()
	copy(pkt[12:], from[:])
	copy(pkt[16:], to[:])
	binary.BigEndian.PutUint16(pkt[20:], DefaultPort)
	binary.BigEndian.PutUint16(pkt[22:], DefaultPort)
	binary.BigEndian.PutUint16(pkt[24:], uint16(8+len(payload)))
	// The kernel fills in the IP header's length and checksum (raw(7)).
	return append(pkt, payload...)
}

// TestOverflowIsCounted checks that datagrams that arrive faster than they are read are lost, and
// are counted.
func TestOverflowIsCounted(t *testing.T) {
	a, b := newHosts(t, 4)
	b.ns.Sh("ip addr add 192.0.2.66/24 dev eth0")
	stranger := listenReal(t, b.ns, addrPort("192.0.2.66:8285"), 1, allOffloads)[0]
	pkts := make([][]byte, 64)
	for i := range pkts {
		pkts[i] = make([]byte, 1400)
	}
	a.backend.engine.pause()
	sent := uint64(0)
	eventually(t, "the buffer is full", func() bool { // on a busy machine, some are lost before they reach it
		for range 100 {
			if _, err := stranger.Send(message(addrPort("192.0.2.1:8285"), pkts...)); err != nil {
				t.Fatal(err)
			}
			sent += uint64(len(pkts))
		}
		return strings.Contains(a.ns.Sh("awk '$2 ~ /:205D$/ && $NF > 0 { print \"full\" }' /proc/net/udp"), "full")
	})
	if err := a.backend.engine.resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what came is counted", func() bool { return a.backend.Counters()[""].Drops["rx_unknown_peer"] > 0 })
	// The next datagram that finds room reports those that did not.
	eventually(t, "the lost are counted", func() bool {
		sent++
		if _, err := stranger.Send(message(addrPort("192.0.2.1:8285"), pkts[:1]...)); err != nil {
			t.Fatal(err)
		}
		return a.backend.Counters()[""].Drops["rx_overflow"] > 0
	})
	// Some may be lost on their way to the socket.
	drops := a.backend.Counters()[""].Drops
	if all := drops["rx_overflow"] + drops["rx_unknown_peer"]; all > sent {
		t.Errorf("%d datagrams are counted of %d: %v", all, sent, drops)
	}
}

// TestSlowUnderlay checks that an underlay slower than what containers send loses packets, but
// delays neither Apply nor packets from the wire.
func TestSlowUnderlay(t *testing.T) {
	a, b := newHosts(t, 4)
	// A reply to b's ARP request would wait behind the packets in the queue, which takes minutes.
	address := strings.Fields(a.ns.Sh("ip -br link show eth0"))[2]
	b.ns.Sh("ip neigh replace 192.0.2.1 lladdr " + address + " dev eth0 nud permanent")
	a.ns.Sh("tc qdisc add dev eth0 root tbf rate 1mbit burst 4k limit 1g")
	sender := listenUDP(t, a.container, ":0")
	data := make([]byte, 1400)
	eventually(t, "the send buffer is full", func() bool {
		for range 1000 {
			if _, err := sender.WriteToUDPAddrPort(data, addrPort("10.5.2.2:9")); err != nil {
				t.Fatal(err)
			}
		}
		return a.backend.Counters()["host-2"].Drops["tx_congested"] > 0
	})
	receiver := listenUDP(t, a.container, "10.5.1.2:5001")
	if _, err := listenUDP(t, b.container, ":0").WriteToUDPAddrPort([]byte("in"), addrPort("10.5.1.2:5001")); err != nil {
		t.Fatal(err)
	}
	if n, err := receiver.Read(data); n != 2 || err != nil {
		t.Errorf("received %d bytes, %v", n, err)
	}
	a.ns.Sh("ip link del " + testLink)
	eventually(t, "the device is missed", func() bool { return !a.backend.engine.devices.alive() })
	a.apply()
	a.ns.Sh("tc qdisc del dev eth0 root")
	ping(t, a.container, "10.5.2.2")
}
