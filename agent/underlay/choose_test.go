package underlay

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lenonet/leno/agent/config"
)

func addrs(list ...string) []Address {
	var out []Address
	for _, s := range list {
		a := Address{}
		text, flags, _ := strings.Cut(s, " ")
		a.Addr = netip.MustParseAddr(text)
		a.Tentative = strings.Contains(flags, "tentative")
		a.Deprecated = strings.Contains(flags, "deprecated")
		a.Temporary = strings.Contains(flags, "temporary")
		out = append(out, a)
	}
	return out
}

func via(hops ...int) Route { return Route{Hops: hops} }

// lab returns a host with everything that could be mistaken for the underlay.
func lab() Host {
	return Host{
		Links: []Link{
			{Name: "lo", Index: 1, MTU: 65536, Up: true, Loopback: true, Ends: true, Addrs: addrs("127.0.0.1", "203.0.113.9", "::1")},
			{Name: "eth0", Index: 2, MTU: 1500, Up: true, Addrs: addrs("192.0.2.34", "192.0.2.35", "2001:db8::f0 temporary", "2001:db8::d deprecated", "2001:db8::34", "fe80::1")},
			{Name: "eth1", Index: 3, MTU: 9000, Up: true, Addrs: addrs("10.1.0.34", "fe80::2")},
			{Name: "eth2", Index: 4, MTU: 1500, Up: false, Addrs: addrs("10.2.0.34")},
			{Name: "eth3", Index: 5, MTU: 1500, Up: true, Addrs: addrs("169.254.1.1", "fe80::3")},
			{Name: "six", Index: 6, MTU: 1480, Up: true, Addrs: addrs("2001:db8:6::1 tentative", "fd00:6::1", "fe80::4")},
			{Name: "docker0", Index: 7, MTU: 1450, Up: true, Addrs: addrs("10.5.34.1")},
			{Name: "leno-default", Index: 8, MTU: 1450, Up: true, Addrs: addrs("10.5.34.0")},
			{Name: "spare", Index: 9, MTU: 1500, Up: true},
		},
		Defaults: []DefaultRoute{{Route: via(6), Metric: 10, IPv6: true}, {Route: via(3), Metric: 200}, {Route: via(2), Metric: 100}},
	}
}

var overlay = []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}

func TestChoose(t *testing.T) {
	both := Need{IPv4: true, IPv6: true, Overlay: overlay}
	v4, v6 := Need{IPv4: true, Overlay: overlay}, Need{IPv6: true, Overlay: overlay}
	reach := func(link int, source string) func(*Host) {
		return func(h *Host) { h.Reach = Route{Hops: []int{link}, Source: netip.MustParseAddr(source)} }
	}
	for _, tt := range []struct {
		name   string
		u      config.Underlay
		need   Need
		public Public
		change func(*Host)

		link   string
		addrs  string
		own    string // if not addrs
		reason string
	}{
		{name: "default route of the lowest metric, IPv4 before IPv6", need: both,
			link: "eth0", addrs: "192.0.2.34 2001:db8::34", reason: "the IPv4 default route leaves through it"},
		{name: "IPv4 alone", need: v4,
			link: "eth0", addrs: "192.0.2.34", reason: "the IPv4 default route leaves through it"},
		{name: "IPv6 alone takes IPv6's default route", need: v6,
			link: "six", addrs: "fd00:6::1", reason: "the IPv6 default route leaves through it"},
		{name: "next default route when the first has no address", need: v4,
			change: func(h *Host) { h.Defaults = append(h.Defaults, DefaultRoute{Route: via(5)}) },
			link:   "eth0", addrs: "192.0.2.34", reason: "the IPv4 default route leaves through it"},
		{name: "IPv6's default route when IPv4 has none", need: both,
			change: func(h *Host) { h.Defaults = h.Defaults[:1] },
			link:   "six", addrs: "fd00:6::1", reason: "the IPv6 default route leaves through it"},

		{name: "interface by name", u: config.Underlay{Interfaces: []string{"bond0", "eth1", "eth0"}}, need: both,
			link: "eth1", addrs: "10.1.0.34", reason: "first of underlay.interfaces that exists: eth1"},
		{name: "interface in a VRF", u: config.Underlay{Interfaces: []string{"eth1"}}, need: v4,
			change: func(h *Host) {
				h.Links[2].VRF = 10
				h.Links = append(h.Links, Link{Name: "red", Index: 10, VRF: 10, Up: true, Ends: true})
			},
			link: "eth1", addrs: "10.1.0.34", reason: "first of underlay.interfaces that exists: eth1, in VRF red"},
		{name: "interface by address, which is the one used", u: config.Underlay{Interfaces: []string{"192.0.2.10", "192.0.2.35"}}, need: both,
			link: "eth0", addrs: "192.0.2.35 2001:db8::34", reason: "first of underlay.interfaces that exists: 192.0.2.35 on eth0"},
		{name: "interface by an IPv6 address", u: config.Underlay{Interfaces: []string{"2001:db8::d"}}, need: v6,
			link: "eth0", addrs: "2001:db8::d", reason: "first of underlay.interfaces that exists: 2001:db8::d on eth0"},
		{name: "a named interface that is down", u: config.Underlay{Interfaces: []string{"eth2"}}, need: both,
			link: "eth2", addrs: "10.2.0.34", reason: "first of underlay.interfaces that exists: eth2, although it is down"},
		{name: "an address on loopback", u: config.Underlay{Interfaces: []string{"lo"}}, need: v4,
			link: "lo", addrs: "203.0.113.9",
			reason: "first of underlay.interfaces that exists: lo, although it is loopback"},
		{name: "interfaces before expressions", u: config.Underlay{Interfaces: []string{"six"}, InterfaceRegex: []string{"^eth"}}, need: v6,
			link: "six", addrs: "fd00:6::1", reason: "first of underlay.interfaces that exists: six"},

		{name: "expression over names", u: config.Underlay{InterfaceRegex: []string{"^bond", "^eth[1-9]"}}, need: both,
			link: "eth1", addrs: "10.1.0.34", reason: `underlay.interface_regex "^eth[1-9]" matches the name eth1`},
		{name: "expression over addresses, down and overlay left out", u: config.Underlay{InterfaceRegex: []string{`^10\.[25]\.`, `^192\.0\.2\.35`}}, need: both,
			link: "eth0", addrs: "192.0.2.35 2001:db8::34", reason: `underlay.interface_regex "^192\\.0\\.2\\.35" matches the address 192.0.2.35 on eth0`},
		{name: "expressions in their order", u: config.Underlay{InterfaceRegex: []string{"eth1", "eth0"}}, need: v4,
			link: "eth1", addrs: "10.1.0.34", reason: `underlay.interface_regex "eth1" matches the name eth1`},
		{name: "expression passes over links without an address", u: config.Underlay{InterfaceRegex: []string{"^(lo|leno|eth[23]|spare|eth1)"}}, need: both,
			link: "eth1", addrs: "10.1.0.34", reason: `underlay.interface_regex "^(lo|leno|eth[23]|spare|eth1)" matches the name eth1`},
		{name: "expression after interfaces that do not exist", u: config.Underlay{Interfaces: []string{"bond0"}, InterfaceRegex: []string{"eth1"}}, need: v4,
			link: "eth1", addrs: "10.1.0.34", reason: `underlay.interface_regex "eth1" matches the name eth1`},

		{name: "the way to an address, and the address used on it", u: config.Underlay{CanReach: netip.MustParseAddr("192.0.2.1")}, need: both,
			change: reach(2, "192.0.2.35"),
			link:   "eth0", addrs: "192.0.2.35 2001:db8::34", reason: "the route to underlay.can_reach 192.0.2.1 leaves through it"},
		{name: "the way to an address of our own", u: config.Underlay{CanReach: netip.MustParseAddr("10.1.0.34")}, need: both,
			change: reach(1, "10.1.0.34"),
			link:   "eth1", addrs: "10.1.0.34", reason: "the route to underlay.can_reach 10.1.0.34 leaves through it"},
		{name: "expressions before the way to an address", u: config.Underlay{InterfaceRegex: []string{"^eth0$"}, CanReach: netip.MustParseAddr("10.1.0.1")}, need: v4,
			change: reach(3, "10.1.0.34"),
			link:   "eth0", addrs: "192.0.2.34", reason: `underlay.interface_regex "^eth0$" matches the name eth0`},

		{name: "public addresses replace the interface's", u: config.Underlay{Interfaces: []string{"eth0"}}, need: both,
			public: Public{IPv4: netip.MustParseAddr("198.51.100.1"), IPv6: netip.MustParseAddr("2001:db8:ffff::1")},
			link:   "eth0", addrs: "198.51.100.1 2001:db8:ffff::1", own: "192.0.2.34 2001:db8::34",
			reason: "first of underlay.interfaces that exists: eth0; address 198.51.100.1 from underlay.public_ip; address 2001:db8:ffff::1 from underlay.public_ipv6"},
		{name: "a public address makes an interface without one fit", u: config.Underlay{Interfaces: []string{"spare"}}, need: both,
			public: Public{IPv4: netip.MustParseAddr("198.51.100.1")},
			link:   "spare", addrs: "198.51.100.1", own: "-",
			reason: "first of underlay.interfaces that exists: spare; address 198.51.100.1 from underlay.public_ip"},
		{name: "a public address of another interface is the host's own", u: config.Underlay{Interfaces: []string{"eth0"}}, need: v4,
			public: Public{IPv4: netip.MustParseAddr("203.0.113.9")},
			link:   "eth0", addrs: "203.0.113.9",
			reason: "first of underlay.interfaces that exists: eth0; address 203.0.113.9 from underlay.public_ip"},
		{name: "an IPv6 address that is named carries", u: config.Underlay{Interfaces: []string{"2001:db8::34"}}, need: both,
			link: "eth0", addrs: "2001:db8::34 192.0.2.34", reason: "first of underlay.interfaces that exists: 2001:db8::34 on eth0"},
		{name: "an IPv6 address that matches carries", u: config.Underlay{InterfaceRegex: []string{"^2001:"}}, need: both,
			link: "eth0", addrs: "2001:db8::34 192.0.2.34", reason: `underlay.interface_regex "^2001:" matches the address 2001:db8::34 on eth0`},
		{name: "a temporary address that alone matches", u: config.Underlay{InterfaceRegex: []string{"::f0$"}}, need: both,
			link: "eth0", addrs: "2001:db8::f0 192.0.2.34", reason: `underlay.interface_regex "::f0$" matches the address 2001:db8::f0 on eth0`},
		{name: "the way to an IPv6 address from a temporary one", u: config.Underlay{CanReach: netip.MustParseAddr("2001:db8::1")}, need: both,
			change: reach(2, "2001:db8::f0"),
			link:   "eth0", addrs: "2001:db8::34 192.0.2.34", reason: "the route to underlay.can_reach 2001:db8::1 leaves through it"},
		{name: "the way to an IPv6 address carries", u: config.Underlay{CanReach: netip.MustParseAddr("2001:db8::1")}, need: both,
			change: reach(2, "2001:db8::34"),
			link:   "eth0", addrs: "2001:db8::34 192.0.2.34", reason: "the route to underlay.can_reach 2001:db8::1 leaves through it"},
		{name: "IPv6's default route does not make it carry", need: both,
			change: func(h *Host) {
				h.Defaults = []DefaultRoute{{Route: Route{Hops: []int{2}, Source: netip.MustParseAddr("2001:db8::34")}, IPv6: true}}
			},
			link: "eth0", addrs: "192.0.2.34 2001:db8::34", reason: "the IPv6 default route leaves through it"},
		{name: "the default route's source", need: both,
			change: func(h *Host) { h.Defaults[2].Source = netip.MustParseAddr("192.0.2.35") },
			link:   "eth0", addrs: "192.0.2.35 2001:db8::34", reason: "the IPv4 default route leaves through it"},
		{name: "the first next hop that fits", need: v4,
			change: func(h *Host) { h.Defaults = []DefaultRoute{{Route: via(4, 5, 3, 2)}} },
			link:   "eth1", addrs: "10.1.0.34", reason: "the IPv4 default route leaves through it"},
		{name: "another table's default route when the main one has none", need: both,
			change: func(h *Host) {
				h.Defaults = []DefaultRoute{{Route: via(2), Table: 200}, {Route: via(3), Table: 100, Metric: 9}}
			},
			link: "eth1", addrs: "10.1.0.34", reason: "the IPv4 default route of table 100 leaves through it"},
		{name: "the main table's IPv6 default route before another table's", need: both,
			change: func(h *Host) { h.Defaults = append(h.Defaults[:1], DefaultRoute{Route: via(2), Table: 200}) },
			link:   "six", addrs: "fd00:6::1", reason: "the IPv6 default route leaves through it"},
		{name: "an address of the link's scope last", u: config.Underlay{Interfaces: []string{"eth0"}}, need: v4,
			change: func(h *Host) { h.Links[1].Addrs[0].Narrow = true },
			link:   "eth0", addrs: "192.0.2.35", reason: "first of underlay.interfaces that exists: eth0"},
		{name: "a deprecated or temporary address rather than none", u: config.Underlay{Interfaces: []string{"eth0"}}, need: v6,
			change: func(h *Host) { h.Links[1].Addrs = h.Links[1].Addrs[:4] },
			link:   "eth0", addrs: "2001:db8::f0", reason: "first of underlay.interfaces that exists: eth0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host := lab()
			if tt.change != nil {
				tt.change(&host)
			}
			got, err := choose(host, tt.u, tt.need, tt.public)
			if err != nil {
				t.Fatal(err)
			}
			want := Choice{Interface: tt.link, Reason: tt.reason}
			for a := range strings.FieldsSeq(tt.addrs) {
				want.Addrs = append(want.Addrs, netip.MustParseAddr(a))
			}
			want.Own = want.Addrs
			if tt.own != "" {
				want.Own = nil
				for a := range strings.FieldsSeq(tt.own) {
					own, _ := netip.ParseAddr(a) // "-" is none
					want.Own = append(want.Own, own)
				}
			}
			link := host.Links[slices.IndexFunc(host.Links, func(l Link) bool { return l.Name == tt.link })]
			want.Index, want.VRF, want.Down = link.Index, link.VRF, !link.Up
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestNoneFits checks that the error names every interface, its addresses and why it does not fit.
func TestNoneFits(t *testing.T) {
	need := Need{IPv4: true, Overlay: overlay}
	for _, tt := range []struct {
		name string
		u    config.Underlay
		need Need
		host Host
		want []string
	}{
		{"nothing of that name", config.Underlay{Interfaces: []string{"bond0"}, InterfaceRegex: []string{"^wlan"}}, need, lab(), []string{
			`no interface fits underlay.interfaces ["bond0"], underlay.interface_regex ["^wlan"]; this host has lo (`,
			"lo (127.0.0.1, 203.0.113.9, ::1): is loopback; ",
			"eth1 (10.1.0.34, fe80::2): does not match; ",
			"eth2 (10.2.0.34): is down; ",
			"eth3 (169.254.1.1, fe80::3): has no usable address: 169.254.1.1 is link-local, fe80::3 is not of a wanted family; ",
			"docker0 (10.5.34.1): has no usable address: 10.5.34.1 is of the overlay; ",
			"leno-default (10.5.34.0): is leno's own; ",
			"spare (no address): has no address",
		}},
		{"a named one exists without an address", config.Underlay{Interfaces: []string{"eth3", "eth0"}}, need, lab(), []string{
			"eth3, the first of underlay.interfaces that exists, has no usable address: 169.254.1.1 is link-local",
		}},
		{"a named one is a port of a bond", config.Underlay{Interfaces: []string{"eth1"}}, need,
			Host{Links: []Link{
				{Name: "eth1", Index: 2, Up: true, Port: 3, Addrs: addrs("fe80::2")},
				{Name: "bond0", Index: 3, Up: true, Addrs: addrs("192.0.2.1")},
			}}, []string{
				"eth1, the first of underlay.interfaces that exists, has no usable address: fe80::2 is not of a wanted family (it is a port of bond0: name bond0 instead); this host has eth1",
			}},
		{"a named address that cannot be used", config.Underlay{Interfaces: []string{"fe80::1", "eth1"}}, Need{IPv4: true, IPv6: true}, lab(), []string{
			"fe80::1, the first of underlay.interfaces that exists, has an address that is not usable: fe80::1 is link-local",
		}},
		{"no route", config.Underlay{CanReach: netip.MustParseAddr("10.9.9.9")}, need,
			func() Host { h := lab(); h.ReachErr = errors.New("no route"); return h }(),
			[]string{"underlay.can_reach 10.9.9.9 (no route)"}},
		{"no default route", config.Underlay{}, need, func() Host { h := lab(); h.Defaults = nil; return h }(), []string{
			"no interface fits the default (the default route's interface); ", "): has no default route; "}},
		{"tentative alone", config.Underlay{}, Need{IPv6: true},
			Host{Links: []Link{{Name: "e", Index: 2, Up: true, Addrs: addrs("2001:db8::1 tentative")}}, Defaults: []DefaultRoute{{Route: via(2), IPv6: true}}},
			[]string{"2001:db8::1 is tentative"}},
		{"an empty host", config.Underlay{}, need, Host{}, []string{"this host has no interface"}},
		{"no family", config.Underlay{}, Need{}, lab(), []string{"neither IPv4 nor IPv6 is wanted"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := choose(tt.host, tt.u, tt.need, Public{})
			if !errors.Is(err, ErrNone) {
				t.Fatalf("got %+v, %v", c, err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is missing in\n%v", want, err)
				}
			}
		})
	}
}

func TestParsePublic(t *testing.T) {
	for _, tt := range []struct {
		text string
		v6   bool
		want string // address, or part of the error
	}{
		{" 192.0.2.1\n", false, "192.0.2.1"},
		{"2001:db8::1", true, "2001:db8::1"},
		{"", false, `"", not one IPv4 address`},
		{"192.0.2.1 192.0.2.2", false, "not one IPv4 address"},
		{"2001:db8::1", false, "not an IPv4 address"},
		{"::ffff:192.0.2.1", true, "not an IPv6 address"},
		{"127.0.0.1", false, "not an IPv4 address that other hosts can send to"},
	} {
		got, err := parsePublic(tt.text, tt.v6)
		if err == nil && got.String() != tt.want || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("parsePublic(%q, %v) is %v, %v; want %q", tt.text, tt.v6, got, err, tt.want)
		}
	}
}
