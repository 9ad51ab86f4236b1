package firewall

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/firewall/netfilter"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// docker holds the rules that Docker writes for a bridge that has this host's subnet, with its defaults and a
// published port. It inserts each new rule and jump at the start of its chain, hence before ours.
const docker = `
	V4 -t nat -I POSTROUTING -s 10.5.34.0/24 ! -o c0 -j MASQUERADE
	V4 -t nat -A POSTROUTING -s 10.5.34.2/32 -d 10.5.34.2/32 -p tcp --dport 8080 -j MASQUERADE
	V4 -t nat -A PREROUTING -d 10.5.34.1 -p tcp --dport 80 -j DNAT --to-destination 10.5.34.2:8080
	V4 -P FORWARD DROP
	V4 -N DOCKER-USER
	V4 -N DOCKER-FORWARD
	V4 -N DOCKER
	V4 -A DOCKER -d 10.5.34.2/32 ! -i c0 -o c0 -p tcp --dport 8080 -j ACCEPT
	V4 -A DOCKER ! -i c0 -o c0 -j DROP
	V4 -A DOCKER-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
	V4 -A DOCKER-FORWARD -j DOCKER
	V4 -A DOCKER-FORWARD -i c0 -j ACCEPT
	V4 -I FORWARD -j DOCKER-FORWARD
	V4 -I FORWARD -j DOCKER-USER`

// TestAmongDocker checks that, whether Docker or leno started first, overlay packets keep their source in both
// directions, the world sees the host's address, and Docker's own ports keep working.
func TestAmongDocker(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{netfilter.VariantNFT, netfilter.VariantLegacy} {
		for _, first := range []string{"Docker", "leno"} {
			t.Run(variant+"/"+first+" first", func(t *testing.T) {
				t.Parallel()
				l, h := newLane(t), iptablesHarness(variant)
				fw := h.only()
				script := strings.ReplaceAll(docker, "V4", "iptables-"+variant)
				if first == "Docker" {
					l.host.Sh(script)
					apply(t, l.host, fw, two(), 4)
				} else {
					apply(t, l.host, fw, two(), 4)
					l.host.Sh(script)
					report := apply(t, l.host, fw, two(), 2)
					for i, want := range []string{"a misplaced jump in POSTROUTING to LENO-OVERLAY", "a misplaced jump in FORWARD to LENO-FORWARD"} {
						if !strings.HasSuffix(report.Repaired[i], want) {
							t.Errorf("repaired %q, want %q", report.Repaired[i], want)
						}
					}
				}
				apply(t, l.host, fw, two(), 0)

				l.world.Sh("ip addr add 10.6.7.2/32 dev lo")
				l.host.Sh("ip route add 10.6.7.0/24 via 192.0.2.1")
				for _, tt := range []struct {
					name     string
					from, to *nstest.NS
					dial     string // the address it connects to
					listen   string // the address it arrives at
					source   string // 0.0.0.0 is any
					want     string // the source that the listener sees
				}{
					{"to the overlay", l.container, l.world, "10.5.99.2:7000", "10.5.99.2:7000", "0.0.0.0", "10.5.34.2"},
					{"from the overlay", l.world, l.container, "10.5.34.2:7001", "10.5.34.2:7001", "10.5.99.2", "10.5.99.2"},
					{"to the world", l.container, l.world, "192.0.2.1:7000", "192.0.2.1:7000", "0.0.0.0", "192.0.2.34"},
					{"to another network of leno's", l.container, l.world, "10.6.7.2:7000", "10.6.7.2:7000", "0.0.0.0", "192.0.2.34"},
					{"to the host", l.container, l.host, "192.0.2.34:7000", "192.0.2.34:7000", "0.0.0.0", "10.5.34.2"},
					{"to a port of its own, by the host", l.container, l.container, "10.5.34.1:80", "10.5.34.2:8080", "0.0.0.0", "10.5.34.1"},
				} {
					if got := seen(t, tt.from, tt.to, tt.source, tt.dial, tt.listen); got != tt.want {
						t.Errorf("%s: saw %s, want %s", tt.name, got, tt.want)
					}
				}
			})
		}
	}
}

// seen connects from an address to another one, and returns the source that the listener saw.
func seen(t *testing.T, from, to *nstest.NS, source, dial, listen string) string {
	t.Helper()
	var listener *net.TCPListener
	var conn *net.TCPConn
	var err error
	to.Do(func() {
		listener, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.MustParseAddrPort(listen)))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	from.Do(func() {
		conn, err = net.DialTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(source), 0)),
			net.TCPAddrFromAddrPort(netip.MustParseAddrPort(dial)))
	})
	if err != nil {
		t.Fatalf("connect from %s to %s: %v", source, dial, err)
	}
	defer conn.Close()
	accepted, err := listener.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	return accepted.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String()
}
