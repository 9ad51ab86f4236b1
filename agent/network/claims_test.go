package network

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/backend"
)

// TestHostClaims checks which two networks one host cannot carry, and that a claim is replaced as a whole or not at all.
func TestHostClaims(t *testing.T) {
	claim := func(pools string, ports ...backend.Port) hostClaim {
		c := hostClaim{ports: ports}
		for text := range strings.FieldsSeq(pools) {
			c.pools = append(c.pools, netip.MustParsePrefix(text))
		}
		return c
	}
	vxlan := func(port int, part string) backend.Port {
		return backend.Port{Number: port, Socket: "vxlan", Part: part}
	}
	udp := func(port int) backend.Port { return backend.Port{Number: port, Socket: "udp"} }
	p := NewHostClaims()
	for _, step := range []struct {
		name, network string
		mine          hostClaim
		want          string // part of the reason against it, "" for none
	}{
		{"the first", "a", claim("10.5.0.0/16 fd00:5::/48", vxlan(8472, "vni 1")), ""},
		{"the same again", "a", claim("10.5.0.0/16 fd00:5::/48", vxlan(8472, "vni 1")), ""},
		{"a larger pool of itself", "a", claim("10.4.0.0/15 fd00:5::/48", vxlan(8472, "vni 1")), ""},
		{"a pool inside of another's", "b", claim("10.4.7.0/24"), `its pool 10.4.7.0/24 overlaps 10.4.0.0/15 of network "a" on this host`},
		{"a pool around another's", "b", claim("10.6.0.0/16 fd00::/16"), "its pool fd00::/16 overlaps fd00:5::/48"},
		{"another part of the port", "b", claim("10.6.0.0/16", vxlan(8472, "vni 2")), ""},
		{"the same part of the port", "c", claim("10.7.0.0/16", vxlan(8472, "vni 1")), `it needs vxlan vni 1 on port 8472, which network "a" uses on this host`},
		{"the port for another kind of socket", "c", claim("10.7.0.0/16", udp(8472)), "it needs udp port 8472, and network "},
		{"another port", "c", claim("10.7.0.0/16", udp(8285)), ""},
		{"no port beside no port", "d", claim("10.8.0.0/16", udp(0)), ""},
		{"no port again", "e", claim("10.9.0.0/16", udp(0)), ""},
		{"a change that overlaps", "c", claim("10.6.0.0/16", udp(9000)), `overlaps 10.6.0.0/16 of network "b"`},
		{"the port that the refused change did not give up", "f", claim("10.10.0.0/16", udp(8285)), `it needs udp port 8285, which network "c" uses`},
		{"the port that the refused change did not take", "f", claim("10.10.0.0/16", udp(9000)), ""},
	} {
		got := p.take(step.network, step.mine)
		if (got == nil) != (step.want == "") || got != nil && !strings.Contains(got.Error(), step.want) {
			t.Errorf("%s: %v, want %q", step.name, got, step.want)
		}
	}
	p.release("b")
	if got := p.take("c", claim("10.6.0.0/16", vxlan(8472, "vni 2"))); got != nil {
		t.Errorf("after network b has given up its claim: %v", got)
	}
	p.release("b") // it has none
}
