package firewall

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestGuardReleasesPorts: a container has sent from a port, before a tunnel uses it, to the same port of a peer, and
// continues. From the moment at which the guard is in force, what the peer sends to the port arrives at the host, in both
// families.
func TestGuardReleasesPorts(t *testing.T) {
	t.Parallel()
	for _, kind := range []Type{TypeIPTables, TypeNFTables} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			const port = 51820
			host, container, peer := nstest.New(t), nstest.New(t), nstest.New(t)
			nstest.Join(nstest.Joint{NS: host, Link: "cni", Addrs: []string{"10.5.1.1/24", "fd00:5:0:1::1/64"}},
				nstest.Joint{NS: container, Link: "eth0", Addrs: []string{"10.5.1.2/24", "fd00:5:0:1::2/64"}})
			nstest.Join(nstest.Joint{NS: host, Link: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8::1/64"}},
				nstest.Joint{NS: peer, Link: "eth0", Addrs: []string{"192.0.2.2/24", "2001:db8::2/64"}})
			host.Sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; nft add table inet docker; " +
				"nft 'add chain inet docker post { type nat hook postrouting priority 100; }'; " +
				"nft add rule inet docker post oifname eth0 masquerade")
			container.Sh("ip route add default via 10.5.1.1; ip -6 route add default via fd00:5:0:1::1")

			thief, theirs, own := listenUDP(t, container, port), listenUDP(t, peer, port), listenUDP(t, host, port)
			hosts := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:51820"), netip.MustParseAddrPort("[2001:db8::1]:51820")}
			peers := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:51820"), netip.MustParseAddrPort("[2001:db8::2]:51820")}
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
			n.Ports, n.Underlay = []uint16{port}, []string{"eth0"}
			host.Do(func() {
				report, err := fw.Apply(t.Context(), State{Type: kind, Networks: []Network{n}})
				if err != nil || report.Unguarded != nil {
					t.Fatal(err, report.Unguarded)
				}
			})
			exchange(own)
			exchange(own)
		})
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
