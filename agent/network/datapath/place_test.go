package datapath

import (
	"testing"

	"github.com/lenonet/leno/agent/underlay"
)

func TestArithmetic(t *testing.T) {
	for _, tt := range []struct {
		place Place
		want  string
	}{
		{Place{Choice: underlay.Choice{MTU: 1500, MTUFrom: "eth0"}, MTU: 1450, overhead: "50 for VXLAN over IPv4"},
			"1450 = 1500 of eth0 - 50 for VXLAN over IPv4"},
		{Place{Choice: underlay.Choice{MTU: 1500, MTUFrom: "eth0"}, MTU: 1500}, "1500 of eth0"},
	} {
		if got := tt.place.arithmetic(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
