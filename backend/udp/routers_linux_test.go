package udp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// newRouters returns hosts that report every packet they cannot deliver at once. The kernel's
// default limit is a few per second.
func newRouters(t *testing.T, outer int) (a, b *host) {
	t.Helper()
	a, b = newHosts(t, outer)
	for _, h := range []*host{a, b} {
		for _, ns := range []*nstest.NS{h.ns, h.container} {
			ns.Sh("sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0")
		}
		h.ns.Sh(`for family in ipv4 ipv6; do
	echo 3 > /proc/sys/net/$family/neigh/br0/mcast_solicit
	echo 50 > /proc/sys/net/$family/neigh/br0/retrans_time_ms
done`)
	}
	return a, b
}

// trace finds the routers on the path to an address, hop by hop.
func trace(t *testing.T, from *nstest.NS, to string) []string {
	t.Helper()
	var hops []string
	for ttl := 1; ttl < 8; ttl++ {
		out, err := from.Try(fmt.Sprintf("ping -n -c 1 -W 60 -t %d %s", ttl, to))
		if err == nil {
			return hops
		}
		said := regexp.MustCompile(`From (\S+):? icmp_seq=1 Time (to live )?exceeded`).FindStringSubmatch(out)
		if said == nil {
			t.Fatalf("TTL %d to %s: %s", ttl, to, out)
		}
		hops = append(hops, said[1])
	}
	t.Fatalf("%s is not reached: %v", to, hops)
	return nil
}

// TestTraceroute checks that two hosts look like two routers to traceroute. Each sees the other
// host's own addresses one hop away.
func TestTraceroute(t *testing.T) {
	t.Parallel()
	for _, outer := range []int{4, 6} {
		a, b := newRouters(t, outer)
		for _, way := range []struct{ from, to *host }{{a, b}, {b, a}} {
			for family := range 2 {
				bridge := []string{"10.5.%d.1", "fd00:5:0:%d::1"}[family]
				device := []string{"10.5.%d.0", "fd00:5:0:%d::"}[family]
				near, far := fmt.Sprintf(bridge, way.from.n), fmt.Sprintf(device, way.to.n)
				bridge = fmt.Sprintf(bridge, way.to.n)
				for _, tt := range []struct {
					name string
					from *nstest.NS
					to   string
					want []string
				}{
					{"container to container", way.from.container, inner(way.to.n)[family], []string{near, far}},
					{"host to container", way.from.ns, inner(way.to.n)[family], []string{far}},
					{"container to host", way.from.container, far, []string{near}},
					{"container to the host's bridge", way.from.container, bridge, []string{near}},
					{"host to host", way.from.ns, far, nil},
				} {
					if got := trace(t, tt.from, tt.to); !slices.Equal(got, tt.want) {
						t.Errorf("IPv%d outside, %s, to %s: %v, want %v", outer, tt.name, tt.to, got, tt.want)
					}
				}
			}
		}
	}
}

// unreachable holds what ping and TCP report for an address, by family.
type unreachable struct {
	from, said [2]string // by ping; "": not tested
	errno      [2]error  // of a connection; nil: not tried
}

func (u unreachable) check(t *testing.T, ns *nstest.NS, family int, to string) {
	t.Helper()
	if from := u.from[family]; from != "" {
		mustContain(t, pingRefused(t, ns, to), "From "+from, u.said[family])
	}
	if u.errno[family] == nil {
		return
	}
	dialer := net.Dialer{Timeout: trafficTime}
	ns.Do(func() {
		conn, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(to, "9"))
		if err == nil {
			err = conn.Close()
		}
		if !errors.Is(err, u.errno[family]) {
			t.Errorf("connection to %s: %v, want %v", to, err, u.errno[family])
		}
	})
}

// TestUnreachable checks that packets that cannot be delivered are answered by the host that knows
// the reason.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	a, b := newRouters(t, 4)
	noRoute := unreachable{
		from: [2]string{"10.5.1.1", "fd00:5:0:1::1"},
		said: [2]string{"Destination Host Unreachable", "Destination unreachable: No route"},
		// For IPv6's "no route", Linux returns an error only when it is repeated.
		errno: [2]error{unix.EHOSTUNREACH, nil},
	}
	noRouteHere := unreachable{errno: [2]error{unix.EHOSTUNREACH, unix.EHOSTUNREACH}}
	noNeighbour := unreachable{
		from:  [2]string{"10.5.2.0", "fd00:5:0:2::"},
		said:  [2]string{"Destination Host Unreachable", "Destination unreachable: Address unreachable"},
		errno: noRouteHere.errno,
	}
	noPort := unreachable{errno: [2]error{unix.ECONNREFUSED, unix.ECONNREFUSED}}

	nobodys, nobody := []string{"10.5.77.2", "fd00:5:0:77::2"}, []string{"10.5.2.99", "fd00:5:0:2::99"}
	for family := range 2 {
		noRoute.check(t, a.container, family, nobodys[family])
		noRouteHere.check(t, a.ns, family, nobodys[family])
		for _, ns := range []*nstest.NS{a.container, a.ns} {
			noNeighbour.check(t, ns, family, nobody[family])
			noPort.check(t, ns, family, inner(2)[family])
			portUnreachable(t, ns, inner(2)[family])
		}
	}

	// A peer that left.
	peers := a.state.Peers
	a.state.Peers = nil
	a.apply()
	for family, addr := range inner(2) {
		noRoute.check(t, a.container, family, addr)
		noRouteHere.check(t, a.ns, family, addr)
	}
	a.state.Peers = peers
	a.apply()
	for _, addr := range inner(b.n) {
		ping(t, a.container, addr)
	}
}

// portUnreachable sends a datagram to a port without a listener.
func portUnreachable(t *testing.T, ns *nstest.NS, addr string) {
	t.Helper()
	var conn net.Conn
	inNS(t, ns, func() (err error) {
		conn, err = net.Dial("udp", net.JoinHostPort(addr, "9"))
		return err
	})
	defer conn.Close()
	_, writeErr := conn.Write([]byte("anybody?"))
	if err := errors.Join(writeErr, conn.SetDeadline(time.Now().Add(trafficTime))); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("datagram to %s: %v", addr, err)
	}
}

// TestPathMTU checks that a packet too large for the path is answered with the size that fits, by
// the host that knows it, and TCP adapts.
func TestPathMTU(t *testing.T) {
	t.Parallel()
	for _, outer := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d outside", outer), func(t *testing.T) {
			t.Parallel()
			a, b := newRouters(t, outer)
			for family, addr := range inner(2) {
				headers := 28 + 20*family
				fits, exceeds := fmt.Sprint(a.state.MTU-headers), fmt.Sprint(a.state.MTU-headers+1)
				for _, ns := range []*nstest.NS{a.container, a.ns} {
					ping(t, ns, addr, "-M", "do", "-s", fits)
				}
				mustContain(t, pingRefused(t, a.container, addr, "-M", "do", "-s", exceeds),
					"From "+[]string{"10.5.1.1", "fd00:5:0:1::1"}[family], tooBigText(family, a.state.MTU))
				mustContain(t, pingRefused(t, a.ns, addr, "-W", "0.1", "-M", "do", "-s", exceeds), []string{"message too long, mtu=", "message too long, mtu: "}[family]+fmt.Sprint(a.state.MTU))
			}

			// A narrower path behind the far host. Both kernels' caches already hold the overlay's
			// own size.
			b.ns.Sh("ip link set br0 mtu 1300")
			for family, addr := range inner(2) {
				for _, ns := range []*nstest.NS{a.container, a.ns} {
					// The connection is made before either end knows the path's MTU.
					client, server := connect(t, ns, b.container, addr)
					if err := pour(client, server, randomBytes(1<<20)); err != nil {
						t.Errorf("TCP to %s: %v", addr, err)
					}
					ns.Sh("ip route flush cache; ip -6 route flush cache")
					mustContain(t, pingRefused(t, ns, addr, "-M", "do", "-s", "1400"),
						"From "+[]string{"10.5.2.0", "fd00:5:0:2::"}[family], tooBigText(family, 1300))
				}
				// Into the narrow network, and out of it in full size.
				client, server := connect(t, b.container, a.container, inner(1)[family])
				if err := pour(client, server, randomBytes(1<<20)); err != nil {
					t.Errorf("TCP from %s: %v", addr, err)
				}
			}
			// Packets that may be fragmented are, also in a burst.
			mayFragment := number(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
			from := listenUDP(t, a.container, "10.5.1.2:0", mayFragment)
			to := listenUDP(t, b.container, "10.5.2.2:0")
			many := burst{1400, 40, 7}
			if _, err := many.send(from, netip.MustParseAddrPort(to.LocalAddr().String()), 1, 0, true); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, maxPacket)
			for want, size := range many.sizes() {
				n, _, err := to.ReadFromUDPAddrPort(buf)
				if err != nil {
					t.Fatal(err)
				}
				if _, seq, err := numberOf(buf[:n]); err != nil || seq != uint32(want) || n != size {
					t.Fatalf("datagram %d of %d bytes, want %d of %d: %v", seq, n, want, size, err)
				}
			}
		})
	}
}

func tooBigText(family, mtu int) string {
	if family == 0 {
		return fmt.Sprintf("Frag needed and DF set (mtu = %d)", mtu)
	}
	return fmt.Sprintf("Packet too big: mtu=%d", mtu)
}

// TestInnerFragments checks that datagrams larger than any packet arrive complete, whether the
// sender made the fragments, or the first host where it may.
func TestInnerFragments(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, 4)
	for family := range 2 {
		for _, way := range []struct{ from, to *host }{{a, b}, {b, a}} {
			from := listenUDP(t, way.from.container, net.JoinHostPort(inner(way.from.n)[family], "0"))
			to := listenUDP(t, way.to.container, net.JoinHostPort(inner(way.to.n)[family], "0"))
			for _, size := range []int{1444, 1445, 1472, 1473, 4000, 20_000, 65_507 - 20*family} {
				data := randomBytes(size)
				buf := make([]byte, maxPacket)
				n, err := 0, error(os.ErrDeadlineExceeded)
				// The first may be lost while the sender learns how large a packet may be.
				for deadline := time.Now().Add(trafficTime); nothingCame(err) && time.Now().Before(deadline); {
					if _, err := from.WriteToUDPAddrPort(data, netip.MustParseAddrPort(to.LocalAddr().String())); err != nil {
						t.Fatal(err)
					}
					if err := to.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
						t.Fatal(err)
					}
					// One of the sizes before may have been sent again because it was late.
					for n, _, err = to.ReadFromUDPAddrPort(buf); err == nil && n < size; {
						n, _, err = to.ReadFromUDPAddrPort(buf)
					}
				}
				if err != nil || !bytes.Equal(buf[:n], data) {
					t.Errorf("%d bytes to %s: %d arrived or others, %v", size, to.LocalAddr(), n, err)
				}
			}
		}
	}
}
