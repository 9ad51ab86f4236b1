package vxlan

import (
	"fmt"
	"testing"
)

// TestForeignDeviceWithOurAlias checks that another program's device stays as it is, whatever alias
// it has, and does not prevent ours from being found.
func TestForeignDeviceWithOurAlias(t *testing.T) {
	t.Parallel()
	const alias = `; ip link set bar alias "leno network test"`
	for name, foreign := range map[string]string{
		"other vni":    "ip link add bar type vxlan id 99 dstport 8472 local 192.0.2.1 dev eth0",
		"other port":   "ip link add bar type vxlan id 1 dstport 4790 local 192.0.2.1 dev eth0",
		"both":         "ip link add bar type vxlan id 99 dstport 4790 local 192.0.2.1 dev eth0",
		"other family": "ip link add bar type vxlan id 1 dstport 8472 local 2001:db8:2::1 dev eth0",
		"other kind":   "ip link add bar type bridge",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.ns.Sh(foreign + alias)
			before := h.ns.Sh("ip -o -d link show bar")
			b, s := h.open("test", "leno-test", `{}`), h.state("eth0", "192.0.2.1")
			h.apply(b, s)
			for _, tt := range []struct {
				script, repaired string
				created          bool
			}{
				{"ip link del leno-test", "[device was deleted]", true},
				{"ip link set leno-test name other", "[device was renamed: to other]", false},
				{"ip link set leno-test name zzz address 02:00:00:00:00:01",
					"[device was renamed: to zzz device had another MAC address: 02:00:00:00:00:01 instead of " + b.devices[0].mac.String() + "]", false},
				{"ip link set leno-test name other; ip link add leno-test type vxlan id 7 dstport 4790 local 192.0.2.1 dev eth0",
					"[device was replaced: it had another vni]", true},
			} {
				index := h.ns.Index("leno-test")
				h.ns.Sh(tt.script)
				if r := h.apply(b, s); fmt.Sprint(r.Repaired) != tt.repaired {
					t.Errorf("%s: repaired %q, want %s", tt.script, r.Repaired, tt.repaired)
				}
				if created := h.ns.Index("leno-test") != index; created != tt.created {
					t.Errorf("%s: created again: %v", tt.script, created)
				}
				if r := h.apply(b, s); r.Writes != 0 {
					t.Errorf("%s: second apply %+v", tt.script, r)
				}
				if got := h.ns.Sh("ip -o -d link show bar"); got != before {
					t.Errorf("%s: the foreign device was touched:\n%swant\n%s", tt.script, got, before)
				}
			}
		})
	}
}

// TestRenamedDeviceOfAnOlderConfiguration checks that a device that cannot be changed into the
// wanted one is recognised as ours by its address.
func TestRenamedDeviceOfAnOlderConfiguration(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	s := h.state("eth0", "192.0.2.1")
	h.apply(h.open("test", "leno-test", `{}`), s)
	h.ns.Sh("ip link set leno-test name other")
	if r := h.apply(h.open("test", "leno-test", `{"gbp":true}`), s); r.Peers != 1 {
		t.Errorf("report %+v", r)
	}
	if got := h.ns.Sh("ip -o link show type vxlan | wc -l"); got != "1\n" && got != "1" {
		t.Errorf("%s devices", got)
	}
}
