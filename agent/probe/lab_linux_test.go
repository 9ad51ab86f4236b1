package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/hostgw"
	"github.com/lenonet/leno/backend/udp"
	"github.com/lenonet/leno/backend/vxlan"
	"github.com/lenonet/leno/backend/wireguard"
	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/internal/testkit/waiting"
)

func TestMain(m *testing.M) {
	nstest.RunMoreAtOnce()
	m.Run()
}

// host is a namespace with an underlay, and a real backend's datapath over it.
// Host n has the subnets 10.5.n.0/24 and fd00:5:0:n::/64, and the addresses
// 192.0.2.n and 2001:db8::n.
type host struct {
	t       *testing.T
	n       int
	dir     string // of its state
	kind    backend.Type
	ns      *nstest.NS
	backend backend.Backend
	mtu     int
	words   *strings.Replacer // for scripts

	masquerade bool
	outer6     bool // the public address is IPv6 only
}

var pools = []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00:5::/48")}

func kindOf(name string) backend.Type {
	return map[string]func() backend.Type{"vxlan": vxlan.Type, "udp": udp.Type, "host-gw": hostgw.Type, "wireguard": wireguard.Type}[name]()
}

// newHosts returns hosts 1 and 2, neighbours on an underlay with an MTU of 1500.
func newHosts(t *testing.T, kind string) (a, b *host) { return newHostsOver(t, kind, false) }

func newHostsOver(t *testing.T, kind string, outer6 bool) (a, b *host) {
	t.Helper()
	var out [2]*host
	var joints [2]nstest.Joint
	for i := range out {
		out[i] = &host{t: t, n: i + 1, dir: t.TempDir(), kind: kindOf(kind), ns: nstest.New(t), outer6: outer6}
		out[i].ns.Sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
		joints[i] = nstest.Joint{NS: out[i].ns, Link: "eth0"}
		for _, a := range out[i].addrs() {
			joints[i].Addrs = append(joints[i].Addrs, netip.PrefixFrom(a, map[bool]int{true: 24, false: 64}[a.Is4()]).String())
		}
	}
	nstest.Join(joints[0], joints[1])
	a, b = out[0], out[1]
	a.meet(b)
	return a, b
}

// meet makes hosts peers of each other and waits until packets pass: kernels need a
// moment with new devices and addresses.
func (h *host) meet(peer *host) {
	h.t.Helper()
	h.apply(peer)
	peer.apply(h)
	if h.kind.Name == hostgw.Name {
		return // it has none, and few errors to spare
	}
	waiting.Eventually(h.t, func() error {
		if got := h.probe(peer, api.ProbeRequest{Count: 1, TimeoutMS: 200}); !got.Reached {
			return fmt.Errorf("no packet passes:\n%s", dump(got))
		}
		return nil
	})
}

func (h *host) addrs() []netip.Addr {
	v6 := netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", h.n))
	if h.outer6 {
		return []netip.Addr{v6}
	}
	return []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(h.n)}), v6}
}

func (h *host) subnets() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", h.n)), netip.MustParsePrefix(fmt.Sprintf("fd00:5:0:%d::/64", h.n))}
}

func (h *host) options() json.RawMessage {
	h.t.Helper()
	o, err := h.kind.Normalize(nil)
	if err != nil {
		h.t.Fatal(err)
	}
	return o
}

// apply builds the host's datapath with one peer.
func (h *host) apply(peer *host) {
	h.t.Helper()
	node := func(x *host) string { return fmt.Sprintf("node-%d", x.n) }
	build := func(x *host) backend.Backend {
		b, err := x.kind.New(backend.Config{Network: "n", Link: "leno-n", NodeID: node(x), DataDir: x.dir, Pools: pools, Options: x.options(), Logger: hclog.NewNullLogger()})
		if err != nil {
			h.t.Fatal(err)
		}
		h.t.Cleanup(func() {
			if err := b.Close(); err != nil {
				h.t.Error(err)
			}
		})
		return b
	}
	place := func(x *host) backend.Underlay {
		return backend.Underlay{Interface: "eth0", Index: x.ns.Index("eth0"), MTU: 1500, Addrs: x.addrs(), Devices: []string{"eth0"}}
	}
	advertise := func(x *host, b backend.Backend) (out backend.Advertisement) {
		x.ns.Do(func() {
			var err error
			if out, err = b.Advertise(place(x)); err != nil {
				h.t.Fatal(err)
			}
		})
		return out
	}
	h.backend = build(h)
	h.mtu = advertise(h, h.backend).MTU
	s := backend.State{Subnets: h.subnets(), MTU: h.mtu, Underlay: place(h), Peers: []backend.Peer{{
		Node: node(peer), Subnets: peer.subnets(), PublicIPs: peer.addrs(), Backend: h.kind.Name, Attributes: advertise(peer, build(peer)).Attributes}}}
	h.ns.Do(func() {
		if r, err := h.backend.Apply(context.Background(), s); err != nil || r.Peers != 1 {
			h.t.Fatalf("%+v, %v", r, err)
		}
	})
	h.ns.Settle()
}

// probe probes the other host.
func (h *host) probe(peer *host, r api.ProbeRequest) (out api.PeerProbe) {
	h.t.Helper()
	me := Host{Network: "n", Backend: h.kind.Name, Options: h.options(), Link: "leno-n", Subnets: h.subnets(), MTU: h.mtu,
		Underlay: api.Underlay{Interface: "eth0", MTU: 1500, Addresses: h.addrs()}, Masquerade: h.masquerade}
	peers := []api.Peer{{Node: "peer", Subnets: peer.subnets(), PublicIPs: peer.addrs(), Backend: h.kind.Name, Held: true}}
	h.ns.Do(func() {
		got, err := Run(context.Background(), me, peers, r)
		if err != nil || len(got.Peers) != 1 {
			h.t.Fatalf("%+v, %v", got, err)
		}
		out = got.Peers[0]
	})
	return out
}

// briefRequest keeps probes of dead paths short, calm gives those of others time.
func briefRequest() api.ProbeRequest {
	return api.ProbeRequest{Count: 2, IntervalMS: 20, TimeoutMS: 1000}
}

func patientRequest() api.ProbeRequest {
	return api.ProbeRequest{Count: 2, IntervalMS: 20, TimeoutMS: 10_000}
}

// dump formats a probe without its times: a line for each path, and one for the directions.
func dump(o api.PeerProbe) string {
	var b strings.Builder
	for _, w := range o.Ways {
		fmt.Fprintf(&b, "%s %s", w.Path, w.To)
		if w.NotProbed != "" {
			fmt.Fprintf(&b, " not probed: %s\n", w.NotProbed)
			continue
		}
		for _, s := range []api.ProbedSize{w.Small, w.Full} {
			fmt.Fprintf(&b, " %d/%d", s.Answered, s.Sent)
			if s.Answered > 0 && (s.MinMS <= 0 || s.AvgMS < s.MinMS || s.MaxMS < s.AvgMS) {
				fmt.Fprintf(&b, " in impossible %g %g %g ms", s.MinMS, s.AvgMS, s.MaxMS)
			}
		}
		fmt.Fprintf(&b, " largest %d of %d", w.Largest, w.MTU)
		if w.Answer != "" {
			fmt.Fprintf(&b, ", %s", w.Answer)
		}
		for _, e := range w.Errors {
			fmt.Fprintf(&b, "; %s", e.Reason)
			if e.From.IsValid() {
				fmt.Fprintf(&b, " from %s", e.From)
			}
			if e.MTU > 0 {
				fmt.Fprintf(&b, " mtu %d", e.MTU)
			}
			if e.About != "" {
				fmt.Fprintf(&b, " about %s", e.About)
			}
		}
		b.WriteByte('\n')
	}
	if o.ToPeer != nil && o.FromPeer != nil {
		fmt.Fprintf(&b, "to %s, from %s\n", o.ToPeer.State, o.FromPeer.State)
	}
	return b.String()
}

// checkProbe compares a probe with the expected one.
func checkProbe(t *testing.T, o api.PeerProbe, reached bool, want string) {
	t.Helper()
	if diff := cmp.Diff(strings.TrimSpace(want)+"\n", dump(o)); diff != "" || o.Reached != reached {
		t.Errorf("reached %v, want %v (-want +got):\n%s", o.Reached, reached, diff)
	}
}
