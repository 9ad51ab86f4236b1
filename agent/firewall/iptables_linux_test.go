package firewall

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/backend/kernel/nstest"
)

// variants runs a test with both kinds of iptables, whichever this host prefers.
func variants(t *testing.T, f func(t *testing.T, ns *nstest.NS, fw *Firewall)) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			f(t, nstest.New(t), firewallOf(variant))
		})
	}
}

func firewallOf(variant string) *Firewall {
	fw := New(hclog.NewNullLogger())
	fw.applier = newIPTables(hclog.NewNullLogger(), "-"+variant)
	return fw
}

func families(fw *Firewall) []*family { return fw.applier.(*iptables).families }

func apply(t *testing.T, ns *nstest.NS, fw *Firewall, networks []Network, writes int) {
	t.Helper()
	ns.Do(func() {
		report, err := fw.Apply(t.Context(), networks)
		if err != nil {
			t.Fatal(err)
		}
		if report.Writes != writes {
			t.Errorf("%d writes, want %d", report.Writes, writes)
		}
	})
}

var changing = regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]`)

// saved is all tables of both families without comments and counters.
func saved(ns *nstest.NS, fw *Firewall) string {
	out := ""
	for _, f := range families(fw) {
		out += f.command + "\n" + ns.Sh(f.command+"-save")
	}
	return changing.ReplaceAllString(out, "")
}

// foreign is somebody else's rules in all tables we write.
func foreign(ns *nstest.NS, fw *Firewall) {
	for _, f := range families(fw) {
		ns.Sh(strings.ReplaceAll(`
			IPT -t nat -N THEIRS
			IPT -t nat -A THEIRS -p tcp --dport 80 -m comment --comment "they're \"theirs\"" -j RETURN
			IPT -t nat -A POSTROUTING -j THEIRS
			IPT -N MINE-NOT-LENO-
			IPT -A FORWARD -i eth7 -j MINE-NOT-LENO-
			IPT -A FORWARD -i eth8 -j DROP
			IPT -P FORWARD DROP`, "IPT", f.command))
	}
}

func TestApply(t *testing.T) {
	variants(t, func(t *testing.T, ns *nstest.NS, fw *Firewall) {
		foreign(ns, fw)
		before := saved(ns, fw)

		apply(t, ns, fw, nil, 0)
		if diff := cmp.Diff(before, saved(ns, fw)); diff != "" {
			t.Errorf("wanting nothing changed something:\n%s", diff)
		}
		apply(t, ns, fw, two(), 4)
		apply(t, ns, fw, two(), 0)
		// The next process finds what this one left.
		apply(t, ns, firewallOf(strings.TrimPrefix(families(fw)[0].command, "iptables-")), two(), 0)

		full := saved(ns, fw)
		for _, want := range []string{
			"-A FORWARD -j LENO-FORWARD\n-A FORWARD -i eth7 -j MINE-NOT-LENO-\n-A FORWARD -i eth8 -j DROP\n",
			"-A POSTROUTING -j THEIRS\n-A POSTROUTING -j LENO-POSTROUTING\n",
			`-A LENO-POSTROUTING -s 10.5.34.0/24 -d 10.5.0.0/16 -m comment --comment "leno default" -j RETURN
-A LENO-POSTROUTING -s 10.5.34.0/24 -d 224.0.0.0/4 -m comment --comment "leno default" -j RETURN
-A LENO-POSTROUTING -s 10.5.34.0/24 -m comment --comment "leno default" -j MASQUERADE --random-fully
`,
			`-A LENO-FORWARD -s fd00:5::/48 -m comment --comment "leno default" -j ACCEPT` + "\n",
		} {
			if !strings.Contains(full, want) {
				t.Errorf("missing:\n%s\nin\n%s", want, full)
			}
		}

		one := two()
		one[0].IPMasq = false
		apply(t, ns, fw, one, 2) // nat of both families; IPv6 has no masquerading left
		if got := saved(ns, fw); strings.Contains(got, "10.5.34.0/24") || !strings.Contains(got, "10.6.1.0/24") || strings.Contains(got, "fd00:5:0:22::/64") {
			t.Errorf("a change left\n%s", got)
		}
		apply(t, ns, fw, two(), 2)
		if diff := cmp.Diff(full, saved(ns, fw)); diff != "" {
			t.Errorf("there and back differs:\n%s", diff)
		}

		apply(t, ns, fw, nil, 4)
		apply(t, ns, fw, nil, 0)
		if diff := cmp.Diff(before, saved(ns, fw)); diff != "" {
			t.Errorf("removal left a difference:\n%s", diff)
		}
	})
}

func TestHeals(t *testing.T) {
	for name, damage := range map[string]struct {
		script string
		writes int
	}{
		"chains flushed":     {"iptables-V -t nat -F LENO-POSTROUTING; iptables-V -F LENO-FORWARD", 2},
		"table flushed":      {"iptables-V -t nat -F", 1},
		"chain deleted":      {"ip6tables-V -D FORWARD -j LENO-FORWARD; ip6tables-V -F LENO-FORWARD; ip6tables-V -X LENO-FORWARD", 1},
		"jump doubled":       {"iptables-V -A FORWARD -j LENO-FORWARD; iptables-V -A OUTPUT -j LENO-FORWARD", 1},
		"rule added":         {"iptables-V -I LENO-FORWARD -s 10.5.3.0/24 -j DROP", 1},
		"old chain left":     {"iptables-V -N LENO-OLD; iptables-V -A LENO-OLD -j LENO-FORWARD; iptables-V -A FORWARD -m comment --comment 'an old one' -j LENO-OLD", 1},
		"all of it together": {"iptables-V -t nat -F; iptables-V -t nat -X; iptables-V -F; iptables-V -X; ip6tables-V -t nat -F; ip6tables-V -F", 4},
	} {
		t.Run(name, func(t *testing.T) {
			variants(t, func(t *testing.T, ns *nstest.NS, fw *Firewall) {
				apply(t, ns, fw, two(), 4)
				want := saved(ns, fw)
				ns.Sh(strings.ReplaceAll(damage.script, "tables-V", strings.TrimPrefix(families(fw)[0].command, "ip")))
				apply(t, ns, fw, two(), damage.writes)
				if diff := cmp.Diff(want, saved(ns, fw)); diff != "" {
					t.Errorf("not healed (-want +got):\n%s", diff)
				}
				apply(t, ns, fw, two(), 0)
			})
		})
	}
}

// A missing program is an error only when it is needed, and keeps nothing else
// from being done.
func TestNotInstalled(t *testing.T) {
	ns, fw := nstest.New(t), New(hclog.NewNullLogger())
	families(fw)[1].command = "ip6tables-is-not-here"
	apply(t, ns, fw, nil, 0)
	apply(t, ns, fw, two()[1:], 2) // IPv4 alone

	ns.Do(func() {
		report, err := fw.Apply(t.Context(), two())
		if !errors.Is(err, ErrNotInstalled) || report.Writes != 2 {
			t.Fatalf("got %+v, %v", report, err)
		}
		for _, want := range []string{"IPv6 firewall: ", "ip6tables-is-not-here", "install the package iptables"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q is missing in %v", want, err)
			}
		}
	})
}

// A failing or half-answering program changes nothing.
func TestBrokenProgram(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script("ipt", "echo 'iptables v1.8.9 (nf_tables)'")
	script("ipt-restore", "echo written >> "+dir+"/log")
	fw := New(hclog.NewNullLogger())
	fw.applier.(*iptables).families = families(fw)[:1]
	families(fw)[0].command = filepath.Join(dir, "ipt")

	script("ipt-save", "echo '*nat'; echo ':POSTROUTING ACCEPT [0:0]'")
	if _, err := fw.Apply(t.Context(), two()); err == nil || !strings.Contains(err.Error(), "ends inside table nat") {
		t.Errorf("output cut short: %v", err)
	}
	script("ipt-save", "echo no rights >&2; exit 4")
	if _, err := fw.Apply(t.Context(), two()); err == nil || !strings.Contains(err.Error(), "exit status 4: no rights") {
		t.Errorf("no rights: %v", err)
	}
	if _, err := fw.Apply(t.Context(), nil); err != nil {
		t.Errorf("nothing wanted: %v", err)
	}
	script("ipt-save", "exec sleep 600")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := fw.Apply(ctx, two()); err == nil {
		t.Error("a cancelled listing is no error")
	}
	if _, err := os.Stat(dir + "/log"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("rules were written: %v", err)
	}
}

// Real connections from a container: its own address to the overlay, the host's
// to the world.
func TestMasquerade(t *testing.T) {
	variants(t, func(t *testing.T, host *nstest.NS, fw *Firewall) {
		container, world := nstest.New(t), nstest.New(t)
		nstest.Join(nstest.Joint{NS: host, Link: "c0", Addrs: []string{"10.5.34.1/24", "fd00:5:0:22::1/64"}},
			nstest.Joint{NS: container, Link: "eth0", Addrs: []string{"10.5.34.2/24", "fd00:5:0:22::2/64"}})
		nstest.Join(nstest.Joint{NS: host, Link: "eth0", Addrs: []string{"192.0.2.34/24", "2001:db8::34/64"}},
			nstest.Joint{NS: world, Link: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8::1/64"}})
		host.Sh(`echo 1 > /proc/sys/net/ipv4/ip_forward
			echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
			ip route add 10.5.99.0/24 via 192.0.2.1
			ip -6 route add fd00:5:0:99::/64 via 2001:db8::1`)
		for _, f := range families(fw) {
			host.Sh(f.command + " -P FORWARD DROP")
		}
		container.Sh(`ip route add default via 10.5.34.1
			ip -6 route add default via fd00:5:0:22::1`)
		// The world's host is another leno host too.
		world.Sh(`ip addr add 10.5.99.2/32 dev lo
			ip -6 addr add fd00:5:0:99::2/128 dev lo
			ip route add 10.5.34.0/24 via 192.0.2.34
			ip -6 route add fd00:5:0:22::/64 via 2001:db8::34`)
		apply(t, host, fw, two(), 4)

		for _, tt := range []struct{ to, from string }{
			{"192.0.2.1", "192.0.2.34"},
			{"2001:db8::1", "2001:db8::34"},
			{"10.5.99.2", "10.5.34.2"},
			{"fd00:5:0:99::2", "fd00:5:0:22::2"},
		} {
			if got := connect(t, container, world, tt.to); got != tt.from {
				t.Errorf("%s saw %s, want %s", tt.to, got, tt.from)
			}
		}
	})
}

// connect opens a TCP connection and returns the address the listener saw.
func connect(t *testing.T, from, to *nstest.NS, addr string) string {
	t.Helper()
	var listener net.Listener
	var err error
	// Sockets belong to the namespace they were made in, also when used outside.
	to.Do(func() { listener, err = net.Listen("tcp", net.JoinHostPort(addr, "0")) })
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var conn net.Conn
	from.Do(func() {
		// With an address and no time limit of its own, Dial stays on this thread.
		conn, err = net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(listener.Addr().String())))
	})
	if err != nil {
		t.Fatalf("connect to %s: %v", addr, err)
	}
	defer conn.Close()
	seen, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Close()
	return seen.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().String()
}
