package command

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/internal/testkit/seed"
)

// Errors fit a terminal too; a pipe gets each on one line, so that programs can search it.
func TestErrorsFit(t *testing.T) {
	for _, args := range []string{"status -address=unix:///nowhere/leno.sock", "lease show not-a-network-at-all-but-long 10.5.34.7", "stat"} {
		for _, terminal := range []bool{true, false} {
			got := world{terminal: terminal}.run(strings.Fields(args)...)
			first, _, _ := strings.Cut(got.stderr, "\n")
			if got.code == cli.ExitDone || !strings.HasPrefix(first, "Error: ") {
				t.Errorf("%s: %+v", args, got)
			}
			if terminal {
				fits80(t, got.stderr)
			} else if strings.Contains(got.stderr, "no agent answers") && strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("%s: more than a line: %s", args, got.stderr)
			}
		}
	}
}

// TestGoldenFits: all recorded output of commands fits, except lines of an error and commands that
// must not be broken.
func TestGoldenFits(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.golden")
	if err != nil || len(paths) < 50 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	for _, path := range paths {
		if strings.Contains(path, "json") || strings.Contains(path, "-env") || strings.HasSuffix(path, "/cleanup.golden") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "-format=json") {
			continue
		}
		reasons := false // of an error, one per line, which programs search
		for line := range strings.Lines(string(text)) {
			reasons = strings.HasPrefix(line, "Error: ") || reasons && line != "\n"
			if !reasons && !strings.HasPrefix(line, "$ leno ") {
				fits80(t, line)
			}
		}
	}
}

// gibberish generates text that other hosts and long-winded operators may write.
type gibberish struct{ *rand.Rand }

func (g gibberish) text(most int) string {
	alphabet := []string{"a", "b", "-", ".", "é", "語", "e\u0301", "\x1b[2J", "\n", "\u202e", " ", "x", "0123456789"}
	var b strings.Builder
	for range 1 + g.IntN(most) {
		b.WriteString(alphabet[g.IntN(len(alphabet))])
	}
	return b.String()
}

func (g gibberish) addr() netip.Addr {
	if g.IntN(3) == 0 {
		return netip.AddrFrom4([4]byte{192, 0, 2, byte(g.IntN(256))})
	}
	var a [16]byte
	for i := range a {
		a[i] = byte(0x20 + g.IntN(0xd0))
	}
	return netip.AddrFrom16(a)
}

func (g gibberish) prefix() netip.Prefix {
	a := g.addr()
	return netip.PrefixFrom(a, a.BitLen()-g.IntN(16))
}

func (g gibberish) words() []string { return []string{g.text(300), g.text(20)} }

func (g gibberish) check() api.Check {
	statuses := []string{api.Passing, api.Warning, api.Critical}
	return api.Check{Name: g.text(30), Status: statuses[g.IntN(3)], Reason: g.text(300), Since: now.Add(-time.Duration(g.Int64N(1e16)))}
}

func (g gibberish) checks() (list []api.Check) {
	for range g.IntN(5) {
		list = append(list, g.check())
	}
	return list
}

// fill makes the agent return gibberish.
func (g gibberish) fill(f *fakeAgent) {
	n := &f.networks[1]
	option, _ := json.Marshal(map[string]string{"type": g.text(30), g.text(100): g.text(100)})
	n.Backend = option
	n.Pools = append(n.Pools, api.Pool{Prefix: g.prefix(), Min: g.addr(), Max: g.addr(), SubnetLen: 64})
	l := n.Local
	l.State, l.MTUReason, l.Notes, l.Backend, l.Link, l.Differs = g.text(200), g.text(200), g.words(), g.text(20), g.text(20), g.words()
	l.Subnets, l.SubnetFile = []netip.Prefix{g.prefix(), g.prefix()}, "/"+strings.Repeat("x", g.IntN(200))
	l.Underlay = api.Underlay{Interface: g.text(15), MTU: g.IntN(65536), Addresses: []netip.Addr{g.addr(), g.addr()}, Own: []netip.Addr{g.addr()}, Reason: g.text(200)}
	f.health = api.Health{Status: g.check().Status, Ready: g.IntN(2) == 0, Checks: g.checks(), Networks: f.health.Networks}
	for range g.IntN(20) {
		f.health.Networks = append(f.health.Networks, api.NetworkHealth{Network: g.text(64), Status: g.check().Status, Checks: g.checks()})
	}
	for range g.IntN(5) {
		f.leases = append(f.leases, api.Lease{Subnet: g.prefix(), Subnets: []netip.Prefix{g.prefix(), g.prefix()}, Node: g.text(64), NodeID: g.text(64),
			PublicIPs: []netip.Addr{g.addr()}, MTU: g.IntN(65536), Backend: option, Held: g.IntN(2) == 0, LapsedSeconds: g.Int64N(1e9), Own: g.IntN(4) == 0})
		f.reservations = append(f.reservations, api.Reservation{Subnet: g.prefix(), Node: g.text(64)})
		f.skipped = append(f.skipped, api.Skipped{Key: g.text(100), Reason: g.text(100)})
		p := api.Peer{Node: g.text(64), Subnets: []netip.Prefix{g.prefix()}, PublicIPs: []netip.Addr{g.addr()}, Backend: g.text(20), Held: g.IntN(2) == 0}
		if g.IntN(2) == 0 {
			p.Skipped = g.text(200)
		}
		if g.IntN(2) == 0 {
			p.Counters = &api.Counters{RxBytes: g.Uint64(), TxBytes: g.Uint64(), Drops: map[string]uint64{g.text(40): g.Uint64()}}
		}
		if g.IntN(2) == 0 {
			p.Encrypted, p.LastHandshake = true, now.Add(-time.Duration(g.Int64N(1e17)))
		}
		f.peers = append(f.peers, p)
	}
	f.leases[0].Backend = option
	plan := f.plans["default"]
	plan.Changes = append(plan.Changes, api.Change{Field: g.text(60), From: g.text(100), To: g.text(100)})
	plan.Hosts = append(plan.Hosts, api.HostChange{Node: g.text(64), Subnet: g.prefix(), What: g.words()})
	plan.Refused = append(plan.Refused, api.Refusal{Reason: g.text(200), Way: g.text(200)})
	f.plans["default"] = plan
}

// TestAnythingFits: whatever the agent returns, tables and texts fit, and JSON loses nothing.
func TestAnythingFits(t *testing.T) {
	g := gibberish{seed.Rand(t)}
	for i := range 30 {
		f := newFakeAgent(t)
		g.fill(f)
		w := world{env: map[string]string{"LENO_ADDRESS": f.url}}
		for _, args := range []string{"status", "network list", "network show default", "lease list default", "lease show default 10.5.34.0/24",
			"reservation list default", "peers default", "network plan testdata/change.hcl"} {
			got := w.run(strings.Fields(args)...)
			fits80(t, got.stdout)
			if got.stdout == "" || strings.ContainsAny(got.stdout, "\x1b\u202e") {
				t.Errorf("agent %d: leno %s: %+v", i, args, got)
			}
		}
		var list api.LeaseList
		got := w.run("lease", "list", "default", "-format=json")
		if err := json.Unmarshal([]byte(got.stdout), &list); err != nil || fmt.Sprint(nodes(list.Leases)) != fmt.Sprint(nodes(f.leases)) {
			t.Errorf("agent %d: %v\n%s", i, err, got.stdout)
		}
		if t.Failed() {
			return
		}
	}
}

func nodes(list []api.Lease) (names []string) {
	for _, l := range list {
		names = append(names, l.Node+l.NodeID+l.Subnet.String())
	}
	return names
}

// When everything passes, status fits one screen, however many networks there are.
func TestStatusIsOneScreen(t *testing.T) {
	f := newFakeAgent(t)
	for n := range 40 {
		out := at(f).run("status")
		if lines := strings.Count(out.stdout, "\n"); lines > 23 { // plus one line for the prompt
			t.Fatalf("%d networks: %d lines:\n%s", n+1, lines, out.stdout)
		}
		more, health := f.networks[1], f.health.Networks[0]
		more.Name = fmt.Sprintf("n%d", n)
		health.Network = more.Name
		f.networks, f.health.Networks = append(f.networks, more), append(f.health.Networks, health)
	}
	// A network with a problem is among those shown.
	f.health.Networks[40].Status = api.Critical
	if out := at(f).run("status"); !strings.Contains(out.stdout, "\nn39      critical") || !strings.Contains(out.stdout, "\nAnd 31 more networks, all passing") {
		t.Errorf("%s", out.stdout)
	}
}

func at(f *fakeAgent) world { return world{env: map[string]string{"LENO_ADDRESS": f.url}} }
