package firewall

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/firewall/netfilter"
	"github.com/lenonet/leno/internal/testkit/firewalltest"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

func TestMain(m *testing.M) {
	nstest.RunMoreAtOnce()
	m.Run()
}

// harness is one kind of firewall under test: the only one its Firewall knows.
type harness struct {
	kind string
	// only returns a new Firewall that has only this kind.
	only func() *Firewall
	// saved returns all tables of both families, without parts that change by themselves.
	saved func(ns *nstest.NS) string
	// foreign creates rules of another program in all tables we write.
	foreign string
	// drop sets the policy for forwarded packets to DROP, in both families.
	drop string
	// damage maps changes that another program makes to our rules to the number of tables written then.
	damage map[string]damage
	// tables is the number of tables that are written for two(), and again for its removal; changed is the number
	// when only masquerading changes.
	tables, changed int
	// shows lists parts of the output of saved with foreign and two() in place.
	shows []string
}

type damage struct {
	script string
	writes int
}

// kinds returns all kinds.
func kinds() []harness {
	return []harness{iptablesHarness(netfilter.VariantNFT), iptablesHarness(netfilter.VariantLegacy), nftablesHarness()}
}

// variants runs a test with every kind, whichever this host prefers, beside each other.
func variants(t *testing.T, f func(t *testing.T, ns *nstest.NS, h harness)) {
	for _, h := range kinds() {
		t.Run(h.kind, func(t *testing.T) {
			t.Parallel()
			f(t, nstest.New(t), h)
		})
	}
}

// onlyOf returns a Firewall that has one kind.
func onlyOf(a tableWriter) *Firewall {
	fw := New(hclog.NewNullLogger())
	fw.appliers = []tableWriter{a}
	return fw
}

func apply(t *testing.T, ns *nstest.NS, fw *Firewall, networks []Network, writes int) Report {
	t.Helper()
	var report Report
	ns.Do(func() {
		var err error
		report, err = fw.Apply(t.Context(), State{RandomFully: true, Networks: networks})
		if err = errors.Join(err, report.Leftover); err != nil {
			t.Fatal(err)
		}
		if report.Writes != writes {
			t.Errorf("%d writes, want %d", report.Writes, writes)
		}
	})
	return report
}

func TestApply(t *testing.T) {
	t.Parallel()
	variants(t, func(t *testing.T, ns *nstest.NS, h harness) {
		fw := h.only()
		ns.Sh(h.foreign)
		before := h.saved(ns)

		apply(t, ns, h.only(), nil, 0)
		if diff := cmp.Diff(before, h.saved(ns)); diff != "" {
			t.Errorf("wanting nothing changed something:\n%s", diff)
		}
		report := apply(t, ns, fw, two(), h.tables)
		if report.Choice.Kind != h.kind || len(report.Repaired) > 0 {
			t.Errorf("%+v", report)
		}
		apply(t, ns, fw, two(), 0)
		// The next process finds what this one left.
		apply(t, ns, h.only(), two(), 0)

		full := h.saved(ns)
		for _, want := range h.shows {
			if !strings.Contains(full, want) {
				t.Errorf("missing:\n%s\nin\n%s", want, full)
			}
		}

		one := two()
		one[0].IPMasq = false
		apply(t, ns, fw, one, h.changed) // of both families; IPv6 has no masquerading any more
		if got := h.saved(ns); strings.Contains(got, "10.5.34.0/24") || !strings.Contains(got, "10.6.1.0/24") || strings.Contains(got, "fd00:5:0:22::/64") {
			t.Errorf("a change left\n%s", got)
		}
		apply(t, ns, fw, two(), h.changed)
		if diff := cmp.Diff(full, h.saved(ns)); diff != "" {
			t.Errorf("there and back differs:\n%s", diff)
		}

		apply(t, ns, fw, nil, h.tables)
		apply(t, ns, fw, nil, 0)
		if diff := cmp.Diff(before, h.saved(ns)); diff != "" {
			t.Errorf("removal left a difference:\n%s", diff)
		}
	})
}

func TestHeals(t *testing.T) {
	t.Parallel()
	for _, h := range kinds() {
		for name, damage := range h.damage {
			t.Run(h.kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				ns, fw := nstest.New(t), h.only()
				ns.Sh(h.foreign)
				apply(t, ns, fw, two(), h.tables)
				want := h.saved(ns)
				ns.Sh(damage.script)
				report := apply(t, ns, fw, two(), damage.writes)
				if diff := cmp.Diff(want, h.saved(ns)); diff != "" {
					t.Errorf("not repaired (-want +got):\n%s", diff)
				}
				if len(report.Repaired) != damage.writes {
					t.Errorf("it says that it repaired %q", report.Repaired)
				}
				apply(t, ns, fw, two(), 0)
			})
		}
	}
}

// lane is a container, its host, and the world beyond, which contains another host of the overlay.
type lane struct{ container, host, world *nstest.NS }

func newLane(t testing.TB) lane {
	l := lane{nstest.New(t), nstest.New(t), nstest.New(t)}
	nstest.Join(nstest.Joint{NS: l.host, Link: "c0", Addrs: []string{"10.5.34.1/24", "fd00:5:0:22::1/64"}},
		nstest.Joint{NS: l.container, Link: "eth0", Addrs: []string{"10.5.34.2/24", "fd00:5:0:22::2/64"}})
	nstest.Join(nstest.Joint{NS: l.host, Link: "eth0", Addrs: []string{"192.0.2.34/24", "2001:db8::34/64"}},
		nstest.Joint{NS: l.world, Link: "eth0", Addrs: []string{"192.0.2.1/24", "2001:db8::1/64"}})
	l.host.Sh(`echo 1 > /proc/sys/net/ipv4/ip_forward
		echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
		ip route add 10.5.99.0/24 via 192.0.2.1
		ip -6 route add fd00:5:0:99::/64 via 2001:db8::1`)
	l.container.Sh(`ip route add default via 10.5.34.1
		ip -6 route add default via fd00:5:0:22::1`)
	l.world.Sh(`ip addr add 10.5.99.2/32 dev lo
		ip -6 addr add fd00:5:0:99::2/128 dev lo nodad
		ip route add 10.5.34.0/24 via 192.0.2.34
		ip -6 route add fd00:5:0:22::/64 via 2001:db8::34`)
	return l
}

// TestMasquerade makes real connections from a container: the overlay sees its own address, the world the host's.
func TestMasquerade(t *testing.T) {
	t.Parallel()
	variants(t, func(t *testing.T, _ *nstest.NS, h harness) {
		l := newLane(t)
		l.host.Sh(h.drop)
		apply(t, l.host, h.only(), two(), h.tables)
		for _, tt := range []struct{ to, from string }{
			{"192.0.2.1", "192.0.2.34"},
			{"2001:db8::1", "2001:db8::34"},
			{"10.5.99.2", "10.5.34.2"},
			{"fd00:5:0:99::2", "fd00:5:0:22::2"},
		} {
			if got := connect(t, l.container, l.world, tt.to, 0); got != tt.from {
				t.Errorf("%s saw %s, want %s", tt.to, got, tt.from)
			}
		}
	})
}

// connect opens a TCP connection and returns the address the listener saw. Port 0
// is any.
func connect(t *testing.T, from, to *nstest.NS, addr string, port int) string {
	t.Helper()
	var listener net.Listener
	var err error
	// A socket belongs to the namespace it was made in, even when it is used outside.
	to.Do(func() { listener, err = net.Listen("tcp", net.JoinHostPort(addr, strconv.Itoa(port))) })
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

// While the programs are broken for a moment, as during a package's upgrade, the rules stay in the tables where they
// are.
func TestBrokenForAMoment(t *testing.T) {
	ns, s, fw := nstest.New(t), firewalltest.NewPrograms(t), New(hclog.NewNullLogger())
	s.Prefer(netfilter.VariantNFT)
	apply(t, ns, fw, two(), 4)
	h := iptablesHarness(netfilter.VariantNFT)
	want := h.saved(ns)
	for _, does := range []string{"echo garbage", "exit 1", "kill -9 $$"} {
		for _, command := range []string{"iptables", "iptables-save", "iptables-nft", "iptables-nft-save", "ip6tables", "ip6tables-save", "ip6tables-nft", "ip6tables-nft-save"} {
			s.Script(command, does)
		}
		for range 2 {
			ns.Do(func() {
				report, err := fw.Apply(t.Context(), State{RandomFully: true, Networks: two()})
				if err == nil || !strings.Contains(err.Error(), "iptables-nft holds the rules and does not work now") || report.Choice.Kind != h.kind {
					t.Errorf("%s: %+v, %v", does, report, err)
				}
			})
		}
	}
	for _, command := range []string{"iptables-nft", "iptables-nft-save", "ip6tables-nft", "ip6tables-nft-save"} {
		if err := os.Remove(filepath.Join(s.Dir, command)); err != nil {
			t.Fatal(err)
		}
	}
	s.Prefer(netfilter.VariantNFT)
	if diff := cmp.Diff(want, h.saved(ns)); diff != "" {
		t.Errorf("the rules moved (-want +got):\n%s", diff)
	}
	apply(t, ns, fw, two(), 0)
	if tables := ns.Sh("nft list tables"); strings.Contains(tables, nftTableName) {
		t.Errorf("nftables holds rules too:\n%s", tables)
	}
}
