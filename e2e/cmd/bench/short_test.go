//go:build long

package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/probe"
)

// TestShort runs the short form of `make bench` with every contender: every figure must exist and
// be plausible. It does not check the speed, which depends on the load of the machine.
func TestShort(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 19*time.Minute)
	defer cancel()
	leno, err := lab.FindLeno(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Join(root, "bin")+":"+os.Getenv("PATH")) // tools/test builds wireguard-go
	commands := fmt.Sprintf("plain=%[1]s/vxlan.sh;;%[2]s=%[1]s/wireguard-go.sh", filepath.Join(root, "examples/bench"), library)
	o := options{leno: leno, names: strings.Join(known(), ","), commands: commands, short: true}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	r, err := run(ctx, o, &probe.Machine{}, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := r.table(&text); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text.String())
	for _, c := range r.Contenders {
		for _, f := range r.Figures {
			sane(t, c, f)
		}
		for _, size := range []int{64, 1400} {
			if sent, got := c.Values[udpSent(size)], c.Values[udpReceived(size)]; got.Median > sent.Median {
				t.Errorf("%s: more packets of %d bytes received than sent: %g, %g", c.Name, size, got.Median, sent.Median)
			}
		}
		if want := map[string]int{raw: 1500, hostGW: 1500, vxlan: 1450, udp: 1472, wg: 1440, "plain": 1450, library: 1440}[c.Name]; c.MTU != want {
			t.Errorf("%s: MTU %d, want %d", c.Name, c.MTU, want)
		}
	}
}

// sane checks one figure of a contender.
func sane(t *testing.T, c *column, f figure) {
	t.Helper()
	s := c.Values[f.Key]
	if f.agent && c.Name == raw {
		if s != nil {
			t.Errorf("raw has no agent, but %s: %v", f.Key, s.Rounds)
		}
		return
	}
	if s == nil || len(s.Rounds) != 1 {
		t.Errorf("%s: %s is missing", c.Name, f.Key)
		return
	}
	// A loss may be 0, and so may the CPU time of an agent whose packets the kernel forwards.
	mayBeZero := f.Unit == "%" || f.agent && f.Unit == "ns/B" && !hasAims(c.Name)
	v := s.Median
	if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) || v == 0 && !mayBeZero || f.Unit == "%" && v > 100 {
		t.Errorf("%s: %s is %g %s", c.Name, f.Key, v, f.Unit)
	}
}
