package backend

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
)

func TestEncapsulationMTU(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00:5::/48")
	vxlan, none := Encapsulation{Overhead: 50, Name: "VXLAN over IPv4"}, Encapsulation{}
	for _, tt := range []struct {
		capsule          Encapsulation
		underlay, option int
		pools            []netip.Prefix
		want             string
	}{
		{vxlan, 1500, 0, []netip.Prefix{v4, v6}, "1450, 50 for VXLAN over IPv4"},
		{vxlan, 1500, 1450, []netip.Prefix{v4, v6}, "1450, 50 for VXLAN over IPv4"},
		{vxlan, 1500, 1400, []netip.Prefix{v4, v6}, "1400, 100 since option mtu is 1400"},
		{vxlan, 1500, 9000, []netip.Prefix{v4, v6}, "1450, 50 for VXLAN over IPv4, although option mtu is 9000"},
		{vxlan, 1500, 600, []netip.Prefix{v4}, "600, 900 since option mtu is 600"},
		{vxlan, 1500, 1279, []netip.Prefix{v4, v6}, "mtu: is 1279, and pool fd00:5::/48 needs at least 1280"},
		{vxlan, 1329, 0, []netip.Prefix{v4, v6}, "underlay eth0 has an MTU of 1329, which leaves 1279: pool fd00:5::/48 needs at least 1280"},
		{vxlan, 1329, 0, []netip.Prefix{v4}, "1279, 50 for VXLAN over IPv4"},
		{Encapsulation{Overhead: 28, Name: "UDP over IPv4", Most: 65507}, 65536, 0, []netip.Prefix{v4}, "65507, 29 since no datagram is longer"},
		{none, 1500, 0, []netip.Prefix{v4, v6}, "1500, "},
		{none, 1500, 1400, []netip.Prefix{v4, v6}, "1400, 100 since option mtu is 1400"},
		{none, 1500, 9000, []netip.Prefix{v4, v6}, "1500, 0, although option mtu is 9000"},
	} {
		mtu, because, err := tt.capsule.MTU(Underlay{Interface: "eth0", MTU: tt.underlay}, tt.pools, tt.option)
		got := fmt.Sprintf("%d, %s", mtu, because)
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%+v on %d with option %d: %s, want %s", tt.capsule, tt.underlay, tt.option, got, tt.want)
		}
	}
}

func TestCheckMTUOption(t *testing.T) {
	dual := []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00:5::/48")}
	for options, want := range map[string]string{
		`{}`:           "<nil>",
		`{"mtu":0}`:    "<nil>",
		`{"mtu":1280}`: "<nil>",
		`{"mtu":1279}`: "mtu: is 1279, and pool fd00:5::/48 needs at least 1280",
	} {
		if got := fmt.Sprint(CheckMTUOption(json.RawMessage(options), dual)); got != want {
			t.Errorf("%s: %s, want %s", options, got, want)
		}
		if err := CheckMTUOption(json.RawMessage(options), dual[:1]); err != nil {
			t.Errorf("%s without IPv6: %v", options, err)
		}
	}
}
