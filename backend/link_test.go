package backend

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestLinkName(t *testing.T) {
	for network, want := range map[string]string{
		"default":                 "leno-default",
		"a":                       "leno-a",
		"0123456789":              "leno-0123456789",
		"01234567890":             "leno-0123~tokum",
		"production-eu-central-1": "leno-prod~iun2j",
		"production-eu-central-2": "leno-prod~i78bo",
	} {
		if got := LinkName(network); got != want {
			t.Errorf("LinkName(%q) = %q, want %q", network, got, want)
		}
	}
}

func TestLinkNamesFitAndDiffer(t *testing.T) {
	seen := map[string]string{}
	for i := range 2000 {
		network := fmt.Sprintf("a-long-network-name-%d", i)
		link := LinkName(network)
		if len(link) > 15 {
			t.Fatalf("LinkName(%q) = %q is longer than 15 bytes", network, link)
		}
		if other, ok := seen[link]; ok {
			t.Fatalf("%q and %q share %q", network, other, link)
		}
		seen[link] = network
	}
}

func TestArrivals(t *testing.T) {
	for _, tt := range []struct{ kind, options, underlay, want string }{
		{"vxlan", `{"type":"vxlan","vni":1}`, "eth0", "leno-default"},
		{"vxlan", `{"direct_routing":true}`, "eth0", "leno-default eth0"},
		{"vxlan", `{"direct_routing":true}`, "", "leno-default"},
		{"udp", ``, "eth0", "leno-default"},
		{"host-gw", `{}`, "eth0", "eth0"},
		{"host-gw", `{}`, "", "leno-default"},
	} {
		if got := strings.Join(Arrivals("default", tt.kind, json.RawMessage(tt.options), tt.underlay), " "); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}
