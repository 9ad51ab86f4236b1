package probe

import (
	"strings"
	"testing"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// newRoutedHosts returns hosts 1 and 2 with a router between them that forwards packets of 1500 bytes. narrow sets the
// MTU of its route to host 2.
func newRoutedHosts(t *testing.T, kind string) (a, b *host, narrow func(mtu string)) {
	t.Helper()
	r := nstest.New(t)
	r.Sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.default.send_redirects=0")
	var out [2]*host
	for i := range out {
		h := &host{t: t, n: i + 1, kind: kindOf(kind), ns: nstest.New(t), words: strings.NewReplacer("PORT", "8472")}
		out[i] = h
		link := []string{"ra", "rb"}[i]
		addr := h.addrs()[0].String()
		nstest.Join(nstest.Joint{NS: h.ns, Link: "eth0", Addrs: []string{addr + "/32", h.addrs()[1].String() + "/64"}},
			nstest.Joint{NS: r, Link: link, Addrs: []string{"192.0.2.254/32"}})
		h.ns.Sh("ip route add 192.0.2.254 dev eth0; ip route add default via 192.0.2.254 src " + addr)
		r.Sh("ip route add " + addr + " dev " + link)
	}
	a, b = out[0], out[1]
	a.meet(b)
	return a, b, func(mtu string) { r.Sh("ip route replace 192.0.2.2 dev rb mtu " + mtu) }
}

// TestRouter checks that the router's error about the path counts, and that the MTU the kernel learned before does
// not.
func TestRouter(t *testing.T) {
	t.Parallel()
	a, b, narrow := newRoutedHosts(t, "vxlan")
	overlay := strings.ReplaceAll(well, "@MTU", "1450")
	checkProbe(t, a.probe(b, patientRequest()), true, overlay+under)

	// The tunnel's packets may be fragmented.
	narrow("1400")
	checkProbe(t, a.probe(b, briefRequest()), true, overlay+"underlay 192.0.2.2 2/2 0/2 largest 1400 of 1500, echo reply; fragmentation needed from 192.0.2.254 mtu 1400")
	if got := a.ns.Sh("ip route get 192.0.2.2"); !strings.Contains(got, "mtu 1400") {
		t.Fatalf("the kernel has not learned of the path: %s", got)
	}
	narrow("1500")
	checkProbe(t, a.probe(b, patientRequest()), true, overlay+under)
}

// TestRouterDirections checks that the lost direction is found even where hosts are no neighbours, unless packets are
// masqueraded.
func TestRouterDirections(t *testing.T) {
	t.Parallel()
	a, b, _ := newRoutedHosts(t, "vxlan")
	for _, tt := range []struct {
		name       string
		hook       string
		masquerade bool
		want       string
	}{
		{"to the peer", "input", false, "to lost, from passes"},
		{"to the peer, masqueraded", "input", true, "to unknown, from unknown"},
		{"from the peer", "output", true, "to passes, from lost"},
	} {
		end := b.drop(tt.hook + " udp dport PORT drop")
		a.masquerade = tt.masquerade
		if got := dump(a.probe(b, briefRequest())); !strings.Contains(got, tt.want+"\n") {
			t.Errorf("%s: not %q in\n%s", tt.name, tt.want, got)
		}
		end()
	}
}

// TestIPv6 probes a tunnel over IPv6 only.
func TestIPv6(t *testing.T) {
	t.Parallel()
	for kind, port := range map[string]string{"vxlan": "8472", "udp": "8285"} {
		t.Run(kind, func(t *testing.T) {
			a, b := newHostsOver(t, kind, true)
			mtu := map[string]string{"vxlan": "1430", "udp": "1452"}[kind]
			checkProbe(t, a.probe(b, patientRequest()), true, strings.ReplaceAll(well, "@MTU", mtu)+"underlay 2001:db8::2 2/2 2/2 largest 1500 of 1500, echo reply")
			b.words = strings.NewReplacer("PORT", port)
			b.drop("input udp dport PORT drop")
			if got := dump(a.probe(b, briefRequest())); !strings.Contains(got, "to lost, from passes\n") {
				t.Errorf("%s", got)
			}
		})
	}
}

// TestGateway checks that with a device for containers the gateways themselves answer, in both directions through the
// overlay's routes.
func TestGateway(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, "host-gw")
	for _, h := range []*host{a, b} {
		h.words = strings.NewReplacer("@n", string(rune('0'+h.n)))
		h.ns.Sh(h.words.Replace("ip link add br0 type veth peer name br1; ip link set br1 up; ip addr add 10.5.@n.1/24 dev br0; ip addr add fd00:5:0:@n::1/64 dev br0; ip link set br0 up"))
		h.ns.Settle()
	}
	got := a.probe(b, patientRequest())
	checkProbe(t, got, true, `
overlay 10.5.2.1 2/2 2/2 largest 1500 of 1500, echo reply
overlay fd00:5:0:2::1 2/2 2/2 largest 1500 of 1500, echo reply
underlay 192.0.2.2 2/2 2/2 largest 1500 of 1500, echo reply
underlay 2001:db8::2 2/2 2/2 largest 1500 of 1500, echo reply`)
	if from := got.Ways[0].From.String(); from != "10.5.1.1" {
		t.Errorf("sent from %s", from)
	}
	// Rules about the host itself do not block its containers.
	end := b.drop("input ip daddr 10.5.2.1 icmp type echo-request drop")
	got = a.probe(b, briefRequest())
	if !got.Reached || got.Ways[0].Small.Answered > 0 {
		t.Errorf("%s", dump(got))
	}
	end()
	// Packets that reach the host, and get no further, do not reach its containers.
	b.drop("prerouting ip daddr 10.5.2.0/24 drop")
	got = a.probe(b, briefRequest())
	if got.Reached || got.Ways[0].Small.Answered > 0 {
		t.Errorf("%s", dump(got))
	}
}

// TestOtherGateway checks that a bridge with another address than the gateway's does not make a packet wait for a
// neighbour that does not exist.
func TestOtherGateway(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t, "host-gw")
	b.ns.Sh("ip link add br0 type veth peer name br1; ip link set br1 up; ip addr add 10.5.2.254/24 dev br0; ip addr add fd00:5:0:2::fe/64 dev br0; ip link set br0 up")
	b.ns.Settle()
	checkProbe(t, a.probe(b, patientRequest()), true, `
overlay 10.5.2.1 0/0 1/1 largest 1500 of 1500, time exceeded from 192.0.2.2
overlay fd00:5:0:2::1 0/0 1/1 largest 1500 of 1500, time exceeded from 2001:db8::2
underlay 192.0.2.2 2/2 2/2 largest 1500 of 1500, echo reply
underlay 2001:db8::2 2/2 2/2 largest 1500 of 1500, echo reply`)
}
