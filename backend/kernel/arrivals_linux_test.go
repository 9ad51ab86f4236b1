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
		devices  string // that exist
		backends string // that of the network and, during a switch, the other one
		underlay string
		want     string
	}{
		{"", `{"type":"vxlan"}`, "eth0", "leno-n"},
		{"leno-n", `{"type":"vxlan"}`, "eth0", "leno-n"},
		{"leno-n leno-n~2", `{"type":"vxlan"}`, "eth0", "leno-n leno-n~2"},
		{"leno-n~b", `{"type":"vxlan"}`, "eth0", "leno-n leno-n~b"},
		{"", `{"type":"vxlan","direct_routing":true}`, "eth0", "leno-n eth0"},
		{"", `{"type":"vxlan","direct_routing":true}`, "", "leno-n"},
		{"", `{"type":"udp"}`, "eth0", "leno-n"},
		{"", `{"type":"host-gw"}`, "eth0", "eth0"},
		{"", `{"type":"host-gw"}`, "", "leno-n"},
		{"leno-other", `{"type":"host-gw"}`, "eth0", "eth0"},
		// Switches between host-gw, which has no device, and another backend.
		{"leno-n~b", `{"type":"host-gw"} {"type":"vxlan"}`, "eth0", "eth0 leno-n~b"},
		{"leno-n", `{"type":"host-gw"} {"type":"vxlan"}`, "eth0", "eth0 leno-n"},
		{"leno-n", `{"type":"vxlan"} {"type":"host-gw"}`, "eth0", "leno-n eth0"},
		{"leno-n~b", `{"type":"vxlan"} {"type":"host-gw"}`, "eth0", "leno-n eth0 leno-n~b"},
		{"leno-n", `{"type":"host-gw"}`, "eth0", "eth0 leno-n"}, // that the switch is about to remove
		{"leno-n", `{"type":"host-gw"} {"type":"vxlan"}`, "", "leno-n"},
		{"leno-n leno-n~b", `{"type":"vxlan"} {"type":"udp"}`, "eth0", "leno-n leno-n~b"},
		{"leno-n leno-n~b", `{"type":"udp"} {"type":"vxlan","direct_routing":true}`, "eth0", "leno-n eth0 leno-n~b"},
	} {
		for device := range strings.FieldsSeq(tt.devices) {
			ns.Sh("ip link add " + device + " type bridge")
		}
		var got []string
		var objects []json.RawMessage
		for object := range strings.FieldsSeq(tt.backends) {
			objects = append(objects, json.RawMessage(object))
		}
		ns.Do(func() { got = kernel.Arrivals("n", tt.underlay, objects...) })
		if !slices.Equal(got, strings.Fields(tt.want)) {
			t.Errorf("%s with %q: %q, want %q", tt.backends, tt.devices, got, tt.want)
		}
		for device := range strings.FieldsSeq(tt.devices) {
			ns.Sh("ip link del " + device)
		}
	}
}
