package registry_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
)

// The documented layout that other programs read.
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

// TestSwitchGolden: a definition in a switch is read as it was written, and differs from one in another state of a switch.
func TestSwitchGolden(t *testing.T) {
	const (
		epoch = `"epoch":{"number":3,"rotated":true,"since":"2026-01-02T03:04:05Z"}`
		to    = `"switch":{"to":{"type":"wireguard","listen_port":7},"rotated":true,"direction":"back","encryption":"required","encryption_back":"required"}`
	)
	one := registry.Carriage{Backend: backend(t, "vxlan", `{"vni":1}`), Epoch: registry.Epoch{Number: 3, Rotated: true,
		Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}}
	both := one
	both.Switch = &registry.Switch{To: backend(t, "wireguard", `{"listen_port":7}`), Rotated: true, Direction: "back",
		Encryption: registry.EncryptionRequired, EncryptionBack: registry.EncryptionRequired}
	for members, c := range map[string]registry.Carriage{epoch: one, to + "," + epoch: both} {
		value, err := registry.FormatNetwork(dualNetwork(t).WithCarriage(c))
		if err != nil || !strings.Contains(string(value), `"backend":{"type":"vxlan","vni":1},`+members+`}`) {
			t.Errorf("%s, %v, want %s", value, err, members)
		}
		got, err := registry.ParseNetwork("default", value)
		if err != nil || !got.Carriage().Equal(c) {
			t.Errorf("%+v, %v, want %+v", got.Carriage(), err, c)
		}
	}
	for i, change := range []func(c *registry.Carriage){
		func(c *registry.Carriage) { c.Backend = backend(t, "vxlan", `{"vni":2}`) },
		func(c *registry.Carriage) { c.Epoch.Number++ },
		func(c *registry.Carriage) { c.Epoch.Rotated = false },
		func(c *registry.Carriage) { c.Epoch.Since = time.Time{} },
		func(c *registry.Carriage) { c.Switch = nil },
		func(c *registry.Carriage) { c.Switch.To = backend(t, "udp", "") },
		func(c *registry.Carriage) { c.Switch.Rotated = false },
		func(c *registry.Carriage) { c.Switch.Direction = "" },
		func(c *registry.Carriage) { c.Switch.Encryption = "" },
		func(c *registry.Carriage) { c.Switch.EncryptionBack = "" },
	} {
		changed, own := both, *both.Switch
		changed.Switch = &own
		if change(&changed); changed.Equal(both) || both.Equal(changed) {
			t.Errorf("change %d makes no difference: %+v", i, changed)
		}
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

// TestLeaseVariants: readers accept more than is written.
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
		"a name as long as may be":      func(s string) string { return strings.Replace(s, "host-a", strings.Repeat("a", 255), 1) },
		"an id that is no UUID": func(s string) string {
			return strings.Replace(s, "6f1c2d3e-0000-4000-8000-000000000001", "host-a's", 1)
		},
		"unknown members of the backend": func(s string) string { return strings.Replace(s, `"vni":1`, `"vni":1,"later":{"a":[{}]}`, 1) },
		"a name in any script":           func(s string) string { return strings.Replace(s, "host-a", "узел 1", 1) },
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

// cut removes the text from the first begin to the next end, both included.
func cut(s, begin, end string) string {
	i := strings.Index(s, begin)
	j := i + strings.Index(s[i:], end) + len(end)
	return s[:i] + s[j:]
}

// invalid is one way to corrupt a value: old is replaced by with; if old is empty, the whole value is.
type invalid struct{ name, old, with, want string }

// common corrupts every kind of record.
var common = []invalid{
	{"empty", "", "", "empty value"},
	{"cut off", "", `{"version":1`, "unexpected end"},
	{"not UTF-8", "", "{\"version\":1,\"x\":\"\xff\"}", "not UTF-8"},
	{"too big", "", `{"version":1,"x":"` + strings.Repeat("x", registry.MaxRecordSize) + `"}`, "at most 16384"},
	{"too deep", "", `{"x":` + strings.Repeat("[", 20) + strings.Repeat("]", 20) + `}`, "nested deeper than 16"},
	{"much too deep", "", strings.Repeat("[", 16000), "exceeded max depth"},
	{"null", "", `null`, "version is missing, this leno reads version 1"},
	{"array", "", `[1]`, "the record is not an object but: array"},
	{"string", "", `"x"`, "the record is not an object but: string"},
	{"no version", `"version":1,`, ``, "version is missing, this leno reads version 1"},
	{"next version", `"version":1`, `"version":2`, "version 2 is a newer leno's, this one reads version 1"},
	{"next version, all of it else", "", `{"subnet":{"v4":1},"pools":7,"mtu":"big","node":[],"version":2}`, "version 2 is a newer leno's"},
	{"version of no leno", `"version":1`, `"version":-1`, "version -1, this leno reads version 1"},
	{"version as text", `"version":1`, `"version":"1"`, "version is not a whole number but: string"},
	{"version past any number", `"version":1`, `"version":1e400`, "version is not a whole number but: number 1e400"},
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
		invalid{"backend as text", `{"type":"vxlan","vni":1,"port":8472,"direct_routing":false}`, `"vxlan"`, "backend: not a JSON object"},
		invalid{"pools as object", `"pools":[`, `"pools":{},"x":[`, "pools is not a list but: object"},
		invalid{"subnet_len as text", `"subnet_len":24`, `"subnet_len":"24"`, "subnet_len is not a whole number but: string"},
		invalid{"subnet_len below nothing", `"subnet_len":24`, `"subnet_len":-1`, "subnet_len -1 leaves fewer than 4 subnets"},
		invalid{"subnet_len past the family", `"subnet_len":24`, `"subnet_len":64`, "subnet_len 64 is longer than 30"},
		invalid{"host bits in the prefix", `10.5.0.0/16`, `10.5.0.1/16`, "did you mean 10.5.0.0/16?"},
		invalid{"several things", `"min":"10.5.1.0","max":"10.5.255.0"`, `"min":"fe80::1%\u001b[2J","max":"10.6.0.0"`, `pool 10.5.0.0/16: min fe80::1%\x1b[2J is outside; pool 10.5.0.0/16: max 10.6.0.0 is outside`},
		invalid{"a pool that is not routed", `10.5.0.0/16`, `224.0.0.0/16`, "is not unicast address space"},
		invalid{"a range outside", `"max":"10.5.255.0"`, `"max":"10.6.0.0"`, "max 10.6.0.0 is outside"},
		invalid{"a range the wrong way round", `"min":"10.5.1.0","max":"10.5.255.0"`, `"min":"10.5.9.0","max":"10.5.1.0"`, "min 10.5.9.0 is above max 10.5.1.0"},
		invalid{"no backend type", `"type":"vxlan",`, ``, "backend type is missing"},
		invalid{"backend type in another case", `"type":"vxlan"`, `"Type":"vxlan"`, "backend type is missing"},
		invalid{"two backend types", `"type":"vxlan"`, `"Type":"udp","type":"vxlan"`, "is there twice"},
		invalid{"backend type as number", `"type":"vxlan"`, `"type":1`, "backend type is not a string"},
		invalid{"unprintable backend type", `"type":"vxlan"`, `"type":"vx\u0007lan"`, `backend type "vx\alan" has characters that cannot be printed`},
		invalid{"unprintable revision", `"pools"`, `"revision":"a\u0007","pools"`, `revision "a\a" has characters that cannot be printed`},
		invalid{"no revision after others", `"pools"`, `"earlier":["a"],"pools"`, "revision is missing"},
		invalid{"an empty earlier revision", `"pools"`, `"revision":"b","earlier":["a",""],"pools"`, "earlier revision is missing"},
		invalid{"too many earlier revisions", `"pools"`, `"revision":"b","earlier":["a"` + strings.Repeat(`,"a"`, registry.MaxEarlier) + `],"pools"`, "33 revisions"},
		invalid{"generation without a revision", `"pools"`, `"generation":1,"pools"`, "revision is missing"},
		invalid{"generation as text", `"pools"`, `"revision":"b","generation":"1","pools"`, "generation is not a whole number but: string"},
		invalid{"generation below 0", `"pools"`, `"revision":"b","generation":-1,"pools"`, "generation is not a whole number but: number -1"},
		invalid{"generation above the highest", `"pools"`, `"revision":"b","generation":9007199254740993,"pools"`, "generation 9007199254740993, at most 9007199254740992"},
		invalid{"revision as number", `"pools"`, `"revision":1,"pools"`, "revision is not a string but: number"},
		invalid{"epoch below 0", `"pools"`, `"epoch":{"number":-1},"pools"`, "epoch -1, want 0 to 9007199254740992"},
		invalid{"epoch as number", `"pools"`, `"epoch":1,"pools"`, "epoch is not an object but: number"},
		invalid{"rotated as text", `"pools"`, `"epoch":{"rotated":"yes"},"pools"`, "rotated is not true or false but: string"},
		invalid{"a switch to nothing", `"pools"`, `"switch":{},"pools"`, "type of the switch's backend is missing"},
		invalid{"a switch to no backend", `"pools"`, `"switch":{"to":7},"pools"`, "not a JSON object"},
		invalid{"a switch in no direction", `"pools"`, `"switch":{"to":{"type":"udp"},"direction":"up"},"pools"`, `direction of the switch is "up"`},
		invalid{"a switch to unknown encryption", `"pools"`, `"switch":{"to":{"type":"udp"},"encryption":"some"},"pools"`, "encryption"},
		invalid{"a switch back to unknown encryption", `"pools"`, `"switch":{"to":{"type":"udp"},"encryption_back":"some"},"pools"`, "encryption"},
		invalid{"restored at no time", `"pools"`, `"restored":"yesterday","pools"`, "yesterday"},
	), func(value []byte) error {
		_, err := registry.ParseNetwork("default", value)
		return err
	})
	for _, name := range []string{"", "-a", "a-", "a/b", "a b", "..", "A9", "aB", "a~b", "a:b", strings.Repeat("a", 65), "a\n"} {
		if _, err := registry.ParseNetwork(name, []byte(networkValue)); !errors.Is(err, registry.ErrInvalid) {
			t.Errorf("network name %q: %v", name, err)
		}
	}
	for _, name := range []string{"a", "9", "default", "a.b_c-d", strings.Repeat("a", 64)} {
		if err := registry.CheckNetworkName(name); err != nil {
			t.Errorf("network name %q: %v", name, err)
		}
	}
}

func TestParseLeaseInvalid(t *testing.T) {
	n := dualNetwork(t)
	check(t, leaseValue, append(slices.Clone(common),
		invalid{"no subnet", `"subnet":"10.5.34.0/24",`, ``, "subnet is missing"},
		invalid{"null subnet", `"subnet":"10.5.34.0/24"`, `"subnet":null`, "subnet is missing"},
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
		invalid{"long node", `host-a`, strings.Repeat("a", 256), "node has 256 bytes, at most 255"},
		invalid{"node with a line end", `host-a`, `host\na`, `node "host\na" has characters that cannot be printed`},
		invalid{"node that steers a terminal", `host-a`, `\u001b[2J\u009b31m\u202e`, `node "\x1b[2J\u009b31m\u202e" has characters that cannot be printed`},
		invalid{"node as number", `"host-a"`, `7`, "node is not a string but: number"},
		invalid{"node with half a surrogate", `host-a`, `\ud800`, "has characters that cannot be printed"},
		invalid{"no node id", `"node_id":"6f1c2d3e-0000-4000-8000-000000000001",`, ``, "node_id is missing"},
		invalid{"no addresses", `"public_ip":"192.0.2.34","public_ips":["192.0.2.34"],`, ``, "public_ip is missing"},
		invalid{"an address twice", `["192.0.2.34"]`, `["192.0.2.34","2001:db8::1","192.0.2.34"]`, "public ip 192.0.2.34 is there twice"},
		invalid{"address that is none", `"public_ips":["192.0.2.34"]`, `"public_ips":["192.0.2.340"]`, `"192.0.2.340"`},
		invalid{"address as object", `"public_ips":["192.0.2.34"]`, `"public_ips":[{}]`, "public_ips is not a string but: object"},
		invalid{"addresses as text", `"public_ips":["192.0.2.34"]`, `"public_ips":"192.0.2.34"`, "public_ips is not a list but: string"},
		invalid{"null address", `"public_ips":["192.0.2.34"]`, `"public_ips":[null]`, "is not"},
		invalid{"another first address", `"public_ips":["`, `"public_ips":["192.0.2.99","`, "not the first"},
		invalid{"seventeen addresses", `"public_ips":["192.0.2.34"`, `"public_ips":["192.0.2.34"` + strings.Repeat(`,"192.0.2.34"`, 16), "17 public_ips, at most 16"},
		invalid{"a thousand bad addresses", `"public_ips":["192.0.2.34"`, `"public_ips":["192.0.2.34"` + strings.Repeat(`,"0.0.0.0"`, 1000), "1001 public_ips"},
		invalid{"no mtu", `"mtu":1450,`, ``, "mtu 0"},
		invalid{"mtu too small", `1450`, `67`, "mtu 67"},
		invalid{"mtu too large", `1450`, `65536`, "mtu 65536"},
		invalid{"mtu below nothing", `1450`, `-1`, "mtu -1 is not within 68..65535"},
		invalid{"mtu of a billion", `1450`, `1000000000`, "mtu 1000000000 is not within 68..65535"},
		invalid{"mtu as fraction", `1450`, `1450.5`, "mtu is not a whole number but: number 1450.5"},
		invalid{"mtu as text", `1450`, `"1450"`, "mtu is not a whole number but: string"},
		invalid{"mtu past any number", `1450`, `99999999999999999999`, "mtu is not a whole number but: number 99999999999999999999"},
		invalid{"mtu of many digits", `1450`, strings.Repeat("9", 9000), "mtu is not a whole number but: number 999"},
		invalid{"no backend", `,"backend":{"type":"vxlan","vni":1,"port":8472,"vtep_mac":"0a:58:c0:00:02:22"}`, ``, "backend type is missing"},
		invalid{"long backend type", `"type":"vxlan"`, `"type":"` + strings.Repeat("x", 9000) + `"`, "backend type has 9000 bytes, at most 255"},
		invalid{"backend as list", `{"type":"vxlan","vni":1,"port":8472,"vtep_mac":"0a:58:c0:00:02:22"}`, `["vxlan"]`, "backend: not a JSON object"},
		invalid{"backend too deep", `"vni":1`, `"vni":` + strings.Repeat(`{"a":`, 16) + "1" + strings.Repeat("}", 16), "nested deeper than 16"},
		invalid{"member of the backend twice", `"vni":1`, `"vni":1,"vni":2`, `member "vni" is there twice`},
		invalid{"member of a member of the backend twice", `"vni":1`, `"vni":[{"a":{"b":1,"B":2}}]`, `member "B" is there twice`},
		invalid{"everything at once", `"node":"host-a","node_id":"6f1c2d3e-0000-4000-8000-000000000001"`, `"node":""`, "node is missing; node_id is missing"},
		invalid{"a network's record", "", networkValue, "subnet is missing; node is missing"},
	), func(value []byte) error {
		_, err := registry.ParseLease(n, "10.5.34.0-24", value)
		return err
	})

	for _, address := range []string{"0.0.0.0", "0.1.2.3", "::", "127.0.0.1", "::1", "224.0.0.1", "ff02::1", "255.255.255.255", "fe80::1", "fe80::1%eth0",
		"::ffff:192.0.2.1"} {
		value := strings.ReplaceAll(leaseValue, "192.0.2.34", address)
		refused(t, "public ip "+address, leaseError(n, "10.5.34.0-24", value), "invalid: public ip "+address+" is not a host's unicast address")
	}
	value := strings.ReplaceAll(leaseValue, "192.0.2.34", `fe80::1%\u001b[2J`)
	refused(t, "zone that steers a terminal", leaseError(n, "10.5.34.0-24", value), `invalid: public ip fe80::1%\x1b[2J is not a host's unicast address`)
	for _, address := range []string{"10.5.1.1", "fd00:5::1"} {
		value := strings.ReplaceAll(leaseValue, "192.0.2.34", address)
		refused(t, "public ip "+address, leaseError(n, "10.5.34.0-24", value), "invalid: public ip "+address+" is inside the network")
	}
	for _, key := range invalidKeys {
		refused(t, "key "+key, leaseError(n, key, leaseValue), "")
	}
	for key, reason := range map[string]string{
		"10.6.34.0-24":               "subnet 10.6.34.0/24: invalid: outside the network",
		"10.5.34.0-25":               "subnet 10.5.34.0/25: invalid: the network's subnets are /24",
		"10.5.0.0-16":                "subnet 10.5.0.0/16: invalid: the network's subnets are /24",
		"0.0.0.0-0":                  "subnet 0.0.0.0/0: invalid: outside the network",
		"fd00.5.0.22..-80":           "subnet fd00:5:0:22::/80: invalid: the network's subnets are /64",
		"fd00.5.0.22..-64":           `key "fd00.5.0.22..-64": invalid: the slot's key is 10.5.34.0-24`,
		"":                           `key "": invalid: a record must not be a folder or inside one`,
		"10.5.34.0-24/":              `key "10.5.34.0-24/": invalid: a record must not be a folder or inside one`,
		"10.5.34.0-24/x":             `key "10.5.34.0-24/x": invalid: a record must not be a folder or inside one`,
		"10.5.34.0%2F24":             `key "10.5.34.0%2F24": invalid: not ADDRESS-LENGTH`,
		"\x1b[2J-24\u202e":           `key "\x1b[2J-24\u202e": invalid: not the first address and length of a subnet`,
		"\xff\xfe":                   `key "\xff\xfe": invalid: not ADDRESS-LENGTH`,
		strings.Repeat("x", 100_000): `key "` + strings.Repeat("x", 64) + `": invalid: not ADDRESS-LENGTH`,
	} {
		refused(t, fmt.Sprintf("key %.80q", key), leaseError(n, key, leaseValue), reason)
		_, err := registry.ParseReservation(n, key, []byte(nodeReservation))
		refused(t, fmt.Sprintf("key %.80q of a reservation", key), err, reason)
	}
	// The slot's other key, with a value that matches it.
	value = strings.Replace(leaseValue, `"subnet":"10.5.34.0/24"`, `"subnet":"fd00:5:0:22::/64"`, 1)
	if _, err := registry.ParseLease(n, "fd00.5.0.22..-64", []byte(value)); !errors.Is(err, registry.ErrInvalid) || !strings.Contains(err.Error(), "10.5.34.0-24") {
		t.Errorf("a second key of a slot: %v", err)
	}
}

func leaseError(n registry.Network, key, value string) error {
	_, err := registry.ParseLease(n, key, []byte(value))
	return err
}

// refused checks that the error has exactly this reason; "" accepts any reason.
func refused(t *testing.T, what string, err error, reason string) {
	t.Helper()
	if !errors.Is(err, registry.ErrInvalid) || reason != "" && err.Error() != reason {
		t.Errorf("%s: got %v, want %s", what, err, reason)
	}
}

func TestParseReservationInvalid(t *testing.T) {
	n := dualNetwork(t)
	check(t, nodeReservation, append(slices.Clone(common),
		invalid{"another subnet", `10.5.40.0/24`, `10.5.41.0/24`, "contradicts the key"},
		invalid{"no subnet", `"subnet":"10.5.40.0/24",`, ``, "subnet is missing"},
		invalid{"no host", `,"node":"host-b"`, ``, "either a node or a node_id"},
		invalid{"two", `"node":"host-b"`, `"node":"host-b","node_id":"6f1c"`, "either a node or a node_id"},
		invalid{"long node", `host-b`, strings.Repeat("a", 256), "node has 256 bytes, at most 255"},
		invalid{"unprintable node", `host-b`, `\u001b[31m`, `node "\x1b[31m" has characters that cannot be printed`},
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
	"10.5.34.0-+24", "10.5.34.0-33", "10.5.34.0--24", " 10.5.34.0-24", "10.5.34.0-24 ", "10.5.34.0-24/x", "fd00.5.0.22.0..-64", "FD00.5.0.22..-64",
	"fd00.5.0.22..-129", "fe80..%eth0-64", "fd00:5:0:22::-64", "fd00.5:0.22..-64", "10..5.34.0-24"}

func TestSubnetKey(t *testing.T) {
	for key, subnet := range map[string]string{"10.5.34.0-24": "10.5.34.0/24", "0.0.0.0-0": "0.0.0.0/0", "fd00.5.0.22..-64": "fd00:5:0:22::/64",
		"fd00..22.0-112": "fd00::22:0/112", "fd00.1.2.3.4.5.6.0-112": "fd00:1:2:3:4:5:6:0/112", "..-0": "::/0"} {
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
