package netfilter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/firewalltest"
)

func TestAskVersion(t *testing.T) {
	s := firewalltest.NewPrograms(t)
	for text, want := range map[string]string{
		"iptables v1.8.9 (nf_tables)":     "v1.8.9 nft true",
		"ip6tables v1.8.11 (legacy)":      "v1.8.11 legacy true",
		"iptables v1.6.1":                 "v1.6.1 legacy false",
		"iptables v1.6.2":                 "v1.6.2 legacy true",
		"iptables v1.10.0-rc1 (legacy)":   "v1.10.0 legacy true",
		"BusyBox v1.36.1 (2023-01-01)":    "v1.36.1 legacy true",
		"iptables":                        "",
		"":                                "",
		"iptables v99999.1.1 (nf_tables)": "",
	} {
		s.Script("ipt", "echo '"+text+"'")
		v, err := askVersion(t.Context(), s.Dir+"/ipt")
		if got := fmt.Sprint(v, " ", v.Variant, " ", v.RandomFully); (err == nil && got != want) || (err != nil) != (want == "") {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}

// A program is asked once, and again when its file is replaced.
func TestProgramAskedOnce(t *testing.T) {
	s := firewalltest.NewPrograms(t)
	asked := func() int {
		data, err := os.ReadFile(s.Dir + "/log")
		if err != nil {
			t.Fatal(err)
		}
		return len(data) / 4 // by us, and by the library
	}
	var p Program
	for n, put := range []string{"1.8.9", "", "1.6.1", ""} {
		if put != "" {
			s.Script("ipt", "echo x >> "+s.Dir+"/log; echo iptables v"+put)
		}
		p.Refresh(t.Context(), "ipt")
		if asked() != n/2+1 || p.Err != nil {
			t.Errorf("step %d: asked %d times, %v", n, asked(), p.Err)
		}
	}
	if p.Version.String() != "v1.6.1" {
		t.Errorf("it is %s", p.Version)
	}
}

// A program that does not end, or does not stop printing, is killed.
func TestProgramBounds(t *testing.T) {
	s := firewalltest.NewPrograms(t)
	s.Script("prints", "exec yes")
	s.Script("hangs", "exec sleep 600")
	s.Script("leaves", "sleep 5 & exec sleep 600") // a child that keeps the pipe open
	for name, want := range map[string]string{
		"prints": "prints printed without end and was killed",
		"hangs":  "hangs did not end within 200ms and was killed",
		"leaves": "leaves did not end within 200ms and was killed",
	} {
		l := limits{time: 200 * time.Millisecond, output: 1 << 12}
		if name == "prints" {
			l.time = time.Minute
		}
		if _, err := l.run(t.Context(), "", filepath.Join(s.Dir, name)); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.Script("hangs-save", "exec sleep 600")
	s.Script("fails-save", "exit 1")
	for name, want := range map[string]bool{"hangs": true, "fails": false} {
		l := limits{time: 200 * time.Millisecond, output: 1 << 12}
		if !want {
			l.time = time.Minute
		}
		if _, err := l.list(t.Context(), filepath.Join(s.Dir, name)); err == nil || errors.Is(err, ErrUnlisted) != want {
			t.Errorf("list of %s: %v", name, err)
		}
	}
}
