package vxlan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/reconcile"
	"github.com/lenonet/leno/internal/testkit/seed"
)

var pools = []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00:5::/48")}

const (
	deviceIndex   = 7
	secondIndex   = 8
	underlayIndex = 2
)

func peer(n int, ips ...string) backend.Peer {
	attrs, _ := json.Marshal(attributes{VNI: 1, Port: 8472, MAC: fmt.Sprintf("0a:58:00:00:00:%02x", n)})
	p := backend.Peer{
		Node: fmt.Sprintf("host-%d", n), Backend: Name, Attributes: attrs,
		Subnets: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", n)),
			netip.MustParsePrefix(fmt.Sprintf("fd00:5:0:%x::/64", n)),
		},
	}
	for _, ip := range ips {
		p.PublicIPs = append(p.PublicIPs, netip.MustParseAddr(ip))
	}
	return p
}

func state(underlay string, peers ...backend.Peer) backend.State {
	return backend.State{
		Subnets:  peer(1).Subnets,
		MTU:      1450,
		Underlay: backend.Underlay{Interface: "eth0", Index: underlayIndex, MTU: 1500, Addrs: []netip.Addr{netip.MustParseAddr(underlay)}},
		Peers:    peers,
	}
}

// flannelPeer returns the peer of a host that runs flannel. Its IPv4 device has the MAC address
// c6:58:00:00:00:03 for n = 3, its IPv6 device c6:58:00:00:06:03.
func flannelPeer(n int, ips ...string) backend.Peer {
	p := peer(n, ips...)
	p.Attributes, _ = json.Marshal(attributes{
		VNI: 1, Port: 8472, OwnFamily: true,
		MAC: fmt.Sprintf("c6:58:00:00:00:%02x", n), MACv6: fmt.Sprintf("c6:58:00:00:06:%02x", n),
	})
	return p
}

// renamed returns the peer with the node and subnets of another.
func renamed(p backend.Peer, n int) backend.Peer {
	p.Node, p.Subnets = peer(n).Node, peer(n).Subnets
	return p
}

// both returns the state of a host that has an underlay address of the other family, too.
func both(s backend.State, other string) backend.State {
	s.Underlay.Addrs = append(s.Underlay.Addrs, netip.MustParseAddr(other))
	return s
}

// TestPrecedence checks that of two peers with one MAC the one that takes precedence keeps its
// path, whatever its name.
func TestPrecedence(t *testing.T) {
	host, stranger := peer(2, "192.0.2.2"), peer(3, "192.0.2.3")
	stranger.Node, stranger.Attributes = "a-stranger", host.Attributes
	host.Precedence, stranger.Precedence = 7, 1<<63
	s := state("192.0.2.1", stranger, host)
	own, err := wantDevice(kernel.MAC{0x0a, 0x58, 0, 0, 0, 1}, defaults(), s)
	if err != nil {
		t.Fatal(err)
	}
	p := newPlan(pools, defaults(), [2]tunnel{{device: own, link: deviceIndex}}, s, nil)
	if len(p.skipped) != 1 || p.skipped[0].Node != "a-stranger" || p.peers != 1 {
		t.Errorf("skipped %+v, %d peers", p.skipped, p.peers)
	}
	if text := p.dump(); !strings.Contains(text, host.Subnets[0].String()) || strings.Contains(text, stranger.Subnets[0].String()) {
		t.Errorf("plan:\n%s", text)
	}
}

// translated returns the state of a host whose first public address is a NAT's, and whose own
// address is own.
func translated(s backend.State, own string) backend.State {
	s.Underlay.Own = append([]netip.Addr{netip.MustParseAddr(own)}, s.Underlay.Addrs[1:]...)
	return s
}

// dump returns a plan as text.
func (p plan) dump() string {
	out := ""
	for i, t := range p.devices {
		tables := reconcile.Dump(t.Addresses, kernel.CompareAddresses) + reconcile.Dump(t.FDB, kernel.CompareFDB) +
			reconcile.Dump(t.Neighbours, kernel.CompareNeighbours)
		if i == 1 && tables != "" {
			out += "second device\n"
		}
		out += tables
	}
	out += reconcile.Dump(p.routes, kernel.CompareRoutes)
	for _, s := range p.skipped {
		out += "skipped " + s.Node + ": " + s.Reason + "\n"
	}
	var lines []string
	for line := range strings.Lines(out + fmt.Sprintf("peers %d\n", p.peers)) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.Join(lines, "\n")
}

func TestPlan(t *testing.T) {
	mac := kernel.MAC{0x0a, 0x58, 0, 0, 0, 1}
	tests := []struct {
		name   string
		state  backend.State
		direct []string
		want   string
	}{
		{"alone", state("192.0.2.1"), nil, `10.5.1.0/32
fd00:5:0:1::/128
10.5.0.0/16 metric 16777216 unreachable
fd00:5::/48 metric 16777216 unreachable
peers 0`},
		{"two peers over IPv4", state("192.0.2.1", peer(3, "192.0.2.3", "2001:db8::3"), peer(2, "192.0.2.2")), nil, `10.5.1.0/32
fd00:5:0:1::/128
0a:58:00:00:00:02 dst 192.0.2.2
0a:58:00:00:00:03 dst 192.0.2.3
10.5.2.0 0a:58:00:00:00:02
10.5.3.0 0a:58:00:00:00:03
fd00:5:0:2:: 0a:58:00:00:00:02
fd00:5:0:3:: 0a:58:00:00:00:03
10.5.0.0/16 metric 16777216 unreachable
10.5.2.0/24 via 10.5.2.0 link 7 onlink
10.5.3.0/24 via 10.5.3.0 link 7 onlink
fd00:5::/48 metric 16777216 unreachable
fd00:5:0:2::/64 via fd00:5:0:2:: link 7 onlink
fd00:5:0:3::/64 via fd00:5:0:3:: link 7 onlink
peers 2`},
		{"over IPv6, one peer without it, one that uses the other", state("2001:db8::1", peer(2, "2001:db8::2", "192.0.2.2"), peer(3, "192.0.2.3"), peer(4, "192.0.2.4", "2001:db8::4")), nil, `10.5.1.0/32
fd00:5:0:1::/128
0a:58:00:00:00:02 dst 2001:db8::2
10.5.2.0 0a:58:00:00:00:02
fd00:5:0:2:: 0a:58:00:00:00:02
10.5.0.0/16 metric 16777216 unreachable
10.5.2.0/24 via 10.5.2.0 link 7 onlink
fd00:5::/48 metric 16777216 unreachable
fd00:5:0:2::/64 via fd00:5:0:2:: link 7 onlink
skipped host-3: no IPv6 public address
skipped host-4: receives over IPv4, and this host over IPv6
peers 1`},
		{"direct routing takes what the gateway's family allows",
			state("192.0.2.1", peer(2, "192.0.2.2", "2001:db8::2"), peer(3, "192.0.2.3"), peer(4, "198.51.100.4")),
			[]string{"192.0.2.2", "2001:db8::2", "192.0.2.3"}, `10.5.1.0/32
fd00:5:0:1::/128
0a:58:00:00:00:03 dst 192.0.2.3
0a:58:00:00:00:04 dst 198.51.100.4
10.5.4.0 0a:58:00:00:00:04
fd00:5:0:3:: 0a:58:00:00:00:03
fd00:5:0:4:: 0a:58:00:00:00:04
10.5.0.0/16 metric 16777216 unreachable
10.5.2.0/24 via 192.0.2.2 link 2
10.5.3.0/24 via 192.0.2.3 link 2
10.5.4.0/24 via 10.5.4.0 link 7 onlink
fd00:5::/48 metric 16777216 unreachable
fd00:5:0:2::/64 via 2001:db8::2 link 2
fd00:5:0:3::/64 via fd00:5:0:3:: link 7 onlink
fd00:5:0:4::/64 via fd00:5:0:4:: link 7 onlink
peers 3`},
		{"a host that runs flannel, of each family over its own",
			both(state("192.0.2.1", peer(2, "192.0.2.2", "2001:db8::2"),
				flannelPeer(3, "192.0.2.3", "2001:db8::3")), "2001:db8::1"),
			nil, `10.5.1.0/32
fd00:5:0:1::/128
0a:58:00:00:00:02 dst 192.0.2.2
c6:58:00:00:00:03 dst 192.0.2.3
10.5.2.0 0a:58:00:00:00:02
10.5.3.0 c6:58:00:00:00:03
fd00:5:0:2:: 0a:58:00:00:00:02
second device
fd00:5:0:1::/128
c6:58:00:00:06:03 dst 2001:db8::3
fd00:5:0:3:: c6:58:00:00:06:03
10.5.0.0/16 metric 16777216 unreachable
10.5.2.0/24 via 10.5.2.0 link 7 onlink
10.5.3.0/24 via 10.5.3.0 link 7 onlink
fd00:5::/48 metric 16777216 unreachable
fd00:5:0:2::/64 via fd00:5:0:2:: link 7 onlink
fd00:5:0:3::/64 via fd00:5:0:3:: link 8 onlink
peers 2`},
		{"flannel, and IPv6 is preferred here",
			both(state("2001:db8::1", flannelPeer(3, "192.0.2.3", "2001:db8::3")), "192.0.2.1"), nil, `10.5.1.0/32
fd00:5:0:1::/128
c6:58:00:00:06:03 dst 2001:db8::3
fd00:5:0:3:: c6:58:00:00:06:03
second device
10.5.1.0/32
c6:58:00:00:00:03 dst 192.0.2.3
10.5.3.0 c6:58:00:00:00:03
10.5.0.0/16 metric 16777216 unreachable
10.5.3.0/24 via 10.5.3.0 link 8 onlink
fd00:5::/48 metric 16777216 unreachable
fd00:5:0:3::/64 via fd00:5:0:3:: link 7 onlink
peers 1`},
		{"flannel, and this host has no IPv6 address",
			state("192.0.2.1", flannelPeer(3, "192.0.2.3", "2001:db8::3")), nil, `10.5.1.0/32
fd00:5:0:1::/128
c6:58:00:00:00:03 dst 192.0.2.3
10.5.3.0 c6:58:00:00:00:03
10.5.0.0/16 metric 16777216 unreachable
10.5.3.0/24 via 10.5.3.0 link 7 onlink
fd00:5::/48 metric 16777216 unreachable
skipped host-3: flannel receives fd00:5:0:3::/64 over IPv6, and this host cannot send over IPv6
peers 0`},
		{"flannel without an IPv6 address, one with our addresses, and two of one MAC address",
			both(state("192.0.2.1", flannelPeer(3, "192.0.2.3"), flannelPeer(4, "192.0.2.1", "2001:db8::1"),
				flannelPeer(5, "192.0.2.5", "2001:db8::5"), renamed(flannelPeer(5, "192.0.2.6", "2001:db8::6"), 6)), "2001:db8::1"),
			nil, `10.5.1.0/32
fd00:5:0:1::/128
c6:58:00:00:00:03 dst 192.0.2.3
c6:58:00:00:00:05 dst 192.0.2.5
10.5.3.0 c6:58:00:00:00:03
10.5.5.0 c6:58:00:00:00:05
second device
fd00:5:0:1::/128
c6:58:00:00:06:05 dst 2001:db8::5
fd00:5:0:5:: c6:58:00:00:06:05
10.5.0.0/16 metric 16777216 unreachable
10.5.3.0/24 via 10.5.3.0 link 7 onlink
10.5.5.0/24 via 10.5.5.0 link 7 onlink
fd00:5::/48 metric 16777216 unreachable
fd00:5:0:5::/64 via fd00:5:0:5:: link 8 onlink
skipped host-3: no IPv6 public address for fd00:5:0:3::/64, which flannel receives over IPv6
skipped host-4: its public address 192.0.2.1 is this host's; its public address 2001:db8::1 is this host's
skipped host-6: vtep_mac c6:58:00:00:00:05 is that of node host-5 too; vtep_mac_v6 c6:58:00:00:06:05 is that of node host-5 too
peers 1`},
		{"behind NAT, and our public address in a peer's record",
			translated(state("203.0.113.1", peer(2, "203.0.113.2"), peer(3, "203.0.113.1")), "192.0.2.1"), nil, `10.5.1.0/32
fd00:5:0:1::/128
0a:58:00:00:00:02 dst 203.0.113.2
10.5.2.0 0a:58:00:00:00:02
fd00:5:0:2:: 0a:58:00:00:00:02
10.5.0.0/16 metric 16777216 unreachable
10.5.2.0/24 via 10.5.2.0 link 7 onlink
fd00:5::/48 metric 16777216 unreachable
fd00:5:0:2::/64 via fd00:5:0:2:: link 7 onlink
skipped host-3: its public address 203.0.113.1 is this host's
peers 1`},
		{"our own address in a peer's record", state("192.0.2.1", peer(2, "192.0.2.1")), nil, `10.5.1.0/32
fd00:5:0:1::/128
10.5.0.0/16 metric 16777216 unreachable
fd00:5::/48 metric 16777216 unreachable
skipped host-2: its public address 192.0.2.1 is this host's
peers 0`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			direct := map[netip.Addr]bool{}
			for _, ip := range tt.direct {
				direct[netip.MustParseAddr(ip)] = true
			}
			first, err := wantDevice(mac, defaults(), tt.state)
			if err != nil {
				t.Fatal(err)
			}
			tunnels := [2]tunnel{{device: first, link: deviceIndex}}
			if second, ok := wantSecond(first, first.mac, tt.state); ok {
				tunnels[1] = tunnel{device: second, link: secondIndex}
			}
			build := func() string {
				return newPlan(pools, defaults(), tunnels, tt.state, direct).dump()
			}
			if got := build(); got != tt.want {
				t.Errorf("plan\n%s\nwant\n%s", got, tt.want)
			}
			seed.Rand(t).Shuffle(len(tt.state.Peers), func(i, j int) {
				tt.state.Peers[i], tt.state.Peers[j] = tt.state.Peers[j], tt.state.Peers[i]
			})
			if got := build(); got != tt.want {
				t.Errorf("plan of shuffled peers\n%s", got)
			}
		})
	}
}

func TestWantDeviceMTU(t *testing.T) {
	for _, tt := range []struct {
		underlay  string
		mtu, room int
		want      int
	}{
		{"192.0.2.1", 0, 1500, 1450},
		{"2001:db8::1", 0, 1500, 1430},
		{"192.0.2.1", 0, 9000, 8950},
		{"192.0.2.1", 1400, 1500, 1400},
		{"192.0.2.1", 1450, 1400, 1350}, // the underlay's MTU has shrunk since
		{"2001:db8::1", 1450, 1500, 1430},
	} {
		s := state(tt.underlay)
		s.MTU, s.Underlay.MTU = tt.mtu, tt.room
		if got, err := wantDevice(kernel.MAC{}, defaults(), s); err != nil || got.mtu != tt.want {
			t.Errorf("%+v: mtu %d, %v", tt, got.mtu, err)
		}
	}
	if _, err := wantDevice(kernel.MAC{}, defaults(), backend.State{}); err == nil {
		t.Error("no error for an underlay without address")
	}
}

func TestDeviceDifferences(t *testing.T) {
	want, err := wantDevice(kernel.MAC{0x0a, 1}, defaults(), state("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name     string
		change   func(d *device)
		new      string
		underlay string
	}{
		{"none", func(*device) {}, "", ""},
		{"vni", func(d *device) { d.vni++ }, "vni", ""},
		{"port", func(d *device) { d.port++ }, "port", ""},
		{"gbp", func(d *device) { d.gbp = true }, "gbp", ""},
		{"another make", func(d *device) { d.other = "external control" }, "external control", ""},
		{"family", func(d *device) { d.local = netip.MustParseAddr("2001:db8::1") }, "address family",
			"address 2001:db8::1 instead of 192.0.2.1"},
		{"no local address", func(d *device) { d.local = netip.Addr{} }, "address family",
			"address invalid IP instead of 192.0.2.1"},
		{"local", func(d *device) { d.local = netip.MustParseAddr("192.0.2.9") }, "", "address 192.0.2.9 instead of 192.0.2.1"},
		{"parent", func(d *device) { d.parent++ }, "", "interface 3 instead of 2"},
		{"learning", func(d *device) { d.learning = true }, "", "learning was on"},
		{"all else", func(d *device) { d.mac, d.mtu = kernel.MAC{2}, 1300 }, "", ""},
	} {
		have := want
		tt.change(&have)
		if got := have.needsNew(want); got != tt.new {
			t.Errorf("%s: needs new for %q, want %q", tt.name, got, tt.new)
		}
		if got := have.otherUnderlay(want); got != tt.underlay {
			t.Errorf("%s: other underlay: %q, want %q", tt.name, got, tt.underlay)
		}
	}
}

// TestInterrupts checks that the options declared to interrupt traffic are those that need another
// device or that peers must share.
func TestInterrupts(t *testing.T) {
	peers := peer(2, "192.0.2.2")
	for option, change := range map[string]func(*options){
		"vni": func(o *options) { o.VNI++ }, "port": func(o *options) { o.Port++ }, "gbp": func(o *options) { o.GBP = true },
		"direct_routing": func(o *options) { o.DirectRouting = true }, "checksum_offload": func(o *options) { o.Checksum = checksumOff },
	} {
		o := defaults()
		change(&o)
		have, err := wantDevice(kernel.MAC{0x0a, 1}, defaults(), state("192.0.2.1"))
		if err != nil {
			t.Fatal(err)
		}
		want, err := wantDevice(kernel.MAC{0x0a, 1}, o, state("192.0.2.1"))
		if err != nil {
			t.Fatal(err)
		}
		_, skipped := planner{options: o}.published(peers)
		stops := have.needsNew(want) != "" || skipped != ""
		if _, told := interrupts()[option]; told != stops {
			t.Errorf("%s stops packets: %t, but told: %t", option, stops, told)
		}
	}
	if n := len(interrupts()); n != 3 {
		t.Errorf("%d options stop packets", n)
	}
}

func TestNormalize(t *testing.T) {
	for in, want := range map[string]string{
		``:   `{"vni":1,"port":8472,"gbp":false,"direct_routing":false,"checksum_offload":"auto","mtu":0}`,
		`{}`: `{"vni":1,"port":8472,"gbp":false,"direct_routing":false,"checksum_offload":"auto","mtu":0}`,
		`{"vni":16777215,"port":4789,"gbp":true,"direct_routing":true,"checksum_offload":"off","mtu":1400}`: `{"vni":16777215,"port":4789,"gbp":true,"direct_routing":true,"checksum_offload":"off","mtu":1400}`,
	} {
		got, err := normalize(json.RawMessage(in))
		if err != nil || string(got) != want {
			t.Errorf("normalize(%s) = %s, %v", in, got, err)
		}
		if again, err := normalize(got); err != nil || string(again) != string(got) {
			t.Errorf("normalize of its own result: %s, %v", again, err)
		}
	}
	for in, want := range map[string]string{
		`{"vni":0}`:                        "vni: must be 1 to 16777215, is 0",
		`{"vni":16777216}`:                 "vni: must be 1 to 16777215, is 16777216",
		`{"vni":1.5}`:                      "vni: must be a whole number, is 1.5",
		`{"vni":null}`:                     "vni: must be a whole number, is null",
		`{"port":65536,"vni":-1}`:          "vni: must be 1 to 16777215, is -1\nport: must be 1 to 65535, is 65536",
		`{"gbp":"yes","direct_routing":1}`: "direct_routing: must be true or false, is 1\ngbp: must be true or false, is \"yes\"",
		`{"gbp":"yes","port":0,"vni":"x"}`: "gbp: must be true or false, is \"yes\"\nvni: must be a whole number, is \"x\"\nport: must be 1 to 65535, is 0",
		`{"checksum_offload":"maybe"}`:     "checksum_offload: must be \"auto\", \"on\" or \"off\", is \"maybe\"",
		`{"mtu":70000}`:                    "mtu: must be 0 or 68 to 65535, is 70000",
		`{"VNI":1,"type":"vxlan"}`:         "VNI: unknown option of backend vxlan\ntype: unknown option of backend vxlan",
	} {
		_, err := normalize(json.RawMessage(in))
		if err == nil || err.Error() != want {
			t.Errorf("normalize(%s): %v, want %s", in, err, want)
		}
		if of := (*backend.OptionError)(nil); !errors.As(err, &of) {
			t.Errorf("normalize(%s): %T is no OptionError", in, err)
		}
	}
	for _, in := range []string{`[]`, `{`, `1`} {
		if _, err := normalize(json.RawMessage(in)); err == nil {
			t.Errorf("normalize(%s): no error", in)
		}
	}
}

// TestVTEPMACIsForEver checks that an upgrade does not change the MAC address, because peers know
// it.
func TestVTEPMACIsForEver(t *testing.T) {
	got := vtepMAC("6f1c6b2e-6c5d-4a0f-9c1e-0a3b5d7f9e11", "default")
	if got.String() != "0a:3b:76:07:35:e5" {
		t.Errorf("address %s", got)
	}
	if other := vtepMAC("6f1c6b2e-6c5d-4a0f-9c1e-0a3b5d7f9e11", "other"); other == got {
		t.Error("two networks share an address")
	}
	if !got.Unicast() || got[0]&2 == 0 {
		t.Errorf("%s is not locally administered unicast", got)
	}
}

func FuzzPeerAttributes(f *testing.F) {
	f.Add([]byte(`{"vni":1,"port":8472,"vtep_mac":"0a:58:00:00:00:01"}`))
	f.Add([]byte(`{"vni":1,"port":8472,"vtep_mac":"00:00:00:00:fe:80:00:00:00:00:00:00:02:00:5e:10:00:00:00:01"}`))
	f.Add([]byte(`{"vni":1,"port":8472,"own_family":true,` +
		`"vtep_mac":"0a:58:00:00:00:01","vtep_mac_v6":"0a:58:00:00:00:02"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, attrs []byte) {
		a, reason := planner{options: defaults()}.published(backend.Peer{Attributes: attrs})
		if reason != "" {
			return
		}
		for _, text := range []string{a.MAC, cmp.Or(a.MACv6, a.MAC)} {
			if mac, err := kernel.ParseMAC(text); err != nil || !mac.Unicast() {
				t.Errorf("%s accepted out of %s", text, attrs)
			}
		}
	})
}
