package hello

import (
	"net/netip"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

func TestMain(m *testing.M) {
	nstest.RunMoreAtOnce()
	m.Run()
}

// host is a namespace with a device in the overlay and another one.
type host struct {
	ns      *nstest.NS
	addrs   []netip.Addr
	speaker *Speaker
}

func newHosts(t *testing.T) (a, b *host) {
	var joints, others []nstest.Joint
	var hosts []*host
	for _, n := range []string{"1", "2"} {
		h := &host{ns: nstest.New(t), speaker: NewSpeaker(ListenUDP, 1000)}
		h.addrs = []netip.Addr{netip.MustParseAddr("10.5." + n + ".0"), netip.MustParseAddr("fd00:5:" + n + "::")}
		hosts = append(hosts, h)
		joints = append(joints, nstest.Joint{NS: h.ns, Link: "leno-n", Addrs: []string{"10.5." + n + ".0/16", "fd00:5:" + n + "::/32"}})
		others = append(others, nstest.Joint{NS: h.ns, Link: "eth1", Addrs: []string{"192.0.2." + n + "/24"}})
	}
	nstest.Join(joints[0], joints[1])
	nstest.Join(others[0], others[1])
	for _, h := range hosts {
		h.ns.Settle()
		t.Cleanup(func() { h.follow(t, State{}) })
	}
	return hosts[0], hosts[1]
}

func (h *host) follow(t *testing.T, s State) {
	t.Helper()
	h.ns.Do(func() {
		if err := h.speaker.Follow(t.Context(), s); err != nil {
			t.Error(err)
		}
	})
}

func (h *host) meet(t *testing.T, peer *host, links ...string) {
	t.Helper()
	h.follow(t, State{Own: h.addrs, Links: links, Peers: peer.addrs, Pause: time.Minute, Summary: api.HostSummary{Version: "1"}})
}

// until asks until a condition holds, at a pace that the other host admits.
func until(t *testing.T, h *host, to netip.Addr, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("asked %s, and know %+v", to, h.speaker.Of(to))
		}
		h.speaker.Ask(to)
	}
}

// TestSockets: real messages of both families arrive by the named device and only by that one, and only from the port of
// the protocol.
func TestSockets(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t)
	a.meet(t, b, "leno-n")
	b.meet(t, a, "leno-n")
	for _, to := range b.addrs {
		until(t, a, to, func() bool {
			v := a.speaker.Of(to)
			return !v.Arrived.IsZero() && v.Summary.Version == "1"
		})
	}
	heard := func() time.Time { return b.speaker.Of(a.addrs[0]).Heard }

	// Routed over the other device, packets with the same addresses do not count.
	a.ns.Sh("ip route add 10.5.2.0/32 via 192.0.2.2")
	b.ns.Sh("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth1.rp_filter=0")
	before, received := heard(), func() string { return b.ns.Sh("nstat -asz UdpInDatagrams | awk '/Udp/ {print $2}'") }
	for was := received(); received() == was; time.Sleep(10 * time.Millisecond) {
		a.speaker.Ask(b.addrs[0])
	}
	b.follow(t, State{Own: b.addrs, Links: []string{"leno-n"}, Peers: a.addrs, Pause: time.Minute})
	if !heard().Equal(before) {
		t.Error("a message that came by another device counts")
	}
	b.meet(t, a, "leno-n", "eth1")
	until(t, a, b.addrs[0], func() bool { return heard().After(before) })
}

// TestDirection: a rule that drops one direction is seen on both sides, by the direction.
func TestDirection(t *testing.T) {
	t.Parallel()
	a, b := newHosts(t)
	a.meet(t, b, "leno-n")
	b.meet(t, a, "leno-n")
	to, from := b.addrs[0], a.addrs[0]
	until(t, a, to, func() bool { return a.speaker.Of(to).ToPeer != nil })
	b.ns.Sh("nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }; add rule inet t c udp dport 5367 drop'")
	until(t, a, to, func() bool {
		b.speaker.Ask(from)
		v := a.speaker.Of(to)
		return v.ToPeer != nil && *v.ToPeer == 1 && v.FromPeer != nil && *v.FromPeer < 1
	})
}
