package flannel

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/registry"
)

func networkOf(t testing.TB, family, kind, options string) registry.Network {
	t.Helper()
	return registry.Network{Name: "default", Plan: planOf(t, families[family]...), Backend: backendOf(t, kind, options)}
}

// leaseOf returns the lease of a leno host on slot 34.
func leaseOf(n registry.Network, b registry.Backend, addrs ...string) registry.Lease {
	l := registry.Lease{
		Network: n.Name,
		Slot:    34,
		Subnets: n.Plan.Subnets(34),
		Node:    "host-a",
		NodeID:  "6f1c2d3e-0000-4000-8000-000000000001",
		MTU:     1450,
		Backend: b,
	}
	for _, a := range addrs {
		l.PublicIPs = append(l.PublicIPs, netip.MustParseAddr(a))
	}
	return l
}

const lenoVTEP = `{"vni":1,"port":8472,"vtep_mac":"0a:58:c0:00:02:22"}`

func TestFormatLease(t *testing.T) {
	const record = `"leno":{"version":1,"subnet":"10.5.34.0/24","subnets":["10.5.34.0/24","fd00:5:0:22::/64"],` +
		`"node":"host-a",` +
		`"node_id":"6f1c2d3e-0000-4000-8000-000000000001","public_ip":"192.0.2.34","public_ips":["192.0.2.34",` +
		`"2001:db8::34"],` +
		`"mtu":1450,"backend":{"type":"vxlan","vni":1,"port":8472,"vtep_mac":"0a:58:c0:00:02:22"}}}`
	n := networkOf(t, "both", "vxlan", `{"vni":1,"port":8472}`)
	value, err := FormatLease(n, leaseOf(n, backendOf(t, "vxlan", lenoVTEP), "192.0.2.34", "2001:db8::34"))
	want := `{"PublicIP":"192.0.2.34","PublicIPv6":"2001:db8::34","BackendType":"vxlan",` +
		`"BackendData":{"VNI":1,"VtepMAC":"0a:58:c0:00:02:22"},"BackendV6Data":{"VNI":1,` +
		`"VtepMAC":"0a:58:c0:00:02:22"},` + record
	if diff := cmp.Diff(want, string(value)); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

// TestLeaseAttributes: what flannel hosts read of a leno host's lease. A wrong one can stop flanneld.
func TestLeaseAttributes(t *testing.T) {
	const (
		v4, v6 = "192.0.2.34", "2001:db8::34"
		data   = `"BackendData":{"VNI":1,"VtepMAC":"0a:58:c0:00:02:22"}`
		data6  = `"BackendV6Data":{"VNI":1,"VtepMAC":"0a:58:c0:00:02:22"}`
	)
	for _, tt := range []struct {
		name, family, kind, options, attributes string
		addrs                                   []string
		want, err                               string
	}{
		{name: "vxlan", family: "IPv4", kind: "vxlan", attributes: lenoVTEP, addrs: []string{v4},
			want: `{"PublicIP":"192.0.2.34","PublicIPv6":null,"BackendType":"vxlan",` + data},
		{name: "vxlan, another MAC address for IPv6", family: "both", kind: "vxlan", addrs: []string{v4, v6},
			attributes: strings.TrimSuffix(lenoVTEP, "}") + `,"vtep_mac_v6":"c6:d2:32:6f:8f:45"}`,
			want: `{"PublicIP":"192.0.2.34","PublicIPv6":"2001:db8::34","BackendType":"vxlan",` + data +
				`,"BackendV6Data":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:45"}`},
		{name: "vxlan, an IPv6 address beside", family: "IPv4", kind: "vxlan", attributes: lenoVTEP, addrs: []string{v6, v4},
			want: `{"PublicIP":"192.0.2.34","PublicIPv6":"2001:db8::34","BackendType":"vxlan",` + data},
		{name: "vxlan, IPv6 alone", family: "IPv6", kind: "vxlan", attributes: lenoVTEP, addrs: []string{v6},
			want: `{"PublicIP":"0.0.0.0","PublicIPv6":"2001:db8::34","BackendType":"vxlan",` + data6},
		{name: "vxlan, no IPv6 address", family: "both", kind: "vxlan", attributes: lenoVTEP, addrs: []string{v4},
			want: `{"PublicIP":"192.0.2.34","PublicIPv6":null,"BackendType":"vxlan",` + data},
		{name: "vxlan, no IPv4 address", family: "both", kind: "vxlan", attributes: lenoVTEP, addrs: []string{v6},
			want: `{"PublicIP":"0.0.0.0","PublicIPv6":"2001:db8::34","BackendType":"vxlan",` + data6},
		{name: "vxlan, VNI of 24 bits", family: "IPv4", kind: "vxlan", options: `{"vni":65537}`, attributes: lenoVTEP,
			addrs: []string{v4},
			want:  `{"PublicIP":"192.0.2.34","PublicIPv6":null,"BackendType":"vxlan",` + data},
		{name: "vxlan without MAC address", family: "IPv4", kind: "vxlan", addrs: []string{v4},
			want: `{"PublicIP":"192.0.2.34","PublicIPv6":null,"BackendType":"vxlan"`},
		{name: "vxlan with a MAC address that is none", family: "IPv4", kind: "vxlan", attributes: `{"vtep_mac":"x"}`,
			addrs: []string{v4},
			want:  `{"PublicIP":"192.0.2.34","PublicIPv6":null,"BackendType":"vxlan"`},
		{name: "host-gw", family: "both", kind: "host-gw", addrs: []string{v4, v6},
			want: `{"PublicIP":"192.0.2.34","PublicIPv6":"2001:db8::34","BackendType":"host-gw"`},
		{name: "host-gw, no IPv6 address", family: "both", kind: "host-gw", addrs: []string{v4},
			err: "host-gw needs a public address of the family of fd00:5:0:22::/64"},
		{name: "host-gw, no IPv4 address", family: "IPv4", kind: "host-gw", addrs: []string{v6},
			err: "host-gw needs a public address of the family of 10.5.34.0/24"},
		{name: "udp", family: "IPv4", kind: "udp", attributes: `{"port":8285}`, addrs: []string{v4},
			want: `{"PublicIP":"192.0.2.34","PublicIPv6":null,"BackendType":"udp"`},
		{name: "alloc", family: "IPv6", kind: "alloc", addrs: []string{v6},
			want: `{"PublicIP":"0.0.0.0","PublicIPv6":"2001:db8::34","BackendType":"alloc"`},
		{name: "later", family: "IPv4", kind: "wireguard", attributes: `{"public_key":"x"}`, addrs: []string{v4},
			want: `{"PublicIP":"192.0.2.34","PublicIPv6":null,"BackendType":"wireguard"`},
		{name: "no address", family: "IPv4", kind: "alloc", err: "public_ip is missing"},
		{name: "address in the network", family: "IPv4", kind: "alloc", addrs: []string{"10.5.9.9"},
			err: "inside the network"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := networkOf(t, tt.family, tt.kind, tt.options)
			l := leaseOf(n, backendOf(t, tt.kind, tt.attributes), tt.addrs...)
			value, err := FormatLease(n, l)
			if tt.err != "" {
				refusal(t, err, tt.err)
				return
			}
			attributes, _, _ := strings.Cut(string(value), `,"leno":`)
			if diff := cmp.Diff(tt.want, attributes); err != nil || diff != "" {
				t.Fatalf("%v\n%s", err, diff)
			}
			back, foreign, err := ParseLease(n, SubnetKey(l.Subnets), value)
			if err != nil || foreign || !back.SameValue(l) || back.Slot != l.Slot || back.Network != l.Network {
				t.Errorf("%+v, %t, %v", back, foreign, err)
			}
		})
	}
	n := networkOf(t, "IPv4", "alloc", "")
	l := leaseOf(n, backendOf(t, "alloc", ""), v4)
	for want, subnets := range map[string][]netip.Prefix{
		"outside the network":               {netip.MustParsePrefix("10.9.0.0/24")},
		"the network's subnets are /24":     {netip.MustParsePrefix("10.5.34.0/25")},
		"subnet 0.0.0.0/0":                  nil,
		"subnet fd00::/64":                  {netip.MustParsePrefix("10.5.34.0/24"), netip.MustParsePrefix("fd00::/64")},
		"2 subnets, the network has 1 pool": {netip.MustParsePrefix("10.5.33.0/24"), netip.MustParsePrefix("10.5.34.0/24")},
	} {
		l.Subnets = subnets
		_, err := FormatLease(n, l)
		refusal(t, err, want)
	}
}

// TestWhyIgnored: which leases of leno hosts flannel ignores.
func TestWhyIgnored(t *testing.T) {
	const v4, v6 = "192.0.2.34", "2001:db8::34"
	for _, tt := range []struct {
		name, family, kind string
		addrs              []string
		reason             string // ends so
	}{
		{name: "IPv4", family: "IPv4", kind: "vxlan", addrs: []string{v4}},
		{name: "both", family: "both", kind: "vxlan", addrs: []string{v6, v4}},
		{name: "no IPv6 address", family: "both", kind: "vxlan", addrs: []string{v4}, reason: "the family of fd00:5:0:22::/64"},
		{name: "no IPv4 address", family: "both", kind: "vxlan", addrs: []string{v6}, reason: "the family of 10.5.34.0/24"},
		{name: "IPv4 over IPv6", family: "IPv4", kind: "vxlan", addrs: []string{v6}, reason: "the family of 10.5.34.0/24"},
		{name: "alloc", family: "both", kind: "alloc", addrs: []string{v4}},
	} {
		n := networkOf(t, tt.family, tt.kind, "")
		reason := WhyIgnored(leaseOf(n, backendOf(t, tt.kind, ""), tt.addrs...))
		if !strings.HasSuffix(reason, tt.reason) || (reason == "") != (tt.reason == "") {
			t.Errorf("%s: %q", tt.name, reason)
		}
	}
}

// TestFlannelLeases: values as flanneld writes them.
func TestFlannelLeases(t *testing.T) {
	const (
		vxlan4 = `{"PublicIP":"192.0.2.9","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,` +
			`"VtepMAC":"c6:d2:32:6f:8f:44"}}`
		vxlan6 = `{"PublicIP":"0.0.0.0","PublicIPv6":"2001:db8::9","BackendType":"vxlan","BackendV6Data":{"VNI":1,` +
			`"VtepMAC":"c6:d2:32:6f:8f:45"}}`
		vxlan2 = `{"PublicIP":"192.0.2.9","PublicIPv6":"2001:db8::9","BackendType":"vxlan",` +
			`"BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"},"BackendV6Data":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:45"}}`
		name4, name6, name2 = "10.5.34.0-24", "0.0.0.0-0&fd00:5:0:22::-64", "10.5.34.0-24&fd00:5:0:77::-64"
	)
	for _, tt := range []struct {
		title, family, kind, options, name, value string
		epoch                                     int
		want                                      string // slot, subnets, node, addresses, MTU, backend
		err                                       string
	}{
		{title: "vxlan", family: "IPv4", kind: "vxlan", name: name4, value: vxlan4,
			want: `34 [10.5.34.0/24] flannel-192.0.2.9 [192.0.2.9] 1450 {"type":"vxlan","own_family":true,` +
				`"port":8472,"vni":1,"vtep_mac":"c6:d2:32:6f:8f:44"}`},
		{title: "vxlan, IPv6 alone", family: "IPv6", kind: "vxlan", name: name6, value: vxlan6,
			want: `34 [fd00:5:0:22::/64] flannel-2001:db8::9 [2001:db8::9] 1450 {"type":"vxlan","own_family":true,` +
				`"port":8472,"vni":1,"vtep_mac":"c6:d2:32:6f:8f:45"}`},
		{title: "vxlan, both", family: "both", kind: "vxlan", options: `{"vni":1,"port":4789}`, name: name2, value: vxlan2,
			want: `34 [10.5.34.0/24 fd00:5:0:77::/64] flannel-192.0.2.9 [192.0.2.9 2001:db8::9] 1450 ` +
				`{"type":"vxlan","own_family":true,"port":4789,"vni":1,"vtep_mac":"c6:d2:32:6f:8f:44",` +
				`"vtep_mac_v6":"c6:d2:32:6f:8f:45"}`},
		{title: "vxlan, both with one MAC address", family: "both", kind: "vxlan", name: name2,
			value: strings.Replace(vxlan2, ":45", ":44", 1),
			want: `34 [10.5.34.0/24 fd00:5:0:77::/64] flannel-192.0.2.9 [192.0.2.9 2001:db8::9] 1450 {"type":"vxlan",` +
				`"own_family":true,"port":8472,"vni":1,"vtep_mac":"c6:d2:32:6f:8f:44"}`},
		{title: "vxlan, VNI of 24 bits", family: "IPv4", kind: "vxlan", options: `{"vni":65537}`, name: name4, value: vxlan4,
			want: `34 [10.5.34.0/24] flannel-192.0.2.9 [192.0.2.9] 1450 {"type":"vxlan","own_family":true,` +
				`"port":8472,"vni":65537,"vtep_mac":"c6:d2:32:6f:8f:44"}`},
		{title: "host-gw", family: "IPv4", kind: "host-gw", name: name4,
			value: `{"PublicIP":"192.0.2.9","PublicIPv6":null,"BackendType":"host-gw"}`,
			want:  `34 [10.5.34.0/24] flannel-192.0.2.9 [192.0.2.9] 1500 {"type":"host-gw"}`},
		{title: "host-gw, both", family: "both", kind: "host-gw", name: name2,
			value: `{"PublicIP":"192.0.2.9","PublicIPv6":"2001:db8::9","BackendType":"host-gw"}`,
			want:  `34 [10.5.34.0/24 fd00:5:0:77::/64] flannel-192.0.2.9 [192.0.2.9 2001:db8::9] 1500 {"type":"host-gw"}`},
		{title: "udp", family: "IPv4", kind: "udp", options: `{"port":7890}`, name: name4,
			value: `{"PublicIP":"192.0.2.9","PublicIPv6":null}`,
			want:  `34 [10.5.34.0/24] flannel-192.0.2.9 [192.0.2.9] 1472 {"type":"udp","port":7890}`},
		{title: "host-gw after two switches", family: "IPv4", kind: "host-gw", name: name4,
			epoch: 2,
			value: `{"PublicIP":"192.0.2.9","BackendType":"host-gw"}`,
			want:  `34 [10.5.34.0/24] flannel-192.0.2.9 [192.0.2.9] 1500 {"type":"host-gw","epoch":2}`},
		{title: "another backend after two switches", family: "IPv4", kind: "host-gw", name: name4,
			epoch: 2, value: `{"PublicIP":"192.0.2.9"}`,
			want: `34 [10.5.34.0/24] flannel-192.0.2.9 [192.0.2.9] 1472 {"type":"udp"}`},
		{title: "udp, both", family: "both", kind: "udp", name: name2, value: `{"PublicIP":"192.0.2.9","PublicIPv6":null}`,
			want: `34 [10.5.34.0/24 fd00:5:0:77::/64] flannel-192.0.2.9 [192.0.2.9] 1472 {"type":"udp","ipv4_only":true,"port":8285}`},
		{title: "alloc", family: "IPv4", kind: "alloc", name: name4, value: `{"PublicIP":"192.0.2.9","PublicIPv6":null}`,
			want: `34 [10.5.34.0/24] flannel-192.0.2.9 [192.0.2.9] 1500 {"type":"alloc"}`},
		{title: "another backend", family: "IPv4", kind: "vxlan", name: name4,
			value: `{"PublicIP":"192.0.2.9","BackendType":"ipip"}`,
			want:  `34 [10.5.34.0/24] flannel-192.0.2.9 [192.0.2.9] 1500 {"type":"ipip"}`},
		{title: "vxlan in a network of host-gw", family: "IPv4", kind: "host-gw", name: name4, value: vxlan4,
			want: `34 [10.5.34.0/24] flannel-192.0.2.9 [192.0.2.9] 1450 {"type":"vxlan",` +
				`"own_family":true,"vtep_mac":"c6:d2:32:6f:8f:44"}`},

		{title: "another VNI", family: "IPv4", kind: "vxlan", options: `{"vni":7}`, name: name4, value: vxlan4,
			err: "BackendData.VNI is 1, the network's is 7"},
		{title: "another VNI for IPv6", family: "both", kind: "vxlan", name: name2,
			value: strings.Replace(vxlan2, `V6Data":{"VNI":1`, `V6Data":{"VNI":3`, 1),
			err:   "BackendV6Data.VNI is 3, the network's is 1"},
		{title: "no data for IPv6", family: "both", kind: "vxlan", name: name2, value: vxlan4,
			err: "BackendV6Data has no VtepMAC for fd00:5:0:77::/64"},
		{title: "no data", family: "IPv4", kind: "vxlan", name: name4,
			value: `{"PublicIP":"192.0.2.9","BackendType":"vxlan"}`, err: "BackendData has no VtepMAC"},
		{title: "null data", family: "IPv4", kind: "vxlan", name: name4,
			value: `{"PublicIP":"192.0.2.9","BackendType":"vxlan","BackendData":null}`, err: "no VtepMAC"},
		{title: "data as text", family: "IPv4", kind: "vxlan", name: name4,
			value: `{"PublicIP":"192.0.2.9","BackendType":"vxlan","BackendData":"x"}`,
			err:   "BackendData: not what vxlan publishes"},
		{title: "no MAC address", family: "IPv4", kind: "vxlan", name: name4, value: strings.Replace(vxlan4, "c6:", "", 1),
			err: `VtepMAC "d2:32:6f:8f:44" is no`},
		{title: "eight bytes of MAC address", family: "IPv4", kind: "vxlan", name: name4, value: strings.Replace(vxlan4,
			"c6:", "c6:01:02:", 1), err: `is no Ethernet address`},
		{title: "MAC address that steers", family: "IPv4", kind: "vxlan", name: name4, value: strings.Replace(vxlan4, "c6:",
			`\u001b[2J`, 1), err: `VtepMAC "\x1b[2J`},
		{title: "no address", family: "IPv4", kind: "host-gw", name: name4,
			value: `{"PublicIP":"0.0.0.0","BackendType":"host-gw"}`, err: "no PublicIP"},
		{title: "loopback", family: "IPv4", kind: "host-gw", name: name4,
			value: `{"PublicIP":"127.0.0.1","BackendType":"host-gw"}`,
			err:   "public ip 127.0.0.1 is not a host's unicast address"},
		{title: "inside the network", family: "IPv4", kind: "host-gw", name: name4,
			value: `{"PublicIP":"10.5.1.1","BackendType":"host-gw"}`, err: "public ip 10.5.1.1 is inside the network"},
		{title: "zone that steers", family: "IPv4", kind: "host-gw", name: name4,
			value: `{"PublicIP":"192.0.2.9","PublicIPv6":"fe80::1%\u001b[2J","BackendType":"host-gw"}`,
			err:   `public ip fe80::1%\x1b[2J is not`},
		{title: "families swapped", family: "IPv4", kind: "host-gw", name: name4,
			value: `{"PublicIP":"2001:db8::9","BackendType":"host-gw"}`, err: "PublicIP 2001:db8::9 is not IPv4"},
		{title: "an address twice", family: "IPv4", kind: "host-gw", name: name4,
			value: `{"PublicIP":"192.0.2.9","PublicIPv6":"::ffff:192.0.2.9","BackendType":"host-gw"}`,
			err:   "public ip 192.0.2.9 is there twice"},
		{title: "type that steers", family: "IPv4", kind: "host-gw", name: name4,
			value: `{"PublicIP":"192.0.2.9","BackendType":"\u001b[2J"}`,
			err:   `backend type "\x1b[2J" has characters that cannot be printed`},
		{title: "address that is none", family: "IPv4", kind: "host-gw", name: name4, value: `{"PublicIP":"somewhere"}`,
			err: "the value is not a lease"},
		{title: "nothing", family: "IPv4", kind: "host-gw", name: name4, value: `{}`, err: "no PublicIP"},
		{title: "leno's record alone", family: "IPv4", kind: "host-gw", name: name4,
			value: `{"version":1,"subnet":"10.5.34.0/24"}`, err: "no PublicIP"},
	} {
		t.Run(tt.title, func(t *testing.T) {
			n := networkOf(t, tt.family, tt.kind, tt.options)
			n.Epoch.Number = tt.epoch
			l, foreign, err := ParseLease(n, tt.name, []byte(tt.value))
			if tt.err != "" {
				refusal(t, err, tt.err)
				return
			}
			got := fmt.Sprintf("%d %s %s %s %d %s", l.Slot, l.Subnets, l.Node, l.PublicIPs, l.MTU, l.Backend.Object)
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
			if !foreign || !l.Foreign || l.Network != "default" || l.NodeID != l.Node {
				t.Errorf("foreign %t, %+v", foreign, l)
			}
			// What was parsed tells enough to write the record again.
			value, err := FormatLease(n, l)
			if l.Backend.Type != tt.kind {
				refusal(t, err, "is not the network's")
				return
			}
			again, isForeign, parseErr := ParseLease(n, tt.name, value)
			if err := errors.Join(err, parseErr); err != nil || !isForeign || !reflect.DeepEqual(again, l) {
				t.Errorf("written as %s: %v\n%s", value, err, cmp.Diff(fmt.Sprintf("%+v", l), fmt.Sprintf("%+v", again)))
			}
			if tt.kind == "vxlan" && string(value) != tt.value {
				t.Errorf("written as %s, was %s", value, tt.value)
			}
		})
	}
}

// TestLeaseContradictions: flannel's members and leno's record must agree.
func TestLeaseContradictions(t *testing.T) {
	n := networkOf(t, "both", "vxlan", `{"vni":1,"port":8472}`)
	sound, err := FormatLease(n, leaseOf(n, backendOf(t, "vxlan", lenoVTEP), "192.0.2.34", "2001:db8::34"))
	if err != nil {
		t.Fatal(err)
	}
	const name = "10.5.34.0-24&fd00:5:0:22::-64"
	for _, tt := range []struct{ name, old, new, want string }{
		{name, `"PublicIP":"192.0.2.34"`, `"PublicIP":"192.0.2.9"`,
			`invalid: PublicIP 192.0.2.9 contradicts the member "leno", which has 192.0.2.34`},
		{name, `"PublicIP":"192.0.2.34"`, `"PublicIP":"0.0.0.0"`,
			`PublicIP none contradicts the member "leno", which has 192.0.2.34`},
		{name, `"PublicIPv6":"2001:db8::34"`, `"PublicIPv6":null`,
			`PublicIPv6 none contradicts the member "leno", which has 2001:db8::34`},
		{name, `"PublicIPv6":"2001:db8::34"`, `"PublicIPv6":"2001:db8::9"`, `PublicIPv6 2001:db8::9 contradicts`},
		{name, `"PublicIP":"192.0.2.34","PublicIPv6":"2001:db8::34",`, ``, `no PublicIP`},
		{name, `"BackendType":"vxlan",`, ``, `BackendType udp contradicts the member "leno", which has vxlan`},
		{name, `"BackendData":{"VNI":1,"VtepMAC":"0a`, `"BackendData":{"VNI":1,"VtepMAC":"0c`,
			`BackendData.VtepMAC 0c:58:c0:00:02:22 contradicts the member "leno", which has 0a:58:c0:00:02:22`},
		{name, `"BackendV6Data":{"VNI":1,"VtepMAC":"0a`, `"BackendV6Data":{"VNI":1,"VtepMAC":"0c`,
			`BackendV6Data.VtepMAC 0c:58:c0:00:02:22 contradicts`},
		{name, `"BackendData":{"VNI":1,"VtepMAC":"0a:58:c0:00:02:22"},`, ``, `BackendData.VtepMAC none contradicts`},
		{name, `"BackendData":{`, `"BackendData":[],"x":{`, `BackendData: not what vxlan publishes`},
		{name, `"vtep_mac":"0a`, `"vtep_mac":"0c`, `which has 0c:58:c0:00:02:22`},
		{name, `"vtep_mac":"0a`, `"vtep_mac":"`, `contradicts the member "leno", which has none`},
		{name, `"subnets":["10.5.34.0/24","fd00:5:0:22::/64"]`, `"subnets":["10.5.34.0/24"]`,
			`subnets [10.5.34.0/24 fd00:5:0:22::/64] in the key contradict the member "leno", which has [10.5.34.0/24]`},
		{"10.5.34.0-24&fd00:5:0:77::-64", ``, ``, `subnets [10.5.34.0/24 fd00:5:0:77::/64] in the key contradict`},
		{"10.5.35.0-24&fd00:5:0:23::-64", ``, ``, "subnet 10.5.34.0/24 contradicts the key"},
		{name, `"version":1`, `"version":2`, "version 2 is a newer leno's"},
		{name, `"leno":{`, `"leno":null,"x":{`, "version is missing"},
		{name, `"leno":{`, `"leno":"x","y":{`, "the record is not an object but: string"},
		{name, `"leno":{`, `"leno":{"later":` + strings.Repeat("[", 16) + strings.Repeat("]", 16) + `,`,
			"nested deeper than 16"},
		{name, `"leno":{`, `"leno":{"Version":1,`, `is there twice`},
		{name, `"mtu":1450`, `"mtu":-1`, "mtu -1 is not within 68..65535"},
		{name, string(sound), ``, "empty value"},
		{name, string(sound), `{"version":1`, "unexpected end of JSON input"},
		{name, string(sound), `null`, "version is missing"},
		{name, string(sound), `[1]`, "the record is not an object but: array"},
		{name, string(sound), "\x00\x01\x02", `invalid character '\x00' looking for beginning of value`},
		{name, string(sound), strings.Repeat("[", 16000), "exceeded max depth"},
		{name, string(sound), strings.Repeat("x", 500<<10), "512000 bytes, at most 16384 are read"},
		{name, `"leno":{`, `"x":"` + strings.Repeat("x", registry.MaxRecordSize) + `","leno":{`, "at most 16384 are read"},
		{name, `"leno":{`, "\"x\":\"\xff\",\"leno\":{", "not UTF-8"},
	} {
		value := strings.Replace(string(sound), tt.old, tt.new, 1)
		if value == string(sound) && tt.old != "" {
			t.Fatalf("no %s in %s", tt.old, sound)
		}
		_, _, err := ParseLease(n, tt.name, []byte(value))
		refusal(t, err, tt.want)
	}
	for _, tt := range []struct{ old, new string }{
		{`"VtepMAC":"0a:58:c0:00:02:22"`, `"VtepMAC":"0A-58-C0-00-02-22"`},
		{`"BackendData":{"VNI":1,`, `"BackendData":{"VNI":9,`}, // until its host has followed a change of the network
		{`{"PublicIP":`, `{"Later":{},"PublicIP":`},
	} {
		value := strings.Replace(string(sound), tt.old, tt.new, 1)
		if _, foreign, err := ParseLease(n, name, []byte(value)); err != nil || foreign {
			t.Errorf("%s: %t, %v", tt.new, foreign, err)
		}
	}
}

// TestLeaseNames: the names of keys, whatever their values.
func TestLeaseNames(t *testing.T) {
	for _, tt := range []struct{ family, name, want string }{
		{"IPv4", "x", "not ADDRESS-LENGTH"},
		{"IPv4", "10.5.34.0", "not ADDRESS-LENGTH"},
		{"IPv4", "10.5.10.1-24", "not the first address and length of a subnet"},
		{"IPv4", "010.5.11.0-24", "not the first address and length of a subnet"},
		{"IPv4", "10.5.12.0-25", "subnet 10.5.12.0/25: invalid: the network's subnets are /24"},
		{"IPv4", "10.9.0.0-24", "subnet 10.9.0.0/24: invalid: outside the network"},
		{"IPv4", "0.0.0.0-0", "subnet 0.0.0.0/0: invalid: outside the network"},
		{"IPv4", "fd00..-64", "subnet fd00::/64: invalid: outside the network"},
		{"IPv4", "10.5.13.0-24/deeper", "a folder or inside one"},
		{"IPv4", "folder/", "a folder or inside one"},
		{"IPv4", "", "a folder or inside one"},
		{"IPv4", "10.5.14.0%2F24", "not ADDRESS-LENGTH"},
		{"IPv4", "10.5.15.0-24?recurse", "not the first address and length of a subnet"},
		{"IPv4", "ü \"'<>&", "not ADDRESS-LENGTH"},
		{"IPv4", "\x1b[2J\xff", "not ADDRESS-LENGTH"},
		{"IPv4", strings.Repeat("k", 2000), "not ADDRESS-LENGTH"},
		{"IPv4", "10.5.34.0-24&fd00:5:0:22::-64", "subnet fd00:5:0:22::/64: invalid: outside the network"},
		{"both", "0.0.0.0-0&fd00:5:0:22::-64", "not a subnet of each pool"},
		{"both", "10.5.34.0-24&fd00:5:0:22::-63", "the network's subnets are /64"},
		{"both", "10.5.34.0-24&fd00:5:0:22::-64&x", "not the first address and length of a subnet"},
		{"IPv6", "fd00.5.0.22..-64", "not a subnet of each pool, as in 0.0.0.0-0&fd00:5:0:1::-64"},
		{"IPv6", "10.5.34.0-24", "subnet 10.5.34.0/24: invalid: outside the network"},
	} {
		n := networkOf(t, tt.family, "host-gw", "")
		for _, value := range []string{"", `{}`,
			`{"PublicIP":"192.0.2.9","PublicIPv6":"2001:db8::9","BackendType":"host-gw"}`, `{"leno":{}}`} {
			_, _, err := ParseLease(n, tt.name, []byte(value))
			refusal(t, err, tt.want)
		}
	}
}

// TestOlderLease: a lease of the time before the network had its second pool is valid until its host writes it again.
func TestOlderLease(t *testing.T) {
	v4 := networkOf(t, "IPv4", "vxlan", "")
	l := leaseOf(v4, backendOf(t, "vxlan", `{"vtep_mac":"0a:58:c0:00:02:22"}`), "192.0.2.34")
	own, err := FormatLease(v4, l)
	if err != nil {
		t.Fatal(err)
	}
	theirs := []byte(`{"PublicIP":"192.0.2.34","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:58:c0:00:02:22"}}`)
	for _, value := range [][]byte{own, theirs} {
		got, _, err := ParseLease(networkOf(t, "both", "vxlan", ""), SubnetKey(l.Subnets), value)
		if err != nil || got.Slot != l.Slot || !slices.Equal(got.Subnets, l.Subnets) {
			t.Errorf("%s: %+v, %v", value, got, err)
		}
	}
}

// FuzzParseLease: a lease lies in the network under its own key, and one of leno's comes back.
func FuzzParseLease(f *testing.F) {
	var networks []registry.Network
	for _, family := range []string{"IPv4", "IPv6", "both"} {
		for _, kind := range []string{"vxlan", "udp", "host-gw", "alloc"} {
			networks = append(networks, networkOf(f, family, kind, ""))
		}
	}
	for i, n := range networks {
		l := leaseOf(n, backendOf(f, n.Backend.Type, lenoVTEP), "192.0.2.34", "2001:db8::34")
		value, err := FormatLease(n, l)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), SubnetKey(l.Subnets), value)
		attributes, _, _ := strings.Cut(string(value), `,"leno":`)
		f.Add(uint8(i), SubnetKey(l.Subnets), []byte(attributes+"}"))
	}
	f.Fuzz(func(t *testing.T, which uint8, name string, value []byte) {
		n := networks[int(which)%len(networks)]
		l, foreign, err := ParseLease(n, name, value)
		if err != nil {
			refusal(t, err, "")
			return
		}
		if SubnetKey(l.Subnets) != name || len(l.Subnets) != len(n.Plan) {
			t.Fatalf("subnets %s under %s", l.Subnets, name)
		}
		for i, s := range l.Subnets {
			if slot, err := n.Plan[i : i+1].Slot(s); err != nil || i == 0 && slot != l.Slot {
				t.Fatalf("subnet %s of slot %d: %v", s, l.Slot, err)
			}
		}
		if !slices.Equal(l.Subnets, n.Plan.Subnets(l.Slot)) && !foreign {
			t.Fatalf("subnets %s of slot %d", l.Subnets, l.Slot)
		}
		if l.Node == "" || len(l.PublicIPs) == 0 || !json.Valid(l.Backend.Object) {
			t.Fatalf("%+v", l)
		}
		if foreign {
			return
		}
		again, err := FormatLease(n, l)
		if err != nil {
			if len(value) < registry.MaxRecordSize/16 && l.Backend.Type != hostGW {
				t.Fatal(err)
			}
			return // escapes may exceed the limit
		}
		back, foreign, err := ParseLease(n, name, again)
		if err != nil || foreign || !back.SameValue(l) {
			t.Fatalf("%v\nwas %+v\nis  %+v", err, l, back)
		}
	})
}
