package cni

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/command/cli"
)

// TestGiven: what was put on a device is read as it was written, and addresses that are no longer
// the host's gateways are old.
func TestGiven(t *testing.T) {
	prefixes := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	for _, tt := range []struct {
		name, text string
		want       recordedGateways
		old        string // if the host's facts are dual
	}{
		{"nothing", "", recordedGateways{}, ""},
		{"as it is", "/run/leno/default.env\n10.5.34.1/24\nfd00:5:0:22::1/64\n", recordedGateways{"/run/leno/default.env", dual.Gateways}, ""},
		{"old", "/a b/c\n10.5.33.1/24\nfd00:5:0:22::1/64\n", recordedGateways{"/a b/c", []netip.Prefix{netip.MustParsePrefix("10.5.33.1/24"), dual.Gateways[1]}}, "10.5.33.1/24"},
		{"another length", "10.5.34.1/25", recordedGateways{Gateways: []netip.Prefix{netip.MustParsePrefix("10.5.34.1/25")}}, "10.5.34.1/25"},
		{"rubbish", "x\n\n10.5.34.1\n10.5.34.1/240\nrelative/file", recordedGateways{}, ""},
	} {
		got := parseGateways(tt.text)
		if diff := cmp.Diff(tt.want, got, prefixes); diff != "" || cli.Join(got.oldGateways(dual)) != tt.old {
			t.Errorf("%s: old is %q, want %q: %s", tt.name, cli.Join(got.oldGateways(dual)), tt.old, diff)
		}
		if again := parseGateways(got.String()); cmp.Diff(got, again, prefixes) != "" {
			t.Errorf("%s: written as %q", tt.name, got.String())
		}
	}
}

// TestGatewayDevice: the device on which the bridge plugin puts the gateways. With it goes
// forwarding.
func TestGatewayDevice(t *testing.T) {
	for more, want := range map[string]string{
		"":                             "cni-default",
		`,"delegate":{"bridge":"br7"}`: "br7",
		`,"delegate":{"vlan":7}`:       "cni-default.7",
		`,"delegate":{"bridge":"br7","vlan":4094}`:   "br7.4094",
		`,"delegate":{"isGateway":false}`:            "",
		`,"delegate":{"isDefaultGateway":false}`:     "cni-default",
		`,"delegate":{"type":"ptp"}`:                 "",
		`,"delegate":{"type":"macvlan"}`:             "",
		`,"delegate":{"type":"bridge","vlan":0}`:     "cni-default",
		`,"delegate":{"isGateway":true,"bridge":""}`: "cni-default",
	} {
		c, err := parseConf([]byte("{" + head + more + "}"))
		if err != nil {
			t.Fatal(err)
		}
		forwards := want != "" || strings.Contains(more, "ptp")
		if d, err := newDelegation(c, dual); err != nil || d.Gateway != want || d.Forwards != forwards {
			t.Errorf("%s: %q, want %q; forwards: %t, want %t: %v", more, d.Gateway, want, d.Forwards, forwards, err)
		}
	}
}
