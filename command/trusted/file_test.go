package trusted

import (
	"io/fs"
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
