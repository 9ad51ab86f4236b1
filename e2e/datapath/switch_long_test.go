//go:build long

package datapath

import (
	"testing"

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
