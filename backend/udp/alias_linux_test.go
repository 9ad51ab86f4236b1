package udp

import (
	"fmt"
	"testing"
)

// TestForeignDeviceWithOurAlias checks that another program's device stays as it is, whatever alias
// it has, and does not prevent ours from being found, by the process that made it or the next.
func TestForeignDeviceWithOurAlias(t *testing.T) {
	t.Parallel()
	for name, foreign := range map[string]string{
		"TUN":                  "ip tuntap add bar mode tun",
		"multi-queue TUN, up":  "ip tuntap add bar mode tun multi_queue vnet_hdr; ip addr add 10.77.1.0/32 dev bar; ip link set bar up",
		"TAP with our address": "ip tuntap add bar mode tap; ip addr add 10.5.1.0/32 dev bar",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newHost(t, 4, 1, labPeer(4, 2))
			join(a, newHost(t, 4, 2, labPeer(4, 1)))
			const shown = "ip -o -d link show bar; ip -o -4 addr show bar"
			a.ns.Sh(foreign + `; ip link set bar alias "leno network test"`)
			before := a.ns.Sh(shown)
			a.apply()
			for _, tt := range []struct {
				script, repaired string
				next, created    bool
			}{
				{script: "ip link del leno-test", repaired: "[device was deleted]", created: true},
				{script: "ip link set leno-test name other", repaired: "[device was renamed: to other]"},
				{script: "ip link set leno-test name zzz", repaired: "[device was renamed: to zzz]", next: true},
				{script: "true", repaired: "[]", next: true},
				{script: "ip link set leno-test name other; ip tuntap add leno-test mode tun multi_queue", repaired: "[device was replaced]", created: true},
				{script: "ip link set leno-test name other; ip tuntap add leno-test mode tun multi_queue", repaired: "[]", next: true, created: true},
			} {
				index := a.ns.Index("leno-test")
				if tt.next {
					a.renew()
				}
				a.ns.Sh(tt.script)
				if tt.script == "ip link del leno-test" {
					eventually(t, "the reader ended", func() bool { return !a.backend.engine.devices.alive() })
				}
				if r := a.apply(); fmt.Sprint(r.Repaired) != tt.repaired {
					t.Errorf("%+v: repaired %q", tt, r.Repaired)
				}
				if created := a.ns.Index("leno-test") != index; created != tt.created {
					t.Errorf("%+v: created again: %v", tt, created)
				}
				if got := a.ns.Sh(shown); got != before {
					t.Errorf("%+v: the foreign device was touched:\n%swant\n%s", tt, got, before)
				}
				if got := a.ns.Sh("ip -o link show | grep -c other || true"); got != "0\n" && got != "0" {
					t.Errorf("%+v: ours is still there under another name", tt)
				}
			}
		})
	}
}
