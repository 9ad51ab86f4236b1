package backendtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend"
)

// newContainers adds what containers attach to: a bridge with the first usable address of each own
// subnet.
func (h *host) newContainers() {
	h.t.Helper()
	var script strings.Builder
	script.WriteString("ip link add br0 type bridge; ip link set br0 up\n")
	for _, subnet := range subnets(h.number) {
		fmt.Fprintf(&script, "ip addr add %s/%d dev br0\n", subnet.Addr().Next(), subnet.Bits())
	}
	h.ns.Sh(script.String())
}

// exchange makes both hosts apply each other as a peer.
func exchange(a, b *host) {
	a.t.Helper()
	for _, side := range []struct{ us, them *host }{{a, b}, {b, a}} {
		peer := backend.Peer{
			Node: side.them.node, Subnets: subnets(side.them.number), PublicIPs: side.them.suite.publicIPs(side.them.number),
			Backend: side.them.suite.Type.Name, Attributes: side.them.advertise(side.them.b).Attributes,
		}
		if r := side.us.apply(side.us.state(peer)); r.Peers != 1 {
			side.us.t.Fatalf("report %+v", r)
		}
	}
}

// ping sends packets of size bytes (headers included) that may not be fragmented, from our container network to theirs,
// until one is answered. It gives up when one is refused.
//
// The first may be lost while the underlay is still being resolved. Hosts that start a handshake of WireGuard at the same
// moment try again after 5 seconds.
func (h *host) ping(to *host, pool, size int) error {
	from, dst := subnets(h.number)[pool].Addr().Next(), subnets(to.number)[pool].Addr().Next()
	headers := map[bool]int{true: 28, false: 48}[dst.Is4()]
	out, err := h.ns.Try(fmt.Sprintf("ping -n -c 1 -i 0.1 -w 60 -M do -s %d -I %s %s", size-headers, from, dst))
	if err != nil {
		return fmt.Errorf("ping from %s to %s with %d bytes: %w\n%s", from, dst, size, err, out)
	}
	return nil
}

func pingAll(a, b *host) {
	a.t.Helper()
	for _, way := range []struct{ from, to *host }{{a, b}, {b, a}} {
		mtu := way.from.advertise(way.from.b).MTU
		for pool := range pools() {
			way.from.poll("ping", func() error { return way.from.ping(way.to, pool, 100) })
			if err := way.from.ping(way.to, pool, mtu); err != nil {
				way.from.t.Errorf("a packet as large as the mtu: %v", err)
			}
			if way.from.suite.WiderPaths {
				continue
			}
			// The packet is refused when it is sent.
			if err := way.from.ping(way.to, pool, mtu+1); err == nil || !strings.Contains(err.Error(), "too long") {
				way.from.t.Errorf("a packet larger than the mtu of %d: %v", mtu, err)
			}
		}
	}
}

func testPackets(t *testing.T, s Suite) {
	a, b := newHosts(t, s)
	a.newContainers()
	b.newContainers()
	exchange(a, b)
	pingAll(a, b)

	// Packets to an unleased subnet are refused at once instead of being lost.
	for _, dst := range []string{"10.5.250.1", "fd00:5:0:fa::1"} {
		out, err := a.ns.Try("ping -n -c 1 -W 2 " + dst)
		if err == nil || !strings.Contains(strings.ToLower(out), "no route to host") && !strings.Contains(strings.ToLower(out), "unreachable") {
			t.Errorf("ping of an address that no host has: %v\n%s", err, out)
		}
	}

	a.restart()
	b.restart()
	exchange(a, b)
	pingAll(a, b)
}

// testPacketsAfterChange checks that a host whose state directory was lost works again with other
// attributes under the same name and addresses.
func testPacketsAfterChange(t *testing.T, s Suite) {
	a, b := newHosts(t, s)
	a.newContainers()
	b.newContainers()
	exchange(a, b)
	pingAll(a, b)
	b.apply(backend.State{})
	b.node, b.dir = "node-2-reborn", t.TempDir()
	b.restart()
	exchange(a, b)
	pingAll(a, b)
}
