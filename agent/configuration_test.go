package agent

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/registry/memory"
)

// TestConfigurationInForce: the listed settings show defaults instead of blanks, and listing them does not change the
// configuration.
func TestConfigurationInForce(t *testing.T) {
	simulated(t, func(t *testing.T) {
		h := newHost(t, memory.New(), "a")
		h.config.Networks = append(h.config.Networks, h.second())
		h.config.Networks[1].Pools = []config.Pool{
			{Prefix: netip.MustParsePrefix("10.6.0.0/16"), SubnetLen: 26, Max: netip.MustParseAddr("10.6.9.0")},
			{Prefix: netip.MustParsePrefix("fd00:6::/48")},
		}
		a := h.build()
		for range 2 {
			var lines []string
			for _, s := range a.configuration().Settings {
				lines = append(lines, s.Name+" = "+s.Value)
			}
			text := strings.Join(lines, "\n")
			for _, want := range []string{
				"log_rotate_bytes = 104857600",
				"network.n.ipv4/ipv6 = [10.5.0.0/22 /24 10.5.1.0-10.5.3.0]",
				"network.m.ipv4/ipv6 = [10.6.0.0/16 /26 10.6.0.64-10.6.9.0, fd00:6::/48 /64 fd00:6:0:1::-fd00:6:0:ffff::]",
			} {
				if !strings.Contains(text, want) {
					t.Errorf("%s is missing in\n%s", want, text)
				}
			}
		}
		if c := a.settings.get(); c.Log.RotateBytes != 0 || c.Networks[0].Pools[0].SubnetLen != 0 {
			t.Errorf("%+v", c)
		}
	})
}
