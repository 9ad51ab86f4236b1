package flannel

import (
	"slices"
	"testing"
)

func TestWarnings(t *testing.T) {
	const missing = "Backend.Type is missing: leno takes flannel's default, udp"
	for value, want := range map[string][]string{
		`{"Network":"10.5.0.0/16","Backend":{"type":"VXLAN","vni":7,"MTU":1400,"GBP":true}}`: nil,
		`{"Network":"10.5.0.0/16"}`:                               {missing},
		`{"Network":"10.5.0.0/16","Backend":{"Port":8285}}`:       {missing},
		`{"Network":"10.5.0.0/16","Backend":{"Type":"ipip"}}`:     nil,
		`{"Network":"10.5.0.0/16","Zone":1,"leno":{"version":1}}`: {missing, "Zone is left out: leno's networks have no such member"},
		`{"network":"10.5.0.0/16","enablenftables":true,"Backend":{"Type":"vxlan","learning":true,"MacPrefix":"0E-2A"}}`: {
			"Backend.MacPrefix is left out: it is for Windows, where leno does not run",
			"Backend.learning is left out: leno's device never learns, because each peer has an entry of its own",
			"enablenftables is left out: each host chooses between iptables and nftables, see the block firewall of its configuration"},
		`{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw","VNI":7}}`: {"Backend.VNI is left out: leno's host-gw has no such option"},
		`hello`: nil,
		`{"Network":"10.5.0.0/16","Zone":1,"network":"10.6.0.0/16"}`: nil,
	} {
		if got := Warnings([]byte(value)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
}
