package wireguard

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/reconcile"
)

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// testKey returns the same valid key for the same number.
func testKey(n byte) wgtypes.Key {
	key := wgtypes.Key{n, 1}
	return key
}

func testPeer(n int, change ...func(*backend.Peer)) backend.Peer {
	p := backend.Peer{
		Node:       fmt.Sprint("n", n),
		Subnets:    prefixes(fmt.Sprintf("10.5.%d.0/24", n), fmt.Sprintf("fd00:5:0:%d::/64", n)),
		PublicIPs:  addrs(fmt.Sprintf("192.0.2.%d", n), fmt.Sprintf("2001:db8::%d", n)),
		Backend:    Name,
		Attributes: json.RawMessage(fmt.Sprintf(`{"public_key":%q,"listen_port":51820,"later":1}`, testKey(byte(n)))),
	}
	for _, c := range change {
		c(&p)
	}
	return p
}

func TestPlan(t *testing.T) {
	public := func(texts ...string) func(*backend.Peer) {
		return func(p *backend.Peer) { p.PublicIPs = addrs(texts...) }
	}
	attributes := func(text string) func(*backend.Peer) {
		return func(p *backend.Peer) { p.Attributes = json.RawMessage(text) }
	}
	members := func(text string) func(*backend.Peer) {
		return attributes(fmt.Sprintf(`{"public_key":%q,"listen_port":51820,%s}`, testKey(2), text))
	}
	own := func(n int) func(*backend.Peer) { return func(p *backend.Peer) { p.Subnets = subnets(n) } }
	both, only4, only6 := addrs("192.0.2.1", "2001:db8::1"), addrs("192.0.2.1"), addrs("2001:db8::1")
	for name, tt := range map[string]struct {
		underlay []netip.Addr
		behind   []netip.Addr // the host's own addresses behind NAT
		options  options      // with the default port
		ports    map[uint16]uint16
		peer     backend.Peer
		want     string // the peer, its other ways and "$", or why it is skipped
	}{
		"both families":                      {underlay: both, peer: testPeer(2), want: "endpoint 192.0.2.2:51820 allowed ips 10.5.2.0/24,fd00:5:0:2::/64"},
		"IPv6 first here":                    {underlay: []netip.Addr{both[1], both[0]}, peer: testPeer(2), want: "endpoint [2001:db8::2]:51820 allowed"},
		"IPv4 only here":                     {underlay: only4, peer: testPeer(2), want: "endpoint 192.0.2.2:51820"},
		"IPv6 only here":                     {underlay: only6, peer: testPeer(2), want: "endpoint [2001:db8::2]:51820"},
		"IPv6 only there":                    {underlay: both, peer: testPeer(2, public("2001:db8::2")), want: "endpoint [2001:db8::2]:51820"},
		"mapped address":                     {underlay: both, peer: testPeer(2, public("::ffff:192.0.2.2")), want: "endpoint 192.0.2.2:51820"},
		"no family in common":                {underlay: only4, peer: testPeer(2, public("2001:db8::2")), want: "no IPv4 public address"},
		"another port":                       {underlay: only4, peer: testPeer(2, attributes(fmt.Sprintf(`{"public_key":%q,"listen_port":7}`, testKey(2)))), want: "endpoint 192.0.2.2:7 "},
		"keepalive":                          {underlay: only4, options: options{Keepalive: 25}, peer: testPeer(2), want: "keepalive 25s"},
		"our address":                        {underlay: only4, peer: testPeer(2, public("192.0.2.1")), want: "its public address 192.0.2.1 is this host's"},
		"our address behind":                 {underlay: addrs("203.0.113.1"), behind: only4, peer: testPeer(2, public("192.0.2.1")), want: "its public address 192.0.2.1 is this host's"},
		"our public address":                 {underlay: addrs("203.0.113.1"), behind: only4, peer: testPeer(2, public("203.0.113.1")), want: "its public address 203.0.113.1 is this host's"},
		"public port":                        {underlay: only4, peer: testPeer(2, members(`"public_port":7,"local_ips":["192.168.0.2","fd00::2"]`)), want: "endpoint 192.0.2.2:7 allowed ips 10.5.2.0/24,fd00:5:0:2::/64$ guarded 192.0.2.2:7 guarded [2001:db8::2]:7"},
		"behind NAT":                         {underlay: addrs("203.0.113.1"), behind: addrs("192.168.0.1"), peer: testPeer(2), want: "endpoint 192.0.2.2:51820 allowed ips 10.5.2.0/24,fd00:5:0:2::/64 keepalive 25s$"},
		"behind NAT, with another keepalive": {underlay: addrs("203.0.113.1"), behind: addrs("192.168.0.1"), options: options{Keepalive: 7}, peer: testPeer(2), want: "keepalive 7s"},
		"behind the same NAT": {underlay: addrs("203.0.113.1"), behind: addrs("192.168.0.1"),
			peer: testPeer(2, public("203.0.113.1"), members(`"public_port":7,"local_ips":["192.168.0.2","fd00::2"]`)),
			want: "endpoint 192.168.0.2:51820 allowed ips 10.5.2.0/24,fd00:5:0:2::/64 or 203.0.113.1:7$"},
		"behind the same NAT, mapped here": {underlay: addrs("203.0.113.1"), behind: addrs("192.168.0.1"), ports: map[uint16]uint16{DefaultPort: 8},
			peer: testPeer(2, public("203.0.113.1"), members(`"local_ips":["192.168.0.2"]`)), want: "endpoint 192.168.0.2:51820 allowed ips 10.5.2.0/24,fd00:5:0:2::/64 or 203.0.113.1:51820$"},
		"same address in two sites of one NAT": {underlay: addrs("203.0.113.1"), behind: addrs("192.168.0.1"),
			peer: testPeer(2, public("203.0.113.1"), members(`"public_port":7,"local_ips":["192.168.0.1"]`)), want: "endpoint 203.0.113.1:7 allowed ips 10.5.2.0/24,fd00:5:0:2::/64$"},
		"behind this host":                     {underlay: only4, peer: testPeer(2, public("192.0.2.1"), members(`"public_port":7,"local_ips":["192.168.0.2"]`)), want: "endpoint 192.168.0.2:51820 allowed ips 10.5.2.0/24,fd00:5:0:2::/64$"},
		"the NAT itself":                       {underlay: addrs("203.0.113.1"), behind: addrs("192.168.0.1"), ports: map[uint16]uint16{DefaultPort: 8}, peer: testPeer(2, public("203.0.113.1")), want: "endpoint 203.0.113.1:51820 allowed ips 10.5.2.0/24,fd00:5:0:2::/64$"},
		"without an address of its own":        {underlay: only4, peer: testPeer(2, public("192.0.2.1"), members(`"public_port":7`)), want: "its public address 192.0.2.1 is this host's, and it has published no other"},
		"our address and port":                 {underlay: addrs("203.0.113.1"), behind: only4, ports: map[uint16]uint16{DefaultPort: 7}, peer: testPeer(2, public("203.0.113.1"), members(`"public_port":7`)), want: "203.0.113.1 is this host's, and so is the port 7"},
		"public port out of range":             {underlay: only4, peer: testPeer(2, members(`"public_port":65536`)), want: "public_port is 65536"},
		"local address of no host":             {underlay: only4, peer: testPeer(2, members(`"local_ips":["127.0.0.1"]`)), want: "local_ips: 127.0.0.1 is not an address of a host"},
		"local address malformed":              {underlay: only4, peer: testPeer(2, members(`"local_ips":["x"]`)), want: "attributes are not valid"},
		"many local addresses":                 {underlay: only4, peer: testPeer(2, members(`"local_ips":["10.9.0.1","10.9.0.2","10.9.0.3","10.9.0.4","10.9.0.5","10.9.0.6","10.9.0.7","10.9.0.8","10.9.0.9"]`)), want: "9 local_ips, at most 8"},
		"public port of NAT, and IPv6 without": {underlay: only6, peer: testPeer(2, members(`"public_port":7,"local_ips":["192.168.0.2"]`)), want: "endpoint [2001:db8::2]:51820 allowed ips 10.5.2.0/24,fd00:5:0:2::/64$ guarded 192.0.2.2:7"},
		"our key":                              {underlay: only4, peer: testPeer(2, attributes(fmt.Sprintf(`{"public_key":%q,"listen_port":51820}`, testKey(1)))), want: "is that of this host too"},
		"another's key":                        {underlay: only4, peer: testPeer(2, attributes(fmt.Sprintf(`{"public_key":%q,"listen_port":51820}`, testKey(9)))), want: "is that of node n9 too"},
		"our subnet":                           {underlay: only4, peer: testPeer(2, own(1)), want: "subnet 10.5.1.0/24 is our own"},
		"another's subnet":                     {underlay: only4, peer: testPeer(2, own(9)), want: "subnet 10.5.9.0/24 is node n9's too"},
		"another backend":                      {underlay: only4, peer: testPeer(2, members(`"public_port":53`), func(p *backend.Peer) { p.Backend = "vxlan" }), want: `runs backend "vxlan"`},
		"no key":                               {underlay: only4, peer: testPeer(2, attributes(`{"listen_port":51820}`)), want: "attributes lack public_key"},
		"short key":                            {underlay: only4, peer: testPeer(2, attributes(`{"public_key":"AAAA","listen_port":51820}`)), want: `public_key "AAAA": is not 32 bytes in base64`},
		"long key":                             {underlay: only4, peer: testPeer(2, attributes(`{"public_key":"`+strings.Repeat("x", 500)+`","listen_port":51820}`)), want: `x": is not 32 bytes`},
		"zero key":                             {underlay: only4, peer: testPeer(2, attributes(fmt.Sprintf(`{"public_key":%q,"listen_port":51820}`, wgtypes.Key{}))), want: "is all zeros"},
		"port out of range":                    {underlay: only4, peer: testPeer(2, attributes(fmt.Sprintf(`{"public_key":%q,"listen_port":65536}`, testKey(2)))), want: "listen_port is 65536"},
		"attributes no object":                 {underlay: only4, peer: testPeer(2, attributes(`7`)), want: "attributes are not valid"},
		"no attributes":                        {underlay: only4, peer: testPeer(2, attributes(``)), want: "attributes are not valid"},
		"no address to send by":                {peer: testPeer(2), want: "this host has no address to send from"},
	} {
		t.Run(name, func(t *testing.T) {
			s := backend.State{Subnets: subnets(1), MTU: 1440, Peers: []backend.Peer{tt.peer, testPeer(9)},
				Underlay: backend.Underlay{Interface: "eth0", Addrs: tt.underlay, Own: tt.behind, Ports: tt.ports}}
			tt.options.Port = DefaultPort
			s.Peers[0].Precedence = 1 // the living host 9 comes first
			p := newPlan(pools(), tt.options, testKey(1), wgtypes.Key{}, s)
			got := ""
			for key, node := range p.nodes {
				if node == "n2" {
					got = p.peers[key].String()
					for _, way := range p.ways[key][1:] {
						got += " or " + way.String()
					}
					got += "$"
					for _, e := range slices.SortedFunc(maps.Keys(p.endpoints), netip.AddrPort.Compare) {
						got += " guarded " + e.String()
					}
				}
			}
			for _, skip := range p.skipped {
				if skip.Node == "n2" {
					got = skip.Reason
					if len(p.endpoints) > 0 {
						t.Errorf("skipped, and guarded: %v", p.endpoints)
					}
				}
			}
			if !strings.Contains(got, tt.want) {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if name != "no address to send by" && name != "no family in common" && name != "IPv6 only here" && p.peers[testKey(9)].allowed == "" {
				t.Errorf("the other peer is missing: %v", p.skipped)
			}
		})
	}
}

// TestSources checks which endpoints of a peer on the device count as the wanted one: those from which its packets may
// come, if this host has an address of the family to reply from.
func TestSources(t *testing.T) {
	const v4, v6 = "192.0.2.2:51820", "[2001:db8::2]:51820"
	// A NAT has chosen the ports of the first two, and another NAT the address and port of the others.
	const port4, port6, any4, any6 = "192.0.2.2:40000", "[2001:db8::2]:40000", "198.51.100.7:9", "[2001:db8:7::7]:9"
	every := []string{v4, v6, port4, port6, any4, any6}
	behindNAT := func(p *backend.Peer) {
		p.Attributes = json.RawMessage(fmt.Sprintf(`{"public_key":%q,"listen_port":51820,"public_port":7,`+
			`"local_ips":["192.168.0.2","fd00::2"]}`, testKey(2)))
	}
	behindOurs := func(p *backend.Peer) {
		behindNAT(p)
		p.PublicIPs = addrs("203.0.113.1", "2001:db8::2")
	}
	prefersIPv6 := func(p *backend.Peer) { slices.Reverse(p.PublicIPs) }
	for name, tt := range map[string]struct {
		underlay backend.Underlay
		peer     backend.Peer
		want     []string
	}{
		"both families": {
			underlay: backend.Underlay{Addrs: addrs("192.0.2.1", "2001:db8::1")},
			peer:     testPeer(2),
			want:     []string{v4, v6},
		},
		"both families, IPv6 preferred": {
			underlay: backend.Underlay{Addrs: addrs("2001:db8::1", "192.0.2.1")},
			peer:     testPeer(2, prefersIPv6),
			want:     []string{v4, v6},
		},
		"IPv4 only": {
			underlay: backend.Underlay{Addrs: addrs("192.0.2.1")},
			peer:     testPeer(2, prefersIPv6),
			want:     []string{v4},
		},
		"IPv6 only": {
			underlay: backend.Underlay{Addrs: addrs("2001:db8::1")},
			peer:     testPeer(2),
			want:     []string{v6},
		},
		"peer behind NAT": {
			underlay: backend.Underlay{Addrs: addrs("192.0.2.1", "2001:db8::1")},
			peer:     testPeer(2, behindNAT),
			want:     []string{v4, v6, port4, port6},
		},
		"peer behind NAT, IPv4 only": {
			underlay: backend.Underlay{Addrs: addrs("192.0.2.1")},
			peer:     testPeer(2, behindNAT),
			want:     []string{v4, port4},
		},
		"IPv4 behind NAT, no IPv6 address to send from": {
			underlay: backend.Underlay{
				Addrs: addrs("203.0.113.1", "2001:db8::1"),
				Own:   []netip.Addr{netip.MustParseAddr("192.168.0.1"), {}},
			},
			peer: testPeer(2),
			want: []string{v4, port4},
		},
		"behind one NAT": {
			underlay: backend.Underlay{
				Addrs: addrs("203.0.113.1", "2001:db8::1"),
				Own:   addrs("192.168.0.1", "2001:db8::1"),
			},
			peer: testPeer(2, behindOurs),
			want: every,
		},
		"behind one NAT, IPv4 only": {
			underlay: backend.Underlay{Addrs: addrs("203.0.113.1"), Own: addrs("192.168.0.1")},
			peer:     testPeer(2, behindOurs),
			want:     []string{v4, port4, any4},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.underlay.Interface = "eth0"
			s := backend.State{Subnets: subnets(1), MTU: 1400, Peers: []backend.Peer{tt.peer}, Underlay: tt.underlay}
			p := newPlan(pools(), defaults(), testKey(1), wgtypes.Key{}, s)
			if len(p.skipped) != 0 {
				t.Fatalf("skipped %v", p.skipped)
			}
			want := p.peers[testKey(2)].endpoint
			for _, endpoint := range every {
				d := &tableDevice{peers: []wgtypes.Peer{{
					PublicKey:  testKey(2),
					Endpoint:   net.UDPAddrFromAddrPort(netip.MustParseAddrPort(endpoint)),
					AllowedIPs: allowedNets(p.peers[testKey(2)].allowed),

					PersistentKeepaliveInterval: p.peers[testKey(2)].keepalive,
				}}}
				table := &peerTable{device: d, want: p.peers, sources: p.sources}
				step := reconcile.Want("peer", table, compareKeys, p.peers, nil)
				if _, err := reconcile.Apply(t.Context(), step); err != nil {
					t.Fatal(err)
				}
				switch kept := slices.Contains(tt.want, endpoint); {
				case kept && len(d.configs) != 0:
					t.Errorf("%s was replaced", endpoint)
				case !kept && (len(d.configs) != 1 || d.configs[0].Endpoint.String() != want.String()):
					t.Errorf("%s was not replaced by %s: %+v", endpoint, want, d.configs)
				}
			}
			if p.sources[testKey(2)].has(netip.AddrPort{}) {
				t.Error("the lack of an endpoint counts as the wanted one")
			}
		})
	}
}

func TestPlanTables(t *testing.T) {
	s := backend.State{Subnets: subnets(1), MTU: 1440, Peers: []backend.Peer{testPeer(2)}, Underlay: backend.Underlay{Addrs: addrs("192.0.2.1")}}
	p := newPlan(pools(), options{}, testKey(1), wgtypes.Key{}, s)
	routes := reconcile.Dump(p.routes(pools(), 7), kernel.CompareRoutes)
	if want := "10.5.0.0/16 metric 16777216 unreachable\n10.5.2.0/24 link 7\nfd00:5::/48 metric 16777216 unreachable\n" +
		"fd00:5:0:2::/64 via fd00:5:0:2:: link 7 onlink\n"; routes != want {
		t.Errorf("routes\n%swant\n%s", routes, want)
	}
}

func TestFill(t *testing.T) {
	two := peer{allowed: "10.5.2.0/24,fd00:5:0:2::/64"}
	for name, tt := range map[string]struct {
		have map[wgtypes.Key]peer
		want bool
	}{
		"empty":           {nil, true},
		"the same peer":   {map[wgtypes.Key]peer{testKey(2): two}, true},
		"another peer":    {map[wgtypes.Key]peer{testKey(3): {allowed: "10.5.3.0/24"}}, true},
		"reborn":          {map[wgtypes.Key]peer{testKey(4): two}, false},
		"partly reborn":   {map[wgtypes.Key]peer{testKey(4): {allowed: "fd00:5:0:2::/64"}}, false},
		"without subnets": {map[wgtypes.Key]peer{testKey(4): {}}, true},
	} {
		if _, got := fill(map[wgtypes.Key]peer{testKey(2): two}, tt.have)[testKey(2)]; got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestAdvertise(t *testing.T) {
	v4, v6 := addrs("192.0.2.1", "2001:db8::1"), addrs("2001:db8::1")
	for name, tt := range map[string]struct {
		underlay backend.Underlay
		mtu      int
		want     string
	}{
		"IPv4":               {backend.Underlay{MTU: 1500, Addrs: v4}, 0, "1440 (60 for WireGuard over IPv4)"},
		"IPv6":               {backend.Underlay{MTU: 1500, Addrs: v6}, 0, "1420 (80 for WireGuard over IPv6)"},
		"option":             {backend.Underlay{MTU: 1500, Addrs: v4}, 1400, "1400 (100 since option mtu is 1400)"},
		"large option":       {backend.Underlay{MTU: 1500, Addrs: v4}, 9000, "1440 (60 for WireGuard over IPv4, although option mtu is 9000)"},
		"loopback":           {backend.Underlay{MTU: 65536, Addrs: v4}, 0, "65475 ("},
		"small":              {backend.Underlay{Interface: "eth0", MTU: 1300, Addrs: v4}, 0, "underlay eth0 has an MTU of 1300, which leaves 1240: pool fd00:5::/48 needs at least 1280"},
		"no address":         {backend.Underlay{Interface: "eth0", MTU: 1500}, 0, "underlay eth0 has no public address"},
		"NAT without a port": {backend.Underlay{Interface: "eth0", MTU: 1500, Addrs: v4, Ports: map[uint16]uint16{1: 2}}, 0, "underlay.public_ports has no port for 51820"},
		"VRF":                {backend.Underlay{Interface: "eth0", MTU: 1500, Addrs: v4, VRF: 3}, 0, "interface eth0 is in a VRF"},
	} {
		o := defaults()
		o.MTU = tt.mtu
		adv, err := advertise(pools(), o, testKey(1), tt.underlay)
		got := fmt.Sprintf("%d (%s)", adv.MTU, adv.Overhead)
		if err != nil {
			got = err.Error()
		} else if want := fmt.Sprintf(`{"public_key":%q,"listen_port":51820}`, testKey(1)); string(adv.Attributes) != want {
			t.Errorf("%s: attributes %s, want %s", name, adv.Attributes, want)
		}
		if !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}

	u := backend.Underlay{MTU: 1500, Addrs: v4, Own: addrs("192.168.0.2"), Ports: map[uint16]uint16{DefaultPort: 7}}
	adv, err := advertise(pools(), defaults(), testKey(1), u)
	if want := fmt.Sprintf(`{"public_key":%q,"listen_port":51820,"public_port":7,"local_ips":["192.168.0.2"]}`, testKey(1)); err != nil || string(adv.Attributes) != want {
		t.Errorf("behind NAT: attributes %s, %v, want %s", adv.Attributes, err, want)
	}
}

func TestNormalize(t *testing.T) {
	for text, want := range map[string]string{
		``:   `{"listen_port":51820,"rotation_port":0,"persistent_keepalive":0,"rotate_keys":"","mtu":0,"key_file":"wireguard.key","psk_file":""}`,
		`{}`: `{"listen_port":51820,"rotation_port":0,"persistent_keepalive":0,"rotate_keys":"","mtu":0,"key_file":"wireguard.key","psk_file":""}`,
		`{"listen_port":7,"persistent_keepalive":25,"mtu":1380,"key_file":"/k","psk_file":"/p"}`: `{"listen_port":7,"rotation_port":0,"persistent_keepalive":25,"rotate_keys":"","mtu":1380,"key_file":"/k","psk_file":"/p"}`,
		`{"listen_port":0}`:                      "listen_port: must be 1 to 65535, is 0",
		`{"listen_port":65536}`:                  "listen_port: must be 1 to 65535, is 65536",
		`{"listen_port":"x"}`:                    `listen_port: must be a whole number, is "x"`,
		`{"listen_port":null}`:                   "listen_port: must be a whole number, is null",
		`{"rotation_port":70000}`:                "rotation_port: must be 0 to 65535, is 70000",
		`{"rotation_port":51820}`:                "rotation_port: must differ from listen_port",
		`{"rotate_keys":"59m"}`:                  `rotate_keys: must be a duration of at least 1h0m0s, is "59m"`,
		`{"rotate_keys":"monthly"}`:              `rotate_keys: must be a duration of at least 1h0m0s, is "monthly"`,
		`{"rotate_keys":"720h","key_file":"/k"}`: "rotate_keys: leno replaces only keys that it has made, and key_file is /k",
		`{"persistent_keepalive":-1}`:            "persistent_keepalive: must be 0 to 65535 seconds, is -1",
		`{"persistent_keepalive":"25s"}`:         `persistent_keepalive: must be a whole number of seconds, is "25s"`,
		`{"mtu":67}`:                             "mtu: must be 0 or 68 to 65535, is 67",
		`{"key_file":""}`:                        "key_file: must not be empty",
		`{"key_file":"../k"}`:                    `key_file: must be an absolute path or one below the state directory, is "../k"`,
		`{"psk_file":"p"}`:                       `psk_file: must be an absolute path, is "p"`,
		`{"port":1,"listen_port":0}`:             "port: unknown option of backend wireguard\nlisten_port: must be 1 to 65535, is 0",
		`[]`:                                     `options of backend "wireguard": json: cannot unmarshal array into Go value of type map[string]json.RawMessage`,
	} {
		got, err := normalize(json.RawMessage(text))
		if err != nil {
			got = []byte(err.Error())
			if option := (*backend.OptionError)(nil); text != "[]" && !errors.As(err, &option) {
				t.Errorf("%s: %v is about no option", text, err)
			}
		}
		if string(got) != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	for text, want := range map[string]string{
		`{}`:                                     "51821 51820",
		`{"listen_port":65535}`:                  "65534 65535",
		`{"listen_port":7,"rotation_port":9}`:    "9 7",
		`{"key_file":"/etc/wireguard/leno.key"}`: "option key_file names /etc/wireguard/leno.key on each host, and leno replaces only keys that it has made",
	} {
		rotated, err := rotate(json.RawMessage(text))
		got := fmt.Sprint(err)
		if err == nil {
			o, _ := decode(rotated)
			got = fmt.Sprint(o.Port, " ", o.Spare)
		}
		if got != want {
			t.Errorf("%s rotated: %s, want %s", text, got, want)
		}
	}
	if p := port(json.RawMessage(`{"listen_port":7}`)); p.String() != "udp port 7" {
		t.Errorf("port %v", p)
	}
	if want := []string{"key_file", "listen_port", "psk_file"}; !slices.Equal(slices.Sorted(maps.Keys(interrupts())), want) {
		t.Errorf("interrupts %v", interrupts())
	}
}
