package udp

import (
	"encoding/binary"
	"net/netip"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// lies are what a peer's address sends and must not, by the reason they are
// dropped for.
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

// Floods of a stranger, as fast as this machine sends, and of lies under a
// peer's address do not stop what is good, and are counted.
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

	var floods errgroup.Group
	var stop atomic.Bool
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

	// All of them share the CPUs: what is good is slow.
	for _, way := range []struct {
		from, to *host
	}{{a, b}, {b, a}} {
		client, server := connect(t, way.from.container, way.to.container, inner(way.to.n)[0])
		if err := pour(client, server, randomBytes(256<<10)); err != nil {
			t.Fatal(err)
		}
	}
	out, err := a.container.Try("ping -n -q -c 100 -i 0.01 -W 2 " + inner(2)[0])
	stop.Store(true)
	if failed := floods.Wait(); failed != nil {
		t.Fatal(failed)
	}
	answered := regexp.MustCompile(`(\d+) received`).FindStringSubmatch(out)
	if err != nil || answered == nil {
		t.Fatalf("ping: %v\n%s", err, out)
	}
	if n, _ := strconv.Atoi(answered[1]); n < 80 {
		t.Errorf("of 100 pings %d were answered", n)
	}
	counters := a.backend.Counters()
	if got := counters[""].Drops["rx_unknown_peer"]; got == 0 || got > uint64(strange) {
		t.Errorf("%d datagrams of the stranger's %d are counted", got, strange)
	}
	for why, sent := range told {
		if got := counters["host-2"].Drops[why]; got == 0 || got > sent {
			t.Errorf("%s: %d of %d are counted", why, got, sent)
		}
	}
}

// spoofed is a datagram from host 2's address and port to host 1's.
func spoofed(payload []byte) []byte {
	pkt := make([]byte, 28, 28+len(payload))
	pkt[0], pkt[8], pkt[9] = 0x45, 64, unix.IPPROTO_UDP
	from, to := netip.MustParseAddr(underlayAddr(4, 2)).As4(), netip.MustParseAddr(underlayAddr(4, 1)).As4()
	copy(pkt[12:], from[:])
	copy(pkt[16:], to[:])
	binary.BigEndian.PutUint16(pkt[20:], DefaultPort)
	binary.BigEndian.PutUint16(pkt[22:], DefaultPort)
	binary.BigEndian.PutUint16(pkt[24:], uint16(8+len(payload)))
	// The kernel writes the IP header's length and checksum (raw(7)).
	return append(pkt, payload...)
}
