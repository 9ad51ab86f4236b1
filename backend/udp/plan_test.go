package udp

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/backend"
)

var pools = prefixes("10.5.0.0/16", "fd00:5::/48")

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func udpPeer(node, subnet string, public ...string) backend.Peer {
	return backend.Peer{
		Node: node, Subnets: prefixes(subnet), PublicIPs: addrs(public...),
		Backend: Name, Attributes: json.RawMessage(`{"port":8285}`),
	}
}

func hostState(peers ...backend.Peer) backend.State {
	return backend.State{
		Subnets:  prefixes("10.5.1.0/24", "fd00:5:0:1::/64"),
		MTU:      1472,
		Underlay: backend.Underlay{Interface: "eth0", MTU: 1500, Addrs: addrs("192.0.2.1")},
		Peers:    peers,
	}
}

// dump returns a plan as text.
func (p plan) dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen %s own %v\n", p.listen, p.own)
	for _, peer := range p.peers {
		fmt.Fprintf(&b, "peer %s %v from %v\n", peer.node, peer.subnets, peer.sources)
	}
	for _, skip := range p.skipped {
		fmt.Fprintf(&b, "skip %s: %s\n", skip.Node, skip.Reason)
	}
	return b.String()
}

const hostDump = "listen 192.0.2.1:8285 own [10.5.1.0/24 fd00:5:0:1::/64]\n"

func TestPlan(t *testing.T) {
	with := func(p backend.Peer, change func(*backend.Peer)) backend.Peer {
		change(&p)
		return p
	}
	b := udpPeer("host-b", "10.5.2.0/24", "192.0.2.2")
	tests := []struct {
		name  string
		peers []backend.Peer
		want  string
	}{
		{"alone", nil, ""},
		{"one peer", []backend.Peer{b}, "peer host-b [10.5.2.0/24] from [192.0.2.2:8285]\n"},
		{"both families inside", []backend.Peer{with(b, func(p *backend.Peer) { p.Subnets = prefixes("10.5.2.0/24", "fd00:5:0:2::/64") })},
			"peer host-b [10.5.2.0/24 fd00:5:0:2::/64] from [192.0.2.2:8285]\n"},
		{"flannel with both families", []backend.Peer{with(b, func(p *backend.Peer) {
			p.Subnets, p.Attributes = prefixes("10.5.2.0/24", "fd00:5:0:7::/64"), json.RawMessage(`{"port":8285,"ipv4_only":true}`)
		})}, "peer host-b [10.5.2.0/24] from [192.0.2.2:8285]\n" +
			"skip host-b: receives no IPv6 packets: it runs flannel, whose udp carries IPv4 only\n"},
		{"its own port", []backend.Peer{with(b, func(p *backend.Peer) { p.Attributes = json.RawMessage(`{"port":9}`) })},
			"peer host-b [10.5.2.0/24] from [192.0.2.2:9]\n"},
		{"several public addresses, one of the other family", []backend.Peer{udpPeer("host-b", "10.5.2.0/24", "192.0.2.2", "2001:db8::2", "192.0.2.3")},
			"peer host-b [10.5.2.0/24] from [192.0.2.2:8285 192.0.2.3:8285]\n"},
		{"mapped public address", []backend.Peer{udpPeer("host-b", "10.5.2.0/24", "::ffff:192.0.2.2")},
			"peer host-b [10.5.2.0/24] from [192.0.2.2:8285]\n"},
		{"another backend", []backend.Peer{with(b, func(p *backend.Peer) { p.Backend = "vxlan" })},
			"skip host-b: runs backend \"vxlan\", not \"udp\"\n"},
		{"no port", []backend.Peer{with(b, func(p *backend.Peer) { p.Attributes = json.RawMessage(`{}`) })},
			"skip host-b: attributes: port is not a whole number from 1 to 65535\n"},
		{"only the other family", []backend.Peer{udpPeer("host-b", "10.5.2.0/24", "2001:db8::2")},
			"skip host-b: no IPv4 public address\n"},
		{"it uses the other family", []backend.Peer{udpPeer("host-b", "10.5.2.0/24", "2001:db8::2", "192.0.2.2")},
			"skip host-b: receives over IPv6, and this host over IPv4\n"},
		{"our public address", []backend.Peer{udpPeer("host-b", "10.5.2.0/24", "192.0.2.1")},
			"skip host-b: its public address 192.0.2.1 is this host's\n"},
		{"bad ones take nothing from good ones", []backend.Peer{udpPeer("host-a", "10.5.2.0/24", "2001:db8::2"), b},
			"peer host-b [10.5.2.0/24] from [192.0.2.2:8285]\nskip host-a: no IPv4 public address\n"},
		{"no subnet", []backend.Peer{with(b, func(p *backend.Peer) { p.Subnets = nil })}, "skip host-b: has no subnet\n"},
		{"out of the network", []backend.Peer{udpPeer("host-b", "10.6.2.0/24", "192.0.2.2")},
			"skip host-b: subnet 10.6.2.0/24 is outside the network\n"},
		{"the whole network", []backend.Peer{udpPeer("host-b", "10.5.0.0/16", "192.0.2.2")},
			"skip host-b: subnet 10.5.0.0/16 is our own\n"},
		{"our subnet", []backend.Peer{udpPeer("host-b", "10.5.1.128/25", "192.0.2.2")},
			"skip host-b: subnet 10.5.1.128/25 is our own\n"},
		{"one bad among good, any order", []backend.Peer{
			udpPeer("host-d", "10.5.4.0/24", "192.0.2.4"), udpPeer("host-c", "10.5.2.0/24", "192.0.2.3"), b},
			"peer host-b [10.5.2.0/24] from [192.0.2.2:8285]\npeer host-d [10.5.4.0/24] from [192.0.2.4:8285]\n" +
				"skip host-c: subnet 10.5.2.0/24 is node host-b's too\n"},
		{"two leases of one address", []backend.Peer{b, udpPeer("host-old", "10.5.3.0/24", "192.0.2.2")},
			"peer host-b [10.5.2.0/24] from [192.0.2.2:8285]\npeer host-old [10.5.3.0/24] from [192.0.2.2:8285]\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := newPlan(pools, options{Port: 8285}, hostState(tt.peers...))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(hostDump+tt.want, p.dump()); diff != "" {
				t.Error(diff)
			}
			slices.Reverse(tt.peers)
			if q, err := newPlan(pools, options{Port: 8285}, hostState(tt.peers...)); err != nil || q.dump() != p.dump() {
				t.Errorf("another order of peers gave %s, %v", q.dump(), err)
			}
		})
	}
}

func TestPlanRefusesHost(t *testing.T) {
	tests := []struct {
		name   string
		change func(*backend.State)
		want   string
	}{
		{"no address", func(s *backend.State) { s.Underlay.Addrs = nil }, "underlay eth0 has no public address"},
		{"no address behind the public one", func(s *backend.State) { s.Underlay.Own = make([]netip.Addr, 2) },
			"underlay eth0 has no IPv4 address of its own to send from behind the public 192.0.2.1"},
		{"no MTU", func(s *backend.State) { s.MTU = 0 }, "overlay MTU of 0 is below 68"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := hostState()
			tt.change(&s)
			if _, err := newPlan(pools, options{Port: 8285}, s); err == nil || err.Error() != tt.want {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAdvertise(t *testing.T) {
	tests := []struct {
		name  string
		pools []netip.Prefix
		mtu   int
		addrs []netip.Addr
		want  int // MTU; 0: an error
		over  string
	}{
		{"IPv4 underlay", pools, 1500, addrs("192.0.2.1", "2001:db8::1"), 1472, "28 for UDP over IPv4"},
		{"IPv6 underlay", pools, 1500, addrs("2001:db8::1", "192.0.2.1"), 1452, "48 for UDP over IPv6"},
		{"mapped address", pools, 1500, addrs("::ffff:192.0.2.1"), 1472, "28 for UDP over IPv4"},
		{"jumbo frames", pools, 9000, addrs("192.0.2.1"), 8972, "28 for UDP over IPv4"},
		{"wider than a datagram can be", pools, 65536, addrs("192.0.2.1"), 65507, "29 since no datagram is longer"},
		{"just enough for IPv6", pools, 1308, addrs("192.0.2.1"), 1280, "28 for UDP over IPv4"},
		{"too little for IPv6", pools, 1307, addrs("192.0.2.1"), 0, ""},
		{"little is enough for IPv4", pools[:1], 576, addrs("192.0.2.1"), 548, "28 for UDP over IPv4"},
		{"too little for IPv4", pools[:1], 95, addrs("192.0.2.1"), 0, ""},
		{"no address", pools, 1500, nil, 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := advertise(tt.pools, options{Port: 7}, backend.Underlay{Interface: "eth0", MTU: tt.mtu, Addrs: tt.addrs})
			if tt.want == 0 {
				if err == nil {
					t.Fatalf("got %+v", got)
				}
				return
			}
			if err != nil || got.MTU != tt.want || got.Overhead != tt.over || string(got.Attributes) != `{"port":7}` {
				t.Errorf("got MTU %d, %s, attributes %s, %v", got.MTU, got.Overhead, got.Attributes, err)
			}
		})
	}
}
