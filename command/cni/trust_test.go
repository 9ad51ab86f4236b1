package cni

import (
	"io/fs"
	"net/netip"
	"strings"
	"testing"
)

func TestCheckOwner(t *testing.T) {
	for _, tt := range []struct {
		name  string
		owner fileOwner
		want  string // "" for trusted
	}{
		{"root's", fileOwner{0, 0o644}, ""},
		{"the agent's", fileOwner{998, fs.ModeDir | 0o755}, ""},
		{"another user's", fileOwner{65534, 0o644}, "/x belongs to user 65534"},
		{"of a group", fileOwner{0, 0o664}, "/x can be written by others (its mode is 0664)"},
		{"of everybody", fileOwner{998, fs.ModeDir | 0o757}, "mode is 0757"},
		{"as /tmp", fileOwner{0, fs.ModeDir | fs.ModeSticky | 0o777}, ""},
		{"as /tmp, another user's", fileOwner{65534, fs.ModeDir | fs.ModeSticky | 0o777}, "belongs to user 65534"},
	} {
		err := checkOwner("/x", tt.owner, []int{0, 998})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

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
