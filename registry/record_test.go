package registry_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/registry"
)

// The layout other programs read, as it is documented.
const (
	networkValue = `{"version":1,"name":"default","pools":[{"prefix":"10.5.0.0/16","subnet_len":24,"min":"10.5.1.0","max":"10.5.255.0"}],` +
		`"backend":{"type":"vxlan","vni":1,"port":8472,"direct_routing":false}}`
	leaseValue = `{"version":1,"subnet":"10.5.34.0/24","subnets":["10.5.34.0/24","fd00:5:0:22::/64"],"node":"host-a",` +
		`"node_id":"6f1c2d3e-0000-4000-8000-000000000001","public_ip":"192.0.2.34","public_ips":["192.0.2.34"],"mtu":1450,` +
		`"backend":{"type":"vxlan","vni":1,"port":8472,"vtep_mac":"0a:58:c0:00:02:22"}}`
	nodeReservation = `{"version":1,"subnet":"10.5.40.0/24","node":"host-b"}`
	idReservation   = `{"version":1,"subnet":"10.5.40.0/24","node_id":"6f1c"}`
)

func backend(t testing.TB, kind, options string) registry.Backend {
	t.Helper()
	b, err := registry.NewBackend(kind, json.RawMessage(options))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func dualNetwork(t testing.TB) registry.Network {
	return registry.Network{Name: "default", Plan: mustPlan(t, pool("10.5.0.0/16", 24), pool("fd00:5::/48", 64)), Backend: backend(t, "vxlan", "")}
}

func TestNetworkGolden(t *testing.T) {
	n := registry.Network{Name: "default", Plan: registry.Plan{pool("10.5.0.0/16", 0)},
		Backend: backend(t, "vxlan", `{"vni": 1, "port": 8472, "direct_routing": false}`)}
	value, err := registry.FormatNetwork(n)
	if err != nil || string(value) != networkValue {
		t.Errorf("got  %s, %v\nwant %s", value, err, networkValue)
	}
	got, err := registry.ParseNetwork("default", value)
	if err != nil {
		t.Fatal(err)
	}
	if want := mustPlan(t, pool("10.5.0.0/16", 24, "10.5.1.0", "10.5.255.0")); !slices.Equal(got.Plan, want) {
		t.Errorf("plan %v, want %v", got.Plan, want)
	}
	if got.Name != "default" || !got.Backend.Equal(n.Backend) || got.Backend.Type != "vxlan" {
		t.Errorf("got %+v", got)
	}
	short := `{"version":1,"name":"default","pools":[{"prefix":"10.5.0.0/16"}],"backend":{"type":"vxlan"}}`
	if got, err := registry.ParseNetwork("default", []byte(short)); err != nil || got.Plan[0] != n.Plan[0] && got.Plan[0].SubnetLen != 24 {
		t.Errorf("a record with defaults left out: %+v, %v", got, err)
	}
}

func TestLeaseGolden(t *testing.T) {
	n := dualNetwork(t)
	l := registry.Lease{Network: "default", Slot: 34, Subnets: n.Plan.Subnets(34), Node: "host-a", NodeID: "6f1c2d3e-0000-4000-8000-000000000001",
		PublicIPs: []netip.Addr{netip.MustParseAddr("192.0.2.34")}, MTU: 1450,
		Backend: backend(t, "vxlan", `{"vni":1,"port":8472,"vtep_mac":"0a:58:c0:00:02:22"}`)}
	value, err := registry.FormatLease(l)
	if err != nil || string(value) != leaseValue {
		t.Errorf("got  %s, %v\nwant %s", value, err, leaseValue)
	}
	got, err := registry.ParseLease(n, "10.5.34.0-24", value)
	if err != nil || got.Network != "default" || got.Slot != 34 || !got.SameValue(l) {
		t.Errorf("got %+v, %v, want %+v", got, err, l)
	}
}

func TestReservationGolden(t *testing.T) {
	n := dualNetwork(t)
	for value, want := range map[string]registry.Reservation{
		nodeReservation: {Network: "default", Slot: 40, Subnet: netip.MustParsePrefix("10.5.40.0/24"), Node: "host-b"},
		idReservation:   {Network: "default", Slot: 40, Subnet: netip.MustParsePrefix("10.5.40.0/24"), NodeID: "6f1c"},
	} {
		if got, err := registry.FormatReservation(want); err != nil || string(got) != value {
			t.Errorf("got  %s, %v\nwant %s", got, err, value)
		}
		if got, err := registry.ParseReservation(n, "10.5.40.0-24", []byte(value)); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}

// What readers accept beyond what is written.
func TestLeaseVariants(t *testing.T) {
	n := dualNetwork(t)
	for name, change := range map[string]func(string) string{
		"from before the second family": func(s string) string { return strings.Replace(s, `,"fd00:5:0:22::/64"`, "", 1) },
		"subnet alone":                  func(s string) string { return cut(s, `"subnets":[`, `],`) },
		"public_ip alone":               func(s string) string { return cut(s, `"public_ips":[`, `],`) },
		"public_ips alone":              func(s string) string { return cut(s, `"public_ip":"`, `",`) },
		"two addresses":                 func(s string) string { return strings.Replace(s, `.34"]`, `.34","2001:db8::1"]`, 1) },
		"members of the future":         func(s string) string { return strings.Replace(s, `{"version"`, `{"zone":{"a":[1]},"version"`, 1) },
		"white space":                   func(s string) string { return "\n " + strings.ReplaceAll(s, ",", " ,\t") },
		"brackets in a name":            func(s string) string { return strings.Replace(s, "host-a", strings.Repeat("[{", 40), 1) },
		"a name in any script":          func(s string) string { return strings.Replace(s, "host-a", "узел 1", 1) },
	} {
		value := change(leaseValue)
		if value == leaseValue {
			t.Fatalf("%s: nothing changed", name)
		}
		l, err := registry.ParseLease(n, "10.5.34.0-24", []byte(value))
		if err != nil || l.Slot != 34 || l.PublicIPs[0] != netip.MustParseAddr("192.0.2.34") || l.Subnet() != netip.MustParsePrefix("10.5.34.0/24") {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
}

// cut removes what stands from the first begin to the next end, both included.
func cut(s, begin, end string) string {
	i := strings.Index(s, begin)
	j := i + strings.Index(s[i:], end) + len(end)
	return s[:i] + s[j:]
}

// invalid is one way to spoil a value: old becomes with; no old replaces all.
type invalid struct{ name, old, with, want string }

// common spoils every kind of record.
var common = []invalid{
	{"empty", "", "", "empty value"},
	{"cut off", "", `{"version":1`, "unexpected end"},
	{"not UTF-8", "", "{\"version\":1,\"x\":\"\xff\"}", "not UTF-8"},
	{"too big", "", `{"version":1,"x":"` + strings.Repeat("x", registry.MaxRecordSize) + `"}`, "at most 16384"},
	{"too deep", "", `{"x":` + strings.Repeat("[", 20) + strings.Repeat("]", 20) + `}`, "nested deeper than 16"},
	{"much too deep", "", strings.Repeat("[", 16000), "exceeded max depth"},
	{"null", "", `null`, "version 0"},
	{"array", "", `[1]`, "array"},
	{"string", "", `"x"`, "string"},
	{"no version", `"version":1,`, ``, "version 0"},
	{"next version", `"version":1`, `"version":2`, "version 2"},
	{"version as text", `"version":1`, `"version":"1"`, "version"},
	{"trailing data", "", `{"version":1}{}`, "after top-level value"},
	{"member twice", `{"version":1`, `{"version":2,"version":1`, `"version" is there twice`},
	{"member twice in two cases", `{"version":1`, `{"VERſION":1,"version":1`, `"version" is there twice`},
	{"long nonsense quoted", `"subnet":"10`, `"subnet":"` + strings.Repeat("y", 9000) + `10`, ""},
}

func check(t *testing.T, sound string, cases []invalid, parse func(value []byte) error) {
	if err := parse([]byte(sound)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			value := tt.with
			if tt.old != "" {
				if !strings.Contains(sound, tt.old) {
					t.Fatalf("no %s to spoil", tt.old)
				}
				value = strings.Replace(sound, tt.old, tt.with, 1)
			}
			err := parse([]byte(value))
			if !errors.Is(err, registry.ErrInvalid) {
				t.Fatalf("got %v, want %v", err, registry.ErrInvalid)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q does not say %q", err, tt.want)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("error of %d bytes", len(err.Error()))
			}
		})
	}
}

func TestParseNetworkInvalid(t *testing.T) {
	cases := slices.DeleteFunc(slices.Clone(common), func(c invalid) bool { return strings.Contains(c.old, "subnet") })
	check(t, networkValue, append(cases,
		invalid{"no name", `"name":"default",`, ``, "name"},
		invalid{"another name", `"name":"default"`, `"name":"other"`, `"other" in the value of "default"`},
		invalid{"a long name", `"name":"default"`, `"name":"` + strings.Repeat("x", 9000) + `"`, "in the value of"},
		invalid{"no pools", `"pools":[{"prefix":"10.5.0.0/16","subnet_len":24,"min":"10.5.1.0","max":"10.5.255.0"}],`, ``, "at least one pool"},
		invalid{"null pools", `[{"prefix":"10.5.0.0/16","subnet_len":24,"min":"10.5.1.0","max":"10.5.255.0"}]`, `null`, "at least one pool"},
		invalid{"null pool", `"pools":[`, `"pools":[null,`, "prefix is missing"},
		invalid{"null prefix", `"10.5.0.0/16"`, `null`, "prefix is missing"},
		invalid{"thousands of pools", `"pools":[`, `"pools":[` + strings.Repeat("{},", 4000), "4001 pools"},
		invalid{"two pools of a family", `"pools":[`, `"pools":[{"prefix":"10.6.0.0/16"},`, "2 IPv4 pools"},
		invalid{"bad plan", `"subnet_len":24`, `"subnet_len":15`, "fewer than 4"},
		invalid{"prefix with a zone", `"10.5.0.0/16"`, `"fe80::%eth0/64"`, "zone"},
		invalid{"no backend", `,"backend":{"type":"vxlan","vni":1,"port":8472,"direct_routing":false}`, ``, "backend type is missing"},
		invalid{"null backend", `{"type":"vxlan","vni":1,"port":8472,"direct_routing":false}`, `null`, "backend type is missing"},
		invalid{"backend as text", `{"type":"vxlan","vni":1,"port":8472,"direct_routing":false}`, `"vxlan"`, "not a JSON object"},
		invalid{"no backend type", `"type":"vxlan",`, ``, "backend type is missing"},
		invalid{"backend type in another case", `"type":"vxlan"`, `"Type":"vxlan"`, "backend type is missing"},
		invalid{"two backend types", `"type":"vxlan"`, `"Type":"udp","type":"vxlan"`, "is there twice"},
		invalid{"backend type as number", `"type":"vxlan"`, `"type":1`, "backend type"},
		invalid{"unprintable backend type", `"type":"vxlan"`, `"type":"vx\u0007lan"`, "not printable"},
	), func(value []byte) error {
		_, err := registry.ParseNetwork("default", value)
		return err
	})
	for _, name := range []string{"", "-a", "a-", "a/b", "a b", "..", strings.Repeat("a", 65), "a\n"} {
		if _, err := registry.ParseNetwork(name, []byte(networkValue)); !errors.Is(err, registry.ErrInvalid) {
			t.Errorf("network name %q: %v", name, err)
		}
	}
	for _, name := range []string{"a", "A9", "default", "a.b_c-d", strings.Repeat("a", 64)} {
		if err := registry.CheckNetworkName(name); err != nil {
			t.Errorf("network name %q: %v", name, err)
		}
	}
}

func TestParseLeaseInvalid(t *testing.T) {
	n := dualNetwork(t)
	check(t, leaseValue, append(slices.Clone(common),
		invalid{"no subnet", `"subnet":"10.5.34.0/24",`, ``, "contradicts the key"},
		invalid{"null subnet", `"subnet":"10.5.34.0/24"`, `"subnet":null`, "contradicts the key"},
		invalid{"another subnet", `"subnet":"10.5.34.0/24"`, `"subnet":"10.5.35.0/24"`, "10.5.35.0/24 contradicts the key"},
		invalid{"host bits", `"subnet":"10.5.34.0/24"`, `"subnet":"10.5.34.1/24"`, "contradicts the key"},
		invalid{"another slot's second", `fd00:5:0:22::/64`, `fd00:5:0:23::/64`, "are not those of slot 34"},
		invalid{"second twice its size", `fd00:5:0:22::/64`, `fd00:5:0:22::/63`, "are not those of slot 34"},
		invalid{"null among the subnets", `"fd00:5:0:22::/64"`, `null`, "are not those of slot 34"},
		invalid{"more subnets than pools", `"fd00:5:0:22::/64"`, `"fd00:5:0:22::/64","0.0.0.0/0"`, "3 subnets"},
		invalid{"a thousand subnets", `"subnets":[`, `"subnets":[` + strings.Repeat(`"::/0",`, 1000), "1002 subnets"},
		invalid{"other order", `["10.5.34.0/24","fd00:5:0:22::/64"]`, `["fd00:5:0:22::/64","10.5.34.0/24"]`, "are not those"},
		invalid{"no node", `"node":"host-a",`, ``, "node is missing"},
		invalid{"null node", `"host-a"`, `null`, "node is missing"},
		invalid{"long node", `host-a`, strings.Repeat("a", 129), "node is longer than 128"},
		invalid{"node with a line end", `host-a`, `host\na`, "node is longer than 128 bytes or not printable"},
		invalid{"node with half a surrogate", `host-a`, `\ud800`, "not printable"},
		invalid{"no node id", `"node_id":"6f1c2d3e-0000-4000-8000-000000000001",`, ``, "node_id is missing"},
		invalid{"no addresses", `"public_ip":"192.0.2.34","public_ips":["192.0.2.34"],`, ``, "public_ip is missing"},
		invalid{"null address", `"public_ips":["192.0.2.34"]`, `"public_ips":[null]`, "is not"},
		invalid{"another first address", `"public_ips":["`, `"public_ips":["192.0.2.99","`, "not the first"},
		invalid{"seventeen addresses", `"public_ips":["192.0.2.34"`, `"public_ips":["192.0.2.34"` + strings.Repeat(`,"192.0.2.34"`, 16), "17 public_ips, at most 16"},
		invalid{"a thousand bad addresses", `"public_ips":["192.0.2.34"`, `"public_ips":["192.0.2.34"` + strings.Repeat(`,"0.0.0.0"`, 1000), "1001 public_ips"},
		invalid{"no mtu", `"mtu":1450,`, ``, "mtu 0"},
		invalid{"mtu too small", `1450`, `67`, "mtu 67"},
		invalid{"mtu too large", `1450`, `65536`, "mtu 65536"},
		invalid{"mtu as fraction", `1450`, `1450.5`, "mtu"},
		invalid{"mtu past any number", `1450`, `99999999999999999999`, "mtu"},
		invalid{"no backend", `,"backend":{"type":"vxlan","vni":1,"port":8472,"vtep_mac":"0a:58:c0:00:02:22"}`, ``, "backend type is missing"},
		invalid{"long backend type", `"type":"vxlan"`, `"type":"` + strings.Repeat("x", 9000) + `"`, "backend type is longer"},
		invalid{"everything at once", `"node":"host-a","node_id":"6f1c2d3e-0000-4000-8000-000000000001"`, `"node":""`, "node_id is missing"},
	), func(value []byte) error {
		_, err := registry.ParseLease(n, "10.5.34.0-24", value)
		return err
	})

	for _, address := range []string{"0.0.0.0", "::", "127.0.0.1", "::1", "224.0.0.1", "ff02::1", "255.255.255.255", "fe80::1", "fe80::1%eth0",
		"::ffff:192.0.2.1", "10.5.1.1", "fd00:5::1"} {
		value := strings.ReplaceAll(leaseValue, "192.0.2.34", address)
		if _, err := registry.ParseLease(n, "10.5.34.0-24", []byte(value)); !errors.Is(err, registry.ErrInvalid) || !strings.Contains(err.Error(), address) {
			t.Errorf("public ip %s: %v", address, err)
		}
	}
	for _, key := range append(slices.Clone(invalidKeys), "10.6.34.0-24", "10.5.34.0-25", "10.5.0.0-16", "fd00:5:0:22::-64") {
		if _, err := registry.ParseLease(n, key, []byte(leaseValue)); !errors.Is(err, registry.ErrInvalid) {
			t.Errorf("key %q: %v", key, err)
		}
	}
	// The slot's other key, with a value that agrees with it.
	value := strings.Replace(leaseValue, `"subnet":"10.5.34.0/24"`, `"subnet":"fd00:5:0:22::/64"`, 1)
	if _, err := registry.ParseLease(n, "fd00:5:0:22::-64", []byte(value)); !errors.Is(err, registry.ErrInvalid) || !strings.Contains(err.Error(), "10.5.34.0-24") {
		t.Errorf("a second key of a slot: %v", err)
	}
}

func TestParseReservationInvalid(t *testing.T) {
	n := dualNetwork(t)
	check(t, nodeReservation, append(slices.Clone(common),
		invalid{"another subnet", `10.5.40.0/24`, `10.5.41.0/24`, "contradicts the key"},
		invalid{"no subnet", `"subnet":"10.5.40.0/24",`, ``, "contradicts the key"},
		invalid{"nobody", `,"node":"host-b"`, ``, "either a node or a node_id"},
		invalid{"two", `"node":"host-b"`, `"node":"host-b","node_id":"6f1c"`, "either a node or a node_id"},
		invalid{"long node", `host-b`, strings.Repeat("a", 129), "longer than 128"},
		invalid{"unprintable node", `host-b`, `\u001b[31m`, "not printable"},
	), func(value []byte) error {
		_, err := registry.ParseReservation(n, "10.5.40.0-24", value)
		return err
	})
	value := strings.Replace(nodeReservation, "10.5.40.0/24", "fd00:5:0:28::/64", 1)
	if _, err := registry.ParseReservation(n, "fd00:5:0:28::-64", []byte(value)); !errors.Is(err, registry.ErrInvalid) {
		t.Errorf("a second key of a slot: %v", err)
	}
	got, err := registry.CheckReservation(n, registry.Reservation{Subnet: netip.MustParsePrefix("fd00:5:0:28::/64"), Node: "host-b"})
	if err != nil || got.Slot != 40 || got.Subnet != netip.MustParsePrefix("10.5.40.0/24") || got.Network != "default" {
		t.Errorf("got %+v, %v", got, err)
	}
}

var invalidKeys = []string{"", "-", "_", "x", "10.5.34.0", "10.5.34.0-", "-24", "10.5.34.0/24", "10.5.34.1-24", "010.5.34.0-24", "10.5.34.0-024",
	"10.5.34.0-+24", "10.5.34.0-33", "10.5.34.0--24", " 10.5.34.0-24", "10.5.34.0-24 ", "10.5.34.0-24/x", "fd00:5:0:22:0::-64", "FD00:5:0:22::-64",
	"fd00:5:0:22::-129", "fe80::%eth0-64"}

func TestSubnetKey(t *testing.T) {
	for key, subnet := range map[string]string{"10.5.34.0-24": "10.5.34.0/24", "0.0.0.0-0": "0.0.0.0/0", "fd00:5:0:22::-64": "fd00:5:0:22::/64", "::-0": "::/0"} {
		want := netip.MustParsePrefix(subnet)
		if got := registry.SubnetKey(want); got != key {
			t.Errorf("key of %s is %s, want %s", subnet, got, key)
		}
		if got, err := registry.ParseSubnetKey(key); err != nil || got != want {
			t.Errorf("subnet of %s is %s, %v", key, got, err)
		}
	}
	for _, key := range invalidKeys {
		if got, err := registry.ParseSubnetKey(key); !errors.Is(err, registry.ErrInvalid) {
			t.Errorf("key %q: %s, %v", key, got, err)
		}
	}
}

func TestFormatNetworkInvalid(t *testing.T) {
	for name, change := range map[string]func(*registry.Network){
		"name":            func(n *registry.Network) { n.Name = "a/b" },
		"plan":            func(n *registry.Network) { n.Plan = registry.Plan{pool("10.5.0.0/16", 31)} },
		"no backend":      func(n *registry.Network) { n.Backend = registry.Backend{} },
		"broken backend":  func(n *registry.Network) { n.Backend.Object = []byte(`{`) },
		"too big a value": func(n *registry.Network) { n.Backend = backend(t, "vxlan", fmt.Sprintf(`{"x":"%020000d"}`, 1)) },
	} {
		n := dualNetwork(t)
		change(&n)
		if value, err := registry.FormatNetwork(n); !errors.Is(err, registry.ErrInvalid) {
			t.Errorf("%s: wrote %s, %v", name, value, err)
		}
	}
}
