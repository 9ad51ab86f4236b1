package kernel_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestArrivals checks that packets are expected on the devices that a network has at the moment: two of them during a
// switch, whichever of its backends uses the first one.
func TestArrivals(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	for _, tt := range []struct {
		devices       string // that exist
		kind, options string
		underlay      string
		want          string
	}{
		{"", "vxlan", `{}`, "eth0", "leno-n"},
		{"leno-n", "vxlan", `{}`, "eth0", "leno-n"},
		{"leno-n leno-n~2", "vxlan", `{}`, "eth0", "leno-n leno-n~2"},
		{"leno-n~b", "vxlan", `{"device":"b"}`, "eth0", "leno-n leno-n~b"},
		{"", "host-gw", `{}`, "eth0", "eth0"},
		{"leno-other", "host-gw", `{}`, "eth0", "eth0"},
		// Switches between host-gw, which has no device, and another backend.
		{"leno-n~b", "host-gw", `{"next":{"device":"b","type":"vxlan"}}`, "eth0", "eth0 leno-n~b"},
		{"leno-n", "host-gw", `{"device":"b","next":{"type":"vxlan"}}`, "eth0", "eth0 leno-n"},
		{"leno-n", "vxlan", `{"next":{"device":"b","type":"host-gw"}}`, "eth0", "leno-n eth0"},
		{"leno-n~b", "vxlan", `{"device":"b","next":{"type":"host-gw"}}`, "eth0", "leno-n eth0 leno-n~b"},
		{"leno-n", "host-gw", `{"device":"b"}`, "eth0", "eth0 leno-n"}, // that the switch is about to remove
		{"leno-n", "host-gw", `{"device":"b","next":{"type":"vxlan"}}`, "", "leno-n"},
		{"leno-n leno-n~b", "vxlan", `{"next":{"device":"b","type":"udp"}}`, "eth0", "leno-n leno-n~b"},
		{"leno-n leno-n~b", "udp", `{"device":"b","next":{"direct_routing":true,"type":"vxlan"}}`, "eth0", "leno-n eth0 leno-n~b"},
	} {
		for device := range strings.FieldsSeq(tt.devices) {
			ns.Sh("ip link add " + device + " type bridge")
		}
		var got []string
		ns.Do(func() { got = kernel.Arrivals("n", tt.kind, json.RawMessage(tt.options), tt.underlay) })
		if !slices.Equal(got, strings.Fields(tt.want)) {
			t.Errorf("%s %s with %q: %q, want %q", tt.kind, tt.options, tt.devices, got, tt.want)
		}
		for device := range strings.FieldsSeq(tt.devices) {
			ns.Sh("ip link del " + device)
		}
	}
}
