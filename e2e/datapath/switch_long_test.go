//go:build long

package datapath

import (
	"fmt"
	"testing"
	"time"

	"github.com/lenonet/leno/e2e/lab"
)

// TestAllSwitches is TestSwitch with five hosts, between any two backends and between options of the same one.
func TestAllSwitches(t *testing.T) {
	newWorld(t, lab.Options{Hosts: 5}).switches(
		target{"wireguard", ""},
		target{"udp", ""},
		target{"host-gw", ""},
		target{"vxlan", ""},
		target{"vxlan", "vni = 7"},
		target{"vxlan", "port = 4789"},
		target{"host-gw", ""},
		target{"wireguard", ""},
		target{"wireguard", "listen_port = 51900"},
		target{"vxlan", ""},
		target{"udp", ""},
		target{"udp", "port = 9000"},
		target{"wireguard", ""},
		target{"host-gw", ""},
		target{"udp", ""},
		target{"vxlan", ""},
	)
}

// TestAllKeys is TestRotateKeys with five hosts.
func TestAllKeys(t *testing.T) { newWorld(t, lab.Options{Hosts: 5}).rotatesKeys() }

// TestAllSwitchesKilled is TestSwitchKilled at each step of a switch.
func TestAllSwitchesKilled(t *testing.T) { newWorld(t, lab.Options{Hosts: 3}).switchesKilled(killings) }

// TestAllSwitchesKilledInProcess kills agents at the steps of switches to and from backends in the agent's process. Each
// switch goes on, connections survive, and the hosts whose agents live lose no ping between each other.
func TestAllSwitchesKilledInProcess(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	w.StartNetwork("vxlan")
	victim := w.Hosts[0]
	pings := w.traffic(w.Containers[1:], 0)
	talks := w.talks(w.Containers)
	for i, k := range []killing{killings[1], killings[3], killings[4], killings[6]} {
		to := []target{{"wireguard", ""}, {"udp", ""}, {"wireguard", ""}, {"vxlan", ""}}[i]
		began := time.Now()
		w.killedAt(k, to, victim)
		w.echo(talks)
		pings.flows()
		t.Logf("to %s, %s: %s", to.kind, k.step, time.Since(began).Round(time.Millisecond))
	}
	pings.stop()
	for _, talk := range talks {
		_, err := talk.Stop()
		w.Must(err)
	}
}

// TestAllSwitchesToEncrypted is TestSwitchToEncrypted with three hosts. No packet is plain while keys are rotated, either,
// also when an agent is killed and when a rotation is stopped and reversed.
func TestAllSwitchesToEncrypted(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	w.switchesToEncrypted(func(tap *wiretap) {
		c, _ := w.carriage()
		epoch := func(n int) string { return fmt.Sprintf(`"number":%d,`, c.Epoch.Number+n) }
		tap.during("new keys", func() {
			w.turn("-rotate-keys")
			w.switched("wireguard", epoch(1))
		})
		tap.during("killed with new keys on the way", func() {
			w.turn("-rotate-keys")
			w.Must(w.Hosts[1].KillAgent())
			w.Must(w.Hosts[1].RestartAgent())
			w.Must(w.Hosts[1].WaitReady(w.Ctx))
			w.switched("wireguard", epoch(2))
			flows(w, w.Containers...)
		})
		tap.during("stopped and reversed", func() {
			w.turn("-rotate-keys")
			w.turn("-stop")
			flows(w, w.Containers...)
			w.turn("-continue")
			w.turn("-reverse")
			w.switched("wireguard", epoch(2))
			flows(w, w.Containers...)
		})
	})
}
