package firewall

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestGuardReleasesPorts: a container has sent from a port, before a tunnel uses it, to the same port of a peer, and
// continues. From the moment at which the guard is in force, what the peer sends to the port arrives at the host, in both
// families. A peer may receive at another port. What containers send to that port elsewhere arrives.
func TestGuardReleasesPorts(t *testing.T) {
	t.Parallel()
	const port = 51820
	for _, tt := range []struct {
		kind Type
		peer uint16
	}{{TypeIPTables, port}, {TypeNFTables, port}, {TypeNFTables, 443}} {
		t.Run(fmt.Sprint(tt.kind, tt.peer), func(t *testing.T) {
			t.Parallel()
			host, container, peer := nstest.New(t), nstest.New(t), nstest.New(t)
			nstest.Join(nstest.Joint{NS: host, Link: "cni", Addrs: []string{"10.5.1.1/24", "fd00:5:0:1::1/64"}},
				nstest.Joint{NS: container, Link: "eth0", Addrs: []string{"10.5.1.2/24", "fd00:5:0:1::2/64"}})
			nstest.Join(nstest.Joint{NS: host, Link: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8::1/64"}},
				nstest.Joint{NS: peer, Link: "eth0", Addrs: []string{"192.0.2.2/24", "2001:db8::2/64", "192.0.2.3/24"}})
			host.Sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; nft add table inet docker; " +
				"nft 'add chain inet docker post { type nat hook postrouting priority 100; }'; " +
				"nft add rule inet docker post oifname eth0 masquerade")
			container.Sh("ip route add default via 10.5.1.1; ip -6 route add default via fd00:5:0:1::1")

			thief, theirs, own := listenUDP(t, container, port), listenUDP(t, peer, int(tt.peer)), listenUDP(t, host, port)
			hosts := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:51820"), netip.MustParseAddrPort("[2001:db8::1]:51820")}
			at := func(addr string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(addr), tt.peer) }
			peers := []netip.AddrPort{at("192.0.2.2"), at("2001:db8::2")}
			exchange := func(to *net.UDPConn) {
				t.Helper()
				for family := range peers {
					sendUDP(t, thief, peers[family])
					sendUDP(t, theirs, hosts[family])
					if !receives(t, to) {
						t.Errorf("a packet to %s did not arrive", hosts[family])
					}
				}
			}
			for family := range peers {
				sendUDP(t, thief, peers[family])
				if !receives(t, theirs) {
					t.Fatal("the container does not reach the peer")
				}
			}
			exchange(thief)

			fw, n := New(hclog.NewNullLogger()), guarded()[0]
			n.Ports, n.Peers, n.Underlay = []uint16{port}, nil, []string{"eth0"}
			if tt.peer != port {
				n.Peers = peers
			}
			host.Do(func() {
				report, err := fw.Apply(t.Context(), State{Type: tt.kind, Networks: []Network{n}})
				if err != nil || report.Unguarded != nil {
					t.Fatal(err, report.Unguarded)
				}
			})
			exchange(own)
			exchange(own)
			sendUDP(t, thief, at("192.0.2.3"))
			if tt.peer != port && !receives(t, theirs) {
				t.Error("the container does not reach the port elsewhere")
			}
		})
	}
}

// TestGuardInputs: what containers send to the port of a tunnel at any address of the host does not arrive, and what peers
// send from the underlay does. Containers are on this host's bridge, or on a host that routes their packets directly.
func TestGuardInputs(t *testing.T) {
	t.Parallel()
	const port = 8472
	host, container, peer := nstest.New(t), nstest.New(t), nstest.New(t)
	nstest.Join(nstest.Joint{NS: host, Link: "port0"},
		nstest.Joint{NS: container, Link: "eth0", Addrs: []string{"10.5.1.2/24", "fd00:5:0:1::2/64"}})
	nstest.Join(nstest.Joint{NS: host, Link: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8::1/64"}},
		nstest.Joint{NS: peer, Link: "eth0", Addrs: []string{"192.0.2.2/24", "2001:db8::2/64"}})
	host.Sh(`ip link add cni0 type bridge; ip link set port0 master cni0; ip link set cni0 up
		ip addr add 10.5.1.1/24 dev cni0; ip addr add fd00:5:0:1::1/64 dev cni0 nodad`)
	container.Sh(`ip route add default via 10.5.1.1; ip -6 route add default via fd00:5:0:1::1
		ip addr add 192.0.2.200/32 dev lo; ip addr add 2001:db8::200/128 dev lo nodad`)
	peer.Sh(`ip addr add 10.5.2.2/32 dev lo; ip addr add fd00:5:0:2::2/128 dev lo nodad
		ip route add 10.5.1.0/24 via 192.0.2.1; ip -6 route add fd00:5:0:1::/64 via 2001:db8::1`)
	tunnel := listenUDP(t, host, port)
	send := func(from *nstest.NS, source, to, text string) {
		t.Helper()
		from.Do(func() {
			conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(source)}, &net.UDPAddr{IP: net.ParseIP(to), Port: port})
			if err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Write([]byte(text))
			_ = conn.Close()
		})
	}
	// arrived returns the texts that arrive until one of the peer.
	arrived := func() (out []string) {
		t.Helper()
		if err := tunnel.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		for buffer := make([]byte, 200); ; {
			n, _, err := tunnel.ReadFromUDPAddrPort(buffer)
			if err != nil {
				t.Fatal(err)
			}
			if string(buffer[:n]) == "peer" {
				return out
			}
			out = append(out, string(buffer[:n]))
		}
	}
	attack := func() (out []string) {
		t.Helper()
		for _, x := range []struct {
			from        *nstest.NS
			source, dst string
		}{
			{container, "10.5.1.2", "192.0.2.1"}, {container, "10.5.1.2", "10.5.1.1"}, {container, "192.0.2.200", "192.0.2.1"},
			{container, "192.0.2.200", "10.5.1.1"}, {peer, "10.5.2.2", "10.5.1.1"}, {peer, "192.0.2.2", "10.5.1.1"}, {peer, "10.5.2.2", "192.0.2.1"},
			{container, "fd00:5:0:1::2", "2001:db8::1"}, {container, "fd00:5:0:1::2", "fd00:5:0:1::1"}, {container, "2001:db8::200", "2001:db8::1"},
			{container, "2001:db8::200", "fd00:5:0:1::1"}, {peer, "fd00:5:0:2::2", "fd00:5:0:1::1"}, {peer, "2001:db8::2", "fd00:5:0:1::1"},
		} {
			send(x.from, x.source, x.dst, x.source+" to "+x.dst)
			send(peer, "192.0.2.2", "192.0.2.1", "peer")
			out = append(out, arrived()...)
		}
		send(peer, "2001:db8::2", "2001:db8::1", "peer")
		return append(out, arrived()...)
	}
	if got := attack(); len(got) != 13 {
		t.Errorf("without the guard, %d arrived: %q", len(got), got)
	}
	fw, n := New(hclog.NewNullLogger()), guarded()[0]
	n.Ports, n.Underlay, n.Sealed = []uint16{port}, []string{"eth0"}, false
	host.Do(func() {
		if report, err := fw.Apply(t.Context(), State{Type: TypeNFTables, Networks: []Network{n}}); err != nil || report.Unguarded != nil {
			t.Fatal(err, report.Unguarded)
		}
	})
	// A direct route leads to the address between hosts only if the peer's host does not drop that.
	if got := attack(); len(got) != 1 || got[0] != "10.5.2.2 to 192.0.2.1" {
		t.Errorf("%q arrived", got)
	}
}

func listenUDP(t *testing.T, ns *nstest.NS, port int) (conn *net.UDPConn) {
	t.Helper()
	var err error
	ns.Do(func() { conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port}) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func sendUDP(t *testing.T, from *net.UDPConn, to netip.AddrPort) {
	t.Helper()
	if _, err := from.WriteToUDPAddrPort([]byte("x"), to); err != nil {
		t.Fatal(err)
	}
}

// receives reports whether a datagram arrives, which takes no time between two namespaces.
func receives(t *testing.T, conn *net.UDPConn) bool {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, _, err := conn.ReadFromUDPAddrPort(make([]byte, 100))
	return err == nil
}
