package cni

import (
	"net/netip"
	"strings"
	"testing"
)

func TestCheckRanges(t *testing.T) {
	for _, tt := range []struct {
		name  string
		pools string
		want  string
	}{
		{"both", "10.5.0.0/16 fd00:5::/48", ""},
		{"as large", "10.5.34.0/24 fd00:5:0:22::/64", ""},
		{"second of several", "10.4.0.0/16 10.5.0.0/16 fd00:5::/48", ""},
		{"none", "", "10.5.34.1/24 is in no range"},
		{"of one family", "10.5.0.0/16", "fd00:5:0:22::1/64 is in no range"},
		{"another", "10.6.0.0/16 fd00:5::/48", "10.5.34.1/24 is in no range"},
		{"smaller than the subnet", "10.5.34.0/25 fd00:5::/48", "10.5.34.1/24 is in no range"},
		{"everything", "0.0.0.0/0 ::/0", "10.5.34.1/24 is in no range"},
	} {
		f := dual
		f.Pools = nil
		for _, word := range strings.Fields(tt.pools) {
			f.Pools = append(f.Pools, netip.MustParsePrefix(word))
		}
		err := f.checkRanges()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
