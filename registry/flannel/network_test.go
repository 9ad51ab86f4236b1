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
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/registry"
)

// planOf returns the plan of prefixes, with the default ranges.
func planOf(t testing.TB, prefixes ...string) registry.Plan {
	t.Helper()
	var p registry.Plan
	for _, prefix := range prefixes {
		p = append(p, registry.Pool{Prefix: netip.MustParsePrefix(prefix)})
	}
	p, err := p.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func backendOf(t testing.TB, kind, options string) registry.Backend {
	t.Helper()
	b, err := registry.NewBackend(kind, json.RawMessage(options))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// families are the pools of each combination of address families.
var families = map[string][]string{
	"IPv4": {"10.5.0.0/16"},
	"IPv6": {"fd00:5::/48"},
	"both": {"10.5.0.0/16", "fd00:5::/48"},
}

// refusal checks that an error is an ErrInvalid in one line that says want.
func refusal(t testing.TB, err error, want string) {
	t.Helper()
	switch {
	case !errors.Is(err, registry.ErrInvalid):
		t.Errorf("got %v, want %v: %s", err, registry.ErrInvalid, want)
	case !strings.Contains(err.Error(), want):
		t.Errorf("error %q does not say %q", err, want)
	case len(err.Error()) > 400 || strings.ContainsFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }):
		t.Errorf("error of %d bytes: %q", len(err.Error()), err)
	}
}

func TestFormatNetwork(t *testing.T) {
	n := registry.Network{Name: "default", Plan: planOf(t, families["both"]...),
		Backend: backendOf(t, "vxlan", `{"vni":7,"port":4789,"gbp":false,"direct_routing":true,"checksum_offload":"auto"}`)}
	value, err := FormatNetwork(n)
	want := `{"EnableIPv6":true,` +
		`"Network":"10.5.0.0/16","SubnetLen":24,"SubnetMin":"10.5.1.0","SubnetMax":"10.5.255.0",` +
		`"IPv6Network":"fd00:5::/48","IPv6SubnetLen":64,"IPv6SubnetMin":"fd00:5:0:1::","IPv6SubnetMax":"fd00:5:0:ffff::",` +
		`"Backend":{"DirectRouting":true,"GBP":false,"Port":4789,"Type":"vxlan","VNI":7},` +
		`"leno":{"version":1,"name":"default","pools":[` +
		`{"prefix":"10.5.0.0/16","subnet_len":24,"min":"10.5.1.0","max":"10.5.255.0"},` +
		`{"prefix":"fd00:5::/48","subnet_len":64,"min":"fd00:5:0:1::","max":"fd00:5:0:ffff::"}],` +
		`"backend":{"type":"vxlan","vni":7,"port":4789,"gbp":false,"direct_routing":true,"checksum_offload":"auto"}}}`
	if diff := cmp.Diff(want, string(value)); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	n.Plan = planOf(t, families["IPv6"]...)
	value, err = FormatNetwork(n)
	if want := `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":`; err != nil || !strings.HasPrefix(string(value),
		want) {
		t.Errorf("%s, %v", value, err)
	}
}

// TestNetworkRoundTrip: a network of every backend and family comes back, and flannel's members alone mean the same.
func TestNetworkRoundTrip(t *testing.T) {
	for family, pools := range families {
		for _, b := range []registry.Backend{
			backendOf(t, "vxlan", `{"vni":16777215,"port":4789,"gbp":true,"direct_routing":true,"checksum_offload":"off"}`),
			backendOf(t, "vxlan", `{"vni":1,"port":8472}`),
			backendOf(t, "vxlan", `{"mtu":1350}`),
			backendOf(t, "vxlan", ``),
			backendOf(t, "host-gw", ``),
			backendOf(t, "udp", `{"port":7890}`),
			backendOf(t, "udp", ``),
			backendOf(t, "alloc", ``),
			backendOf(t, "wireguard", `{"port":51820}`),
			backendOf(t, `odd "type"`, ``),
		} {
			n := registry.Network{Name: "default", Plan: planOf(t, pools...), Backend: b}
			if b.Type == "wireguard" {
				n.Encryption = registry.EncryptionRequired
			}
			value, err := FormatNetwork(n)
			if err != nil {
				t.Errorf("%s %s: %v", family, b.Object, err)
				continue
			}
			back, err := ParseNetwork("default", value)
			if diff := cmp.Diff(fmt.Sprint(n), fmt.Sprint(back)); err != nil || diff != "" {
				t.Errorf("%s %s: %v\n%s", family, b.Object, err, diff)
			}
			var all map[string]json.RawMessage
			if err := json.Unmarshal(value, &all); err != nil {
				t.Fatal(err)
			}
			delete(all, "leno")
			flannels, err := json.Marshal(all)
			if err != nil {
				t.Fatal(err)
			}
			back, err = ParseNetwork("default", flannels)
			if _, known := settings(b.Type); !known {
				refusal(t, err, "leno has n")
				continue
			}
			if err != nil || !slices.Equal(back.Plan, n.Plan) || back.Backend.Type != b.Type {
				t.Errorf("%s without leno: %+v, %v", flannels, back, err)
			}
			for option, raw := range members(b) {
				if got := members(back.Backend)[option]; option != "checksum_offload" && string(got) != string(raw) {
					t.Errorf("%s without leno: option %s is %s", flannels, option, got)
				}
			}
		}
	}
}

func TestFormatNetworkInvalid(t *testing.T) {
	plan := planOf(t, "10.5.0.0/16")
	for _, tt := range []struct {
		n    registry.Network
		want string
	}{
		{registry.Network{Name: "default", Backend: backendOf(t, "udp", "")}, "at least one pool"},
		{registry.Network{Name: "a b", Plan: plan, Backend: backendOf(t, "udp", "")}, "network name"},
		{registry.Network{Name: "default", Plan: plan}, "backend type is missing"},
		{registry.Network{Name: "default", Plan: plan, Backend: backendOf(t, "vxlan", `{"vni":"x"}`)},
			`option vni of backend "vxlan" is "x"`},
		{registry.Network{Name: "default", Plan: plan, Backend: backendOf(t, "vxlan", `{"gbp":1}`)},
			`option gbp of backend "vxlan" is 1`},
		{registry.Network{Name: "default", Plan: plan, Backend: backendOf(t, "udp", `{"port":null}`)},
			`option port of backend "udp" is null`},
		{registry.Network{Name: "default", Plan: plan,
			Backend: backendOf(t, "udp", `{"x":"`+strings.Repeat("x", registry.MaxRecordSize-200)+`"}`)},
			"at most 16384 are read"},
	} {
		_, err := FormatNetwork(tt.n)
		refusal(t, err, tt.want)
	}
}

// TestConfigured: what flannel's own configurations mean to leno.
func TestConfigured(t *testing.T) {
	for _, tt := range []struct{ name, value, backend, err string }{
		{name: "no backend", value: `{"Network":"10.5.0.0/16"}`, backend: `{"type":"udp","port":8285}`},
		{name: "vxlan", value: `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`,
			backend: `{"type":"vxlan","direct_routing":false,"gbp":false,"port":8472,"vni":1}`},
		{name: "vxlan with everything",
			value: `{"network":"10.5.0.0/16","EnableNFTables":true,"Extra":1,"Backend":{"type":"VXLAN",` +
				`"vni":16777215,"Port":4789,"GBP":true,"DirectRouting":true,"Learning":true,"MTU":1400,"MacPrefix":"0E-2A",` +
				`"Name":"x"}}`,
			backend: `{"type":"vxlan","direct_routing":true,"gbp":true,"mtu":1350,"port":4789,"vni":16777215}`},
		{name: "MTU 0", value: `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","MTU":0}}`,
			backend: `{"type":"vxlan","direct_routing":false,"gbp":false,"port":8472,"vni":1}`},
		{name: "MTU of the headers", value: `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","MTU":50}}`,
			err: "Backend.MTU 50 is not within 51..65585"},
		{name: "defaults", value: `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":null,"Port":0,"GBP":null}}`,
			backend: `{"type":"vxlan","direct_routing":false,"gbp":false,"port":8472,"vni":1}`},
		{name: "host-gw", value: `{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}`, backend: `{"type":"host-gw"}`},
		{name: "alloc", value: `{"Network":"10.5.0.0/16","Backend":{"Type":"alloc"}}`, backend: `{"type":"alloc"}`},
		{name: "VNI 0", value: `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":0}}`,
			err: "Backend.VNI 0 is not within 1..16777215"},
		{name: "comment", value: "{\n  \"Network\": \"http://x\", // the pool\n}", err: `line 2 has a comment, "// the pool", and JSON`},
		{name: "VNI too large", value: `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":16777216}}`,
			err: "Backend.VNI 16777216 is not"},
		{name: "port 0", value: `{"Network":"10.5.0.0/16","Backend":{"Type":"udp","Port":0}}`,
			err: "Backend.Port 0 is not within 1..65535"},
		{name: "port as text", value: `{"Network":"10.5.0.0/16","Backend":{"Type":"udp","Port":"8285"}}`,
			err: `Backend.port is "8285", not a number`},
		{name: "GBP as number", value: `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","GBP":1}}`,
			err: `Backend.gbp is 1, not true or false`},
		{name: "two VNIs", value: `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":1,"vni":2}}`,
			err: `member "vni" is there twice`},
		{name: "two networks", value: `{"Network":"10.5.0.0/16","networK":"10.6.0.0/16"}`, err: `is there twice`},
		{name: "ipip", value: `{"Network":"10.5.0.0/16","Backend":{"Type":"ipip"}}`,
			err: `backend "ipip": vxlan does the same`},
		{name: "wireguard", value: `{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard"}}`,
			err: "its own wireguard encrypts"},
		{name: "type that steers", value: `{"Network":"10.5.0.0/16","Backend":{"Type":"\u001b[2J"}}`,
			err: `backend "\x1b[2j"`},
		{name: "type as number", value: `{"Network":"10.5.0.0/16","Backend":{"Type":7}}`,
			err: "Backend.Type is 7, not a name"},
		{name: "neither family", value: `{"Network":"10.5.0.0/16","EnableIPv4":false}`,
			err: "neither IPv4 nor IPv6 is enabled"},
		{name: "subnets too small", value: `{"Network":"10.5.0.0/16","SubnetLen":31}`,
			err: "subnet_len 31 is longer than 30"},
		{name: "range outside", value: `{"Network":"10.5.0.0/16","SubnetMin":"10.6.0.0"}`,
			err: "pool 10.5.0.0/16: min 10.6.0.0 is outside"},
		{name: "zone that steers",
			value: `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","IPv6SubnetMin":"fe80::1%\u001b[2J"}`,
			err:   `min fe80::1%\x1b[2J is outside`},
		{name: "families swapped", value: `{"Network":"fd00:5::/48"}`, err: "pool fd00:5::/48 in Network is not IPv4"},
		{name: "families swapped, IPv6", value: `{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"10.5.0.0/16"}`,
			err: "pool 10.5.0.0/16 in IPv6Network is not IPv6"},
		{name: "ranges apart",
			value: `{"Network":"10.5.0.0/16","SubnetMax":"10.5.8.0","EnableIPv6":true,"IPv6Network":"fd00:5::/48",` +
				`"IPv6SubnetMin":"fd00:5:0:10::"}`,
			err: "the pools' ranges have no slot in common"},
		{name: "nothing", value: `{}`, err: "no Network is set"},
		{name: "network as number", value: `{"Network":7}`, err: "not a network configuration"},
		{name: "backend as text", value: `{"Network":"10.5.0.0/16","Backend":"vxlan"}`, err: "not a network configuration"},
		{name: "leno in another case", value: `{"Network":"10.5.0.0/16","Leno":{"version":7}}`,
			backend: `{"type":"udp","port":8285}`},
		{name: "empty", value: ``, err: "empty value"},
		{name: "cut off", value: `{"Network":"10.5.`, err: "unexpected end of JSON input"},
		{name: "null", value: `null`, err: "version is missing"},
		{name: "array", value: `[1]`, err: "the record is not an object but: array"},
		{name: "not UTF-8", value: "{\"Network\":\"\xff\"}", err: "not UTF-8"},
		{name: "too big", value: `{"x":"` + strings.Repeat("x", registry.MaxRecordSize) + `"}`,
			err: "16392 bytes, at most 16384 are read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, err := ParseNetwork("default", []byte(tt.value))
			if tt.err != "" {
				refusal(t, err, tt.err)
				return
			}
			if diff := cmp.Diff(tt.backend, string(n.Backend.Object)); err != nil || diff != "" || n.Name != "default" {
				t.Errorf("%+v, %v\n%s", n, err, diff)
			}
			if want := planOf(t, "10.5.0.0/16"); !slices.Equal(n.Plan, want) {
				t.Errorf("plan %v", n.Plan)
			}
		})
	}
	_, err := ParseNetwork("a b", []byte(`{"Network":"10.5.0.0/16"}`))
	refusal(t, err, `network name "a b"`)
}

// TestNetworkContradictions: flannel's members and leno's record must agree.
func TestNetworkContradictions(t *testing.T) {
	n := registry.Network{Name: "default", Plan: planOf(t, families["both"]...), Backend: backendOf(t, "vxlan",
		`{"vni":7,"port":4789}`)}
	sound, err := FormatNetwork(n)
	if err != nil {
		t.Fatal(err)
	}
	const instead = `: remove "leno" from the value to let flannel's configuration apply`
	for _, tt := range []struct{ old, new, want string }{
		{`"Network":"10.5.0.0/16","SubnetLen":24,"SubnetMin":"10.5.1.0","SubnetMax":"10.5.255.0"`, `"Network":"10.6.0.0/16"`,
			`invalid: the member "leno" has Network 10.5.0.0/16 instead of 10.6.0.0/16` + instead},
		{`"SubnetLen":24`, `"SubnetLen":25`, `has SubnetLen 24 instead of 25` + instead},
		{`"SubnetMin":"10.5.1.0"`, `"SubnetMin":"10.5.2.0"`,
			`has SubnetMin 10.5.1.0 instead of 10.5.2.0`},
		{`"SubnetMax":"10.5.255.0"`, `"SubnetMax":"10.5.2.0"`, `has SubnetMax 10.5.255.0 instead of 10.5.2.0`},
		{`"EnableIPv6":true`, `"EnableIPv6":false`, `has IPv6Network fd00:5::/48 instead of none`},
		{`"EnableIPv6":true`, `"EnableIPv4":false,"EnableIPv6":true`,
			`has Network 10.5.0.0/16 instead of none`},
		{`"IPv6SubnetLen":64`, `"IPv6SubnetLen":63`, `not the first address of a /63`},
		{`"Network":"10.5.0.0/16",`, ``, `no Network is set; the member "leno" has [10.5.0.0/16 fd00:5::/48]`},
		{`"Type":"vxlan"`, `"Type":"host-gw"`, `has Backend.Type vxlan instead of host-gw`},
		{`"VNI":7`, `"VNI":8,"GBP":true,"DirectRouting":true,"MTU":1400`, `the member "leno" has Backend.VNI 7 instead of 8, ` +
			`Backend.GBP false instead of true, Backend.DirectRouting false instead of true, ` +
			`Backend.MTU none instead of 1400` + instead},
		{`,"VNI":7`, ``, `Backend.VNI 7 instead of 1`},
		{`"Port":4789`, `"Port":0`, `Backend.Port 4789 instead of 8472`},
		{`"VNI":7`, `"VNI":"x"`, `Backend.vni is "x", not a number`},
		{`"Backend":{"Port":4789,"Type":"vxlan","VNI":7},`, ``, `Backend.Type vxlan instead of udp`},
		{`"Backend":`, `"backend":{},"Backend":`, `is there twice`},
		{`"version":1,"name"`, `"version":2,"name"`, "version 2 is a newer leno's"},
		{`"leno":{`, `"leno":null,"x":{`, "version is missing"},
		{`"leno":{`, `"leno":[1],"x":{`, "the record is not an object but: array"},
		{`"name":"default"`, `"name":"other"`, `name "other" in the value of "default"`},
	} {
		value := strings.Replace(string(sound), tt.old, tt.new, 1)
		if value == string(sound) {
			t.Fatalf("no %s in %s", tt.old, sound)
		}
		_, err := ParseNetwork("default", []byte(value))
		refusal(t, err, tt.want)
	}
}

// TestComplete: what flannel cannot express of the network's backend stays as it was.
func TestComplete(t *testing.T) {
	const defaults = `"direct_routing":false,"gbp":false,"port":8472,"vni":1`
	for _, tt := range []struct{ name, flannel, known, want string }{
		{"leno's options", `{"Type":"vxlan"}`, `{"checksum_offload":"off","mtu":0}`, `"checksum_offload":"off",` + strings.Replace(defaults, `"port"`, `"mtu":0,"port"`, 1)},
		{"an MTU is removed", `{"Type":"vxlan"}`, `{"mtu":1350}`, defaults},
		{"an MTU is added", `{"Type":"vxlan","MTU":1400}`, `{"mtu":0}`, strings.Replace(defaults, `"port"`, `"mtu":1350,"port"`, 1)},
		{"flannel's options", `{"Type":"vxlan"}`, `{"vni":7,"gbp":true}`, defaults},
	} {
		known := registry.Network{Name: "default", Plan: planOf(t, "10.5.0.0/16"), Backend: backendOf(t, "vxlan", tt.known)}
		n, err := ParseNetwork("default", []byte(`{"Network":"10.5.0.0/16","Backend":`+tt.flannel+`}`))
		if err != nil {
			t.Fatal(err)
		}
		if n.Foreign = true; !Complete(n, known).Backend.Equal(backendOf(t, "vxlan", `{`+tt.want+`}`)) {
			t.Errorf("%s: %s", tt.name, Complete(n, known).Backend.Object)
		}
	}
}

// TestMTU: flannel's MTU is that of the underlay, and leno's that of the overlay.
func TestMTU(t *testing.T) {
	for options, want := range map[string]string{`{"mtu":0}`: `{"Type":"vxlan"}`, `{"mtu":1350}`: `{"MTU":1400,"Type":"vxlan"}`} {
		n := registry.Network{Name: "default", Plan: planOf(t, families["IPv4"]...), Backend: backendOf(t, "vxlan", options)}
		value, err := FormatNetwork(n)
		if err != nil || !strings.Contains(string(value), `"Backend":`+want) {
			t.Errorf("%s: %s, %v", options, value, err)
		}
	}
}

func TestDeletion(t *testing.T) {
	d := registry.Deletion{Network: "blue", Time: time.Date(2026, 11, 22, 21, 40, 0, 0, time.UTC)}
	value, err := FormatDeletion(d)
	if want := `{"leno":{"version":1,"name":"blue",` +
		`"deleted":"2026-11-22T21:40:00Z"}}`; err != nil || string(value) != want {
		t.Errorf("%s, %v", value, err)
	}
	_, err = ParseNetwork("blue", value)
	var deleted *registry.DeletedError
	if !errors.As(err, &deleted) || !reflect.DeepEqual(deleted.Deletion, d) {
		t.Errorf("got %v", err)
	}
	_, err = ParseNetwork("blue", []byte(strings.Replace(string(value), "{", `{"Network":"10.5.0.0/16",`, 1)))
	refusal(t, err,
		`flannel's configuration contradicts the member "leno", which records that the network was deleted: remove "leno"`)
}

// FuzzParseNetwork: a value that is understood means the same after it was written again.
func FuzzParseNetwork(f *testing.F) {
	for _, value := range []string{
		`{"Network":"10.5.0.0/16","SubnetLen":26,"SubnetMin":"10.5.2.0","Backend":{"Type":"vxlan","VNI":3,` +
			`"DirectRouting":true}}`,
		`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"host-gw"}}`,
		`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"},"leno":{"version":1,"name":"default",` +
			`"pools":[{"prefix":"10.5.0.0/16"}],"backend":{"type":"vxlan"}}}`,
		`{"leno":{"version":1,"name":"default","deleted":"2026-11-22T21:40:00Z"}}`,
	} {
		f.Add([]byte(value))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		n, err := ParseNetwork("default", value)
		if err != nil {
			if !errors.Is(err, registry.ErrNetworkNotFound) {
				refusal(t, err, "")
			}
			return
		}
		again, err := FormatNetwork(n)
		if err != nil {
			if len(value) < registry.MaxRecordSize/16 {
				t.Fatal(err)
			}
			return // escapes and explicit defaults may exceed the limit
		}
		back, err := ParseNetwork("default", again)
		if err != nil || !slices.Equal(back.Plan, n.Plan) || !back.Backend.Equal(n.Backend) {
			t.Fatalf("%v\nwas %+v\nis  %+v", err, n, back)
		}
	})
}
