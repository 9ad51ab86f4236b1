package cni

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/state"
)

// dual holds the facts of a host with two families.
var dual = facts{Network: "default", SubnetFile: state.SubnetFile{
	Gateways: []netip.Prefix{netip.MustParsePrefix("10.5.34.1/24"), netip.MustParsePrefix("fd00:5:0:22::1/64")},
	Pools:    []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00:5::/48")},
	MTU:      1450, IPMasq: true,
}}

// only returns dual with one family.
func only(family int) facts {
	f := dual
	f.Gateways, f.Pools = f.Gateways[family:family+1], f.Pools[family:family+1]
	return f
}

// head is the start of every configuration.
const head = `"cniVersion":"1.1.0","name":"leno","type":"leno-cni"`

// TestDelegate checks what the bridge plugin is given for a configuration and facts.
func TestDelegate(t *testing.T) {
	const v4 = `[{"gateway":"10.5.34.1","subnet":"10.5.34.0/24"}]`
	const v6 = `[{"gateway":"fd00:5:0:22::1","subnet":"fd00:5:0:22::/64"}]`
	noMasq := dual
	noMasq.IPMasq = false
	other := only(0)
	other.Network = "a-network-with-a-long-name"
	base := func(ranges, more string) string {
		return `{"bridge":"cni-default","cniVersion":"1.1.0","forceAddress":true,"ipMasq":false,` +
			`"ipam":{"dataDir":"/run/leno-cni/addresses","ranges":[` + ranges + `],"type":"host-local"},` +
			`"isDefaultGateway":true,"isGateway":true,"mtu":1450,"name":"default","type":"bridge"` + more + `}`
	}
	// with returns the configuration of both families with some keys replaced.
	with := func(pairs ...string) string {
		var all map[string]json.RawMessage
		if err := json.Unmarshal([]byte(base(v4+","+v6, "")), &all); err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(pairs); i += 2 {
			all[pairs[i]] = json.RawMessage(pairs[i+1])
		}
		text, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	ipam := func(more string) string {
		return `{"dataDir":"/run/leno-cni/addresses","ranges":[` + v4 + `,` + v6 + `],"type":"host-local",` + more + `}`
	}
	for _, tt := range []struct {
		name, conf string
		facts      facts
		want       string
		bridge     string
		own        bool
	}{
		{"both families", ``, dual, base(v4+","+v6, ""), "cni-default", true},
		{"IPv4", ``, only(0), base(v4, ""), "cni-default", true},
		{"IPv6", ``, only(1), base(v6, ""), "cni-default", true},
		{"long name", ``, other, strings.NewReplacer("cni-default", "cni-a-ne~omubq", `"default"`, `"a-network-with-a-long-name"`).Replace(base(v4, "")), "cni-a-ne~omubq", true},
		{"a bridge of one's own", `"delegate":{"bridge":"mine","hairpinMode":true}`, dual,
			with("bridge", `"mine"`, "forceAddress", "false", "hairpinMode", "true"), "mine", false},
		{"data directory", `"dataDir":"/run/other"`, dual,
			strings.ReplaceAll(with(), "/run/leno-cni", "/run/other"), "cni-default", true},
		{"smaller packets", `"delegate":{"mtu":1400}`, dual, with("mtu", "1400"), "cni-default", true},
		{"no default route", `"delegate":{"isDefaultGateway":false}`, dual,
			with("isDefaultGateway", "false", "ipam", ipam(`"routes":[{"dst":"10.5.0.0/16"},{"dst":"fd00:5::/48"}]`)), "cni-default", true},
		{"no gateway", `"delegate":{"isGateway":false}`, dual,
			with("isDefaultGateway", "false", "isGateway", "false", "ipam", ipam(`"routes":[{"dst":"10.5.0.0/16"},{"dst":"fd00:5::/48"}]`)), "cni-default", true},
		{"further routes and resolv.conf", `"ipam":{"type":"host-local","routes":[{"dst":"192.0.2.0/24","gw":"10.5.34.1"}],"resolvConf":"/etc/resolv.conf"}`, dual,
			with("ipam", ipam(`"routes":[{"dst":"192.0.2.0/24","gw":"10.5.34.1"}],"resolvConf":"/etc/resolv.conf"`)), "cni-default", true},
		{"the agent masquerades", `"delegate":{"ipMasq":true}`, dual, with(), "cni-default", true},
		{"no other masquerading", `"delegate":{"ipMasq":true}`, noMasq, with("ipMasq", "true"), "cni-default", true},
		{"no masquerading", ``, noMasq, with(), "cni-default", true},
		{"explanations", `"_comment":"pool of dc1","Documentation":"/usr/share/doc/x.md","delegate":{"_comment":"x"},"ipam":{"_comment":"x"}`, noMasq,
			with("_comment", `"x"`), "cni-default", true},
		{"the runtime's", `"capabilities":{"mac":true},"runtimeConfig":{"mac":"00:11:22:33:44:55"},"args":{"cni":{"ips":["10.5.34.9"]}},"dns":{"nameservers":["192.0.2.53"]},"prevResult":{"ips":[]}`, dual,
			with("runtimeConfig", `{"mac":"00:11:22:33:44:55"}`, "args", `{"cni":{"ips":["10.5.34.9"]}}`, "dns", `{"nameservers":["192.0.2.53"]}`), "cni-default", true},
		{"another plugin", `"delegate":{"type":"ptp","ipMasq":true,"whatever":[1]}`, noMasq,
			`{"cniVersion":"1.1.0","ipMasq":true,"ipam":{"dataDir":"/run/leno-cni/addresses","ranges":[` + v4 + `,` + v6 + `],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"type":"host-local"},"mtu":1450,"name":"default","type":"ptp","whatever":[1]}`, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := "{" + head
			if tt.conf != "" {
				text += "," + tt.conf
			}
			c, err := parseConf([]byte(text + "}"))
			if err != nil {
				t.Fatal(err)
			}
			d, err := newDelegation(c, tt.facts)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(value(t, tt.want), value(t, string(d.Config))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if d.Bridge != tt.bridge || d.Own != tt.own || d.Network != tt.facts.Network {
				t.Errorf("bridge %q, own %t, network %q", d.Bridge, d.Own, d.Network)
			}
		})
	}
}

func value(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// TestRefused checks invalid configurations and the specification's error codes.
func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		conf string // after head, or the whole when it begins with !
		code uint
		want string
	}{
		{`!`, types.ErrDecodingFailure, "cannot be read"},
		{`!null`, types.ErrDecodingFailure, "null"},
		{`![]`, types.ErrDecodingFailure, "array"},
		{`!{"name":"x"} x`, types.ErrDecodingFailure, "text follows"},
		{`!{"name":"x","cniVersion":1}`, types.ErrDecodingFailure, "cniVersion: 1"},
		{`!{"cniVersion":"1.1.0"}`, types.ErrInvalidNetworkConfig, "name"},
		{`"nework":"default"`, types.ErrUnsupportedField, `nework: "default" is not supported here; known are address,`},
		{`"ipMasq":true`, types.ErrUnsupportedField, "ipMasq: true"},
		{`"bridge":"x"`, types.ErrUnsupportedField, `bridge: "x"`},
		{`"bridge":"nomad","ipMasq":true,"isGateway":true,"forceAddress":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"172.26.64.0/20"}]]}`,
			types.ErrUnsupportedField, "bridge: \"nomad\", forceAddress: true, ipMasq: true, isGateway: true: put them into `delegate`, " +
				"where the plugin bridge has its settings; ipam.ranges: subnet and gateway come from this host's lease; leave it out"},
		{`"nework":"x","adress":"y","mtu":1400`, types.ErrUnsupportedField, "mtu: 1400: put them into `delegate`, where the plugin bridge has its settings; " +
			`adress: "y" is not supported here, nework: "x" is not supported here; known are address,`},
		{`"network":7`, types.ErrDecodingFailure, "network: 7"},
		{`"network":"../x"`, types.ErrInvalidNetworkConfig, "network:"},
		{`"network":".."`, types.ErrInvalidNetworkConfig, "network:"},
		{`"wait":"soon"`, types.ErrInvalidNetworkConfig, `wait: "soon"`},
		{`"wait":"-1s"`, types.ErrInvalidNetworkConfig, `wait: "-1s"`},
		{`"wait":"24h"`, types.ErrInvalidNetworkConfig, `wait: "24h"`},
		{`"wait":10`, types.ErrDecodingFailure, "wait: 10"},
		{`"subnetFile":"x.env"`, types.ErrInvalidNetworkConfig, "absolute"},
		{`"subnetFile":"/run/.env"`, types.ErrInvalidNetworkConfig, `subnetFile: "/run/.env" does not contain a network's name: set network`},
		{`"dataDir":"x"`, types.ErrInvalidNetworkConfig, "absolute"},
		{`"subnetFile":"/x","address":"127.0.0.1:1"`, types.ErrInvalidNetworkConfig, "cannot be used together"},
		{`"address":"ftp://x:1"`, types.ErrInvalidNetworkConfig, "unknown scheme"},
		{`"delegate":[]`, types.ErrDecodingFailure, "delegate: []"},
		{`"delegate":{"bridg":"x"}`, types.ErrUnsupportedField, `delegate.bridg: "x" is not supported here; known are bridge,`},
		{`"delegate":{"name":"x"}`, types.ErrInvalidNetworkConfig, "delegate.name"},
		{`"delegate":{"ipam":{}}`, types.ErrInvalidNetworkConfig, "delegate.ipam"},
		{`"delegate":{"type":"leno-cni"}`, types.ErrInvalidNetworkConfig, "delegate.type"},
		{`"delegate":{"type":"../bridge"}`, types.ErrInvalidNetworkConfig, "delegate.type"},
		{`"delegate":{"bridge":"a-name-of-16-byt"}`, types.ErrInvalidNetworkConfig, "delegate.bridge"},
		{`"delegate":{"bridge":"a/b"}`, types.ErrInvalidNetworkConfig, "delegate.bridge"},
		{`"delegate":{"ipMasq":"yes"}`, types.ErrDecodingFailure, "ipMasq"},
		{`"delegate":{"mtu":-1}`, types.ErrInvalidNetworkConfig, "delegate.mtu"},
		{`"delegate":{"mtu":9000}`, types.ErrInvalidNetworkConfig, "9000 is more than network default carries, 1450"},
		{`"delegate":{"hairpinMode":true,"promiscMode":true}`, types.ErrInvalidNetworkConfig, "cannot be used together"},
		{`"delegate":{"isGateway":false,"isDefaultGateway":true}`, types.ErrInvalidNetworkConfig, "isGateway"},
		{`"ipam":{"type":"dhcp"}`, types.ErrInvalidNetworkConfig, `ipam.type: "dhcp"`},
		{`"ipam":{"subnet":"10.0.0.0/8"}`, types.ErrInvalidNetworkConfig, "ipam.subnet"},
		{`"ipam":{"dataDir":"/x"}`, types.ErrInvalidNetworkConfig, "dataDir"},
		{`"ipam":{"route":[]}`, types.ErrUnsupportedField, "ipam.route: []"},
		{`"ipam":{"routes":[{"dst":"x"}]}`, types.ErrDecodingFailure, "ipam.routes"},
		{`"ipam":{"resolvConf":1}`, types.ErrDecodingFailure, "ipam.resolvConf"},
		{`"runtimeConfig":{"ipRanges":[[{"subnet":"10.0.0.0/8"}]]}`, types.ErrUnsupportedField, "ipRanges"},
		{`"runtimeConfig":7`, types.ErrDecodingFailure, "runtimeConfig"},
		{`"cni.dev/valid-attachments":7`, types.ErrDecodingFailure, "valid-attachments"},
	} {
		t.Run(tt.conf, func(t *testing.T) {
			text, whole := strings.CutPrefix(tt.conf, "!")
			if !whole {
				text = "{" + head + "," + text + "}"
			}
			c, err := parseConf([]byte(text))
			if err == nil {
				_, err = newDelegation(c, dual)
			}
			var e *types.Error
			if !errors.As(err, &e) || e.Code != tt.code || !strings.Contains(e.Msg, tt.want) {
				t.Errorf("%#v", err)
			}
		})
	}
}
