package underlay

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestMeasure(t *testing.T) {
	path := func(to string, mtu int, hops ...int) Path {
		return Path{netip.MustParseAddr(to), Route{Hops: hops, MTU: mtu}}
	}
	on := func(link string, addr string) Choice {
		for _, l := range lab().Links {
			if l.Name == link {
				return Choice{Interface: link, Index: l.Index, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
			}
		}
		t.Fatalf("the lab has no %s", link)
		return Choice{}
	}
	add := func(links ...Link) func(*Host) { return func(h *Host) { h.Links = append(h.Links, links...) } }
	for _, tt := range []struct {
		name    string
		change  func(*Host)
		choice  Choice
		paths   []Path
		want    string
		devices string
	}{
		{"the interface's", nil, on("eth0", "192.0.2.34"), nil, "1500 of eth0", "eth0"},
		{"the default route's", func(h *Host) { h.Defaults[2].MTU = 1400 }, on("eth0", "192.0.2.34"), nil,
			"1400 of the IPv4 default route by eth0", "eth0"},
		{"not that of the other family", func(h *Host) { h.Defaults[0].Hops, h.Defaults[0].MTU = []int{2}, 1280 }, on("eth0", "192.0.2.34"), nil,
			"1500 of eth0", "eth0"},
		{"not that of a default route elsewhere", func(h *Host) { h.Defaults[1].MTU = 1400 }, on("eth0", "192.0.2.34"), nil,
			"1500 of eth0", "eth0"},
		{"of two next hops the narrower", func(h *Host) { h.Defaults[1].Hops = []int{3, 6} }, on("eth1", "10.1.0.34"), nil,
			"1480 of six, by which the IPv4 default route leaves,", "eth1 six"},
		{"of loopback the default route's of the lowest metric", nil, on("lo", "203.0.113.9"), nil,
			"1500 of eth0, by which the IPv4 default route leaves,", "eth0 lo"},
		{"of loopback both of the same metric", func(h *Host) { h.Defaults[1].Metric = 100; h.Links[1].MTU = 9216 }, on("lo", "203.0.113.9"), nil,
			"9000 of eth1, by which the IPv4 default route leaves,", "eth0 eth1 lo"},
		{"of loopback without any route", func(h *Host) { h.Defaults = nil }, on("lo", "203.0.113.9"), nil,
			"1500 of Ethernet, since no route says more", "lo"},
		{"of loopback the path to a host", func(h *Host) { h.Defaults = nil }, on("lo", "203.0.113.9"), []Path{path("203.0.113.2", 0, 2, 3)},
			"1500 of eth0, by which the route to 203.0.113.2 leaves,", "eth0 eth1 lo"},
		{"a path through another device", nil, on("eth1", "10.1.0.34"), []Path{path("192.0.2.2", 0, 2), path("10.1.0.2", 0, 3)},
			"1500 of eth0, by which the route to 192.0.2.2 leaves,", "eth0 eth1"},
		{"a path's own", nil, on("eth0", "192.0.2.34"), []Path{path("192.0.2.2", 0, 2), path("192.0.2.3", 1400, 2)},
			"1400 of the route to 192.0.2.3 by eth0", "eth0"},
		{"a path too narrow for IPv6 does not count", nil, on("eth0", "192.0.2.34"), []Path{path("192.0.2.2", 1349, 2), path("192.0.2.3", 1350, 2)},
			"1350 of the route to 192.0.2.3 by eth0", "eth0"},
		{"an interface as narrow does", func(h *Host) { h.Links[1].MTU = 1300 }, on("eth0", "192.0.2.34"), []Path{path("192.0.2.2", 1200, 2)},
			"1300 of eth0", "eth0"},
		{"a device that is gone", nil, on("eth0", "192.0.2.34"), []Path{path("192.0.2.2", 0, 99)}, "1500 of eth0", "eth0"},
		{"a VLAN wider than what it is on", add(Link{Name: "v", Index: 20, MTU: 1500, Parent: 21}, Link{Name: "nic", Index: 21, MTU: 1400}),
			Choice{Index: 20, Interface: "v", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, nil,
			"1400 of v on nic", "nic v"},
		{"tunnels in tunnels", add(Link{Name: "outer", Index: 20, MTU: 1450, Parent: 21, Overhead: 70}, Link{Name: "inner", Index: 21, MTU: 1450, Parent: 22, Overhead: 50},
			Link{Name: "nic", Index: 22, MTU: 1480}),
			Choice{Index: 20, Interface: "outer", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, nil,
			"1360 of outer (1480 of nic - 120)", "inner nic outer"},
		{"a tunnel that leaves room", add(Link{Name: "outer", Index: 20, MTU: 1400, Parent: 2, Overhead: 50}),
			Choice{Index: 20, Interface: "outer", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, nil,
			"1400 of outer", "eth0 outer"},
		{"a path through a network of leno's", add(Link{Name: "leno-two", Index: 20, MTU: 1450, Parent: 2, Overhead: 50}), on("eth0", "192.0.2.34"),
			[]Path{path("10.6.1.1", 0, 20)}, "1500 of eth0", "eth0"},
		{"a network of leno's that was named", add(Link{Name: "leno-two", Index: 20, MTU: 1450, Parent: 2, Overhead: 50}),
			Choice{Index: 20, Interface: "leno-two", Addrs: []netip.Addr{netip.MustParseAddr("10.6.0.34")}},
			[]Path{path("10.6.1.1", 0, 20)}, "1450 of leno-two", "eth0 leno-two"},
		{"devices in a circle", add(Link{Name: "x", Index: 20, MTU: 1400, Parent: 21}, Link{Name: "y", Index: 21, MTU: 1500, Parent: 20}),
			Choice{Index: 20, Interface: "x", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, nil,
			"1400 of x", "x y"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host := lab()
			if tt.change != nil {
				tt.change(&host)
			}
			got := measure(host, tt.choice, tt.paths)
			if text := fmt.Sprintf("%d of %s", got.MTU, got.MTUFrom); text != tt.want {
				t.Errorf("MTU %s, want %s", text, tt.want)
			}
			if devices := strings.Join(got.Devices, " "); devices != tt.devices {
				t.Errorf("depends on %s, want %s", devices, tt.devices)
			}
		})
	}
}
