package backendtest

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/lenonet/leno/backend"
)

// setIPv6 switches IPv6 off or on for all devices of the host, and for those made afterwards.
func (h *host) setIPv6(disabled string) {
	h.t.Helper()
	h.ns.Sh("for f in all default " + underlay + "; do echo " + disabled + " > /proc/sys/net/ipv6/conf/$f/disable_ipv6; done")
}

// testIPv6Disabled checks that a host without IPv6 carries IPv4, says so, and carries IPv6 again once it is switched on.
func testIPv6Disabled(t *testing.T, s Suite) {
	a, b := newHosts(t, s)
	a.newContainers()
	b.newContainers()
	a.setIPv6("1")
	ipv4 := func(ips []netip.Addr) []netip.Addr { return slices.DeleteFunc(ips, netip.Addr.Is6) }
	peerOf := func(h *host) backend.Peer {
		return backend.Peer{Node: h.node, Subnets: subnets(h.number), PublicIPs: s.publicIPs(h.number), Backend: s.Type.Name}
	}
	own, theirs := a.underlay(), peerOf(b)
	own.Addrs = ipv4(own.Addrs)
	var adv backend.Advertisement
	a.ns.Do(func() {
		var err error
		if adv, err = a.b.Advertise(own); err != nil {
			t.Fatalf("advertise: %v", err)
		}
	})
	theirs.Attributes = b.advertise(b.b).Attributes
	state := backend.State{Subnets: subnets(a.number), MTU: adv.MTU, Underlay: own, Peers: []backend.Peer{theirs}}
	link := map[bool]string{true: linkName, false: underlay}[s.Type.Device]
	want := []backend.Uncarried{{Pool: pools()[1], Reason: "IPv6 is disabled: sysctl net.ipv6.conf." + link + ".disable_ipv6 is 1"}}
	for range 2 {
		if r := a.apply(state); r.Peers != 1 || len(r.Skipped) != 0 || len(r.Repaired) != 0 || !slices.Equal(r.Uncarried, want) {
			t.Errorf("report %+v, want it to say %v", r, want)
		}
	}
	ours := peerOf(a)
	ours.PublicIPs, ours.Attributes = ipv4(ours.PublicIPs), adv.Attributes
	b.apply(b.state(ours))
	a.poll("ping", func() error { return a.ping(b, 0, 100) })
	a.poll("ping", func() error { return b.ping(a, 0, 100) })
	a.unchanged(state)
	// Packets do not leave in the clear by a device that has IPv6.
	a.ns.Sh("echo 0 > /proc/sys/net/ipv6/conf/" + underlay + "/disable_ipv6; ip addr add 2001:db8:9::1/64 dev " + underlay +
		" nodad; ip -6 route add default via 2001:db8:9::9 dev " + underlay)
	if out, err := a.ns.Try("ip -6 route get fd00:5:0:2::1"); err == nil {
		t.Errorf("packets of the pool leave by %s", out)
	}
	a.setIPv6("0")
	a.ns.Sh("ip addr add 2001:db8::1/64 dev " + underlay + " nodad; ip addr add fd00:5:0:1::1/64 dev br0 nodad")
	state.Underlay = a.underlay()
	if r := a.apply(state); r.Peers != 1 || len(r.Uncarried) != 0 {
		t.Errorf("report with IPv6 again %+v", r)
	}
	exchange(a, b)
	pingAll(a, b)
}
