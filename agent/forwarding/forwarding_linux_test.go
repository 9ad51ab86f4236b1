package forwarding

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

func TestMain(m *testing.M) {
	nstest.RunMoreAtOnce()
	m.Run()
}

// TestEnsure checks that Ensure sets what was requested, and leaves IPv6 alone where that would cost the host a route
// or an address from a router.
func TestEnsure(t *testing.T) {
	t.Parallel()
	v4, v6 := netip.MustParsePrefix("10.5.1.0/24"), netip.MustParsePrefix("fd00:5::/64")
	const (
		switch4 = "net.ipv4.ip_forward"
		switch6 = "net.ipv6.conf.all.forwarding"
	)
	for _, tt := range []struct {
		name, script string
		addr         netip.Prefix
		ask          bool
		want         State
		after        string // of all switches
	}{
		{"off, not asked for", "", v4, false, State{Off: []string{switch4, "net.ipv4.conf.leno-n.forwarding"}}, "0 0 0"},
		{"off, asked for", "", v4, true, State{Set: []string{switch4}}, "1 1 0"},
		{"on", "sysctl -w net.ipv4.ip_forward=1", v4, true, State{}, "1 1 0"},
		{"off for our device alone", "sysctl -w net.ipv4.ip_forward=1 net.ipv4.conf.leno-n.forwarding=0", v4, true,
			State{Set: []string{"net.ipv4.conf.leno-n.forwarding"}}, "1 1 0"},
		{"IPv6 off, not asked for", "", v6, false, State{Off: []string{switch6}}, "0 0 0"},
		{"IPv6 off, asked for", "", v6, true, State{Set: []string{switch6}}, "0 0 1"},
		{"IPv6 off, and a route from an advertisement", "ip -6 route add default via fe80::1 dev eth0 proto ra", v6, true,
			State{Off: []string{switch6}, Advertised: []string{"eth0"}}, "0 0 0"},
		{"the same where advertisements are accepted by routers, too",
			"ip -6 route add default via fe80::1 dev eth0 proto ra; sysctl -w net.ipv6.conf.eth0.accept_ra=2", v6, true,
			State{Set: []string{switch6}}, "0 0 1"},
		{"the same where a program reads them",
			"ip -6 route add default via fe80::1 dev eth0 proto ra; sysctl -w net.ipv6.conf.eth0.accept_ra=0", v6, true,
			State{Set: []string{switch6}}, "0 0 1"},
		{"the same, not asked for", "ip -6 route add default via fe80::1 dev eth0 proto ra", v6, false,
			State{Off: []string{switch6}, Advertised: []string{"eth0"}}, "0 0 0"},
		{"IPv6 off, and an address from an advertisement", "ip addr add 2001:db8::5/64 dev eth0 valid_lft 1000 preferred_lft 1000 mngtmpaddr", v6, true,
			State{Off: []string{switch6}, Advertised: []string{"eth0"}}, "0 0 0"},
		{"IPv6 on, and a route from an advertisement",
			"sysctl -w net.ipv6.conf.all.forwarding=1; ip -6 route add default via fe80::1 dev eth0 proto ra", v6, true,
			State{Advertised: []string{"eth0"}}, "0 0 1"},
		{"IPv6 on, and an address from an advertisement",
			"sysctl -w net.ipv6.conf.all.forwarding=1; ip addr add 2001:db8::5/64 dev eth0 valid_lft 1000 preferred_lft 1000 mngtmpaddr", v6, false,
			State{Advertised: []string{"eth0"}}, "0 0 1"},
		{"IPv6 on, but not for the device of the route",
			"sysctl -w net.ipv6.conf.all.forwarding=1 net.ipv6.conf.eth0.forwarding=0; ip -6 route add default via fe80::1 dev eth0 proto ra", v6, true,
			State{}, "0 0 1"},
		{"IPv6 on, and an address of one's own", "sysctl -w net.ipv6.conf.all.forwarding=1; ip addr add 2001:db8::5/64 dev eth0", v6, true, State{}, "0 0 1"},
		{"routes of two interfaces", `ip -6 route add 2001:db8:7::/48 proto ra nexthop via fe80::1 dev eth0 nexthop via fe80::2 dev eth1
			ip -6 route add default via fe80::1 dev eth0 proto ra`, v6, true,
			State{Off: []string{switch6}, Advertised: []string{"eth0", "eth1"}}, "0 0 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			for _, link := range []string{"eth0", "eth1", "leno-n"} {
				ns.Sh("ip link add " + link + " type bridge; ip link set " + link + " up")
			}
			ns.Sh("sysctl -w net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0")
			if tt.script != "" {
				ns.Sh(tt.script)
			}
			ns.Do(func() {
				got, err := new(Switch).Ensure(tt.addr, []string{"leno-n"}, tt.ask)
				if err != nil || fmt.Sprint(got) != fmt.Sprint(tt.want) {
					t.Errorf("%+v, want %+v: %v", got, tt.want, err)
				}
			})
			after := ns.Sh("sysctl -n net.ipv4.ip_forward net.ipv4.conf.leno-n.forwarding net.ipv6.conf.all.forwarding")
			if after := strings.Join(strings.Fields(after), " "); after != tt.after {
				t.Errorf("the switches are %s, want %s", after, tt.after)
			}
		})
	}
}

// TestRestore checks that Restore switches off what Ensure switched on, and nothing else.
func TestRestore(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ before, during, want string }{
		"was off":                    {"net.ipv4.ip_forward=0", "", "0"},
		"was on":                     {"net.ipv4.ip_forward=1", "", "1"},
		"changed by another program": {"net.ipv4.ip_forward=0", "net.ipv4.ip_forward=2", "2"},
		"switched off in between":    {"net.ipv4.ip_forward=0", "net.ipv4.ip_forward=0", "0"},
	} {
		ns := nstest.New(t)
		ns.Sh("ip link add leno-n type bridge; sysctl -w " + tt.before)
		var w Switch
		ns.Do(func() {
			if _, err := w.Ensure(netip.MustParsePrefix("10.5.1.0/24"), []string{"leno-n"}, true); err != nil {
				t.Error(err)
			}
		})
		ns.Sh("ip link del leno-n")
		if tt.during != "" {
			ns.Sh("sysctl -w " + tt.during)
		}
		ns.Do(func() {
			if err := w.Restore(); err != nil {
				t.Error(err)
			}
		})
		if got := strings.TrimSpace(ns.Sh("sysctl -n net.ipv4.ip_forward")); got != tt.want {
			t.Errorf("%s: ip_forward is %s, want %s", name, got, tt.want)
		}
	}
}

// TestRestoreAfterAKill checks that a process restores what one before it switched on in the same network namespace.
func TestRestoreAfterAKill(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "forwarding")
	killed, other := nstest.New(t), nstest.New(t)
	killed.Sh("sysctl -w net.ipv4.ip_forward=0")
	other.Sh("sysctl -w net.ipv4.ip_forward=1")
	ensure := func(w *Switch) {
		if _, err := w.Ensure(netip.MustParsePrefix("10.5.1.0/24"), nil, true); err != nil {
			t.Error(err)
		}
	}
	killed.Do(func() { ensure(&Switch{Path: path}) })
	for ns, want := range map[*nstest.NS]string{killed: "0", other: "1"} {
		ns.Do(func() {
			next := &Switch{Path: path}
			ensure(next)
			if err := next.Restore(); err != nil {
				t.Error(err)
			}
		})
		if got := strings.TrimSpace(ns.Sh("sysctl -n net.ipv4.ip_forward")); got != want {
			t.Errorf("ip_forward is %s, want %s", got, want)
		}
	}
}

// TestRouterIsIgnored checks the case that another program switches forwarding on, and the kernel drops the route
// that it learnt. A process must notice that, even one that starts afterwards, until accept_ra is 2 and the route is
// back.
func TestRouterIsIgnored(t *testing.T) {
	t.Parallel()
	v6 := netip.MustParsePrefix("fd00:5::/64")
	host, router := nstest.New(t), nstest.New(t)
	nstest.Join(nstest.Joint{NS: host, Link: "eth0"}, nstest.Joint{NS: router, Link: "eth0"})
	host.Sh("sysctl -w net.ipv6.conf.all.forwarding=0 net.ipv6.conf.eth0.accept_ra=1")
	route := func() bool { return host.Sh("ip -6 route show default proto ra") != "" }
	learn := func(prefix netip.Prefix) {
		t.Helper()
		learned := func() bool {
			return route() && (!prefix.IsValid() || strings.Contains(host.Sh("ip -6 addr show dev eth0 scope global"), "mngtmpaddr"))
		}
		for deadline := time.Now().Add(time.Minute); !learned(); time.Sleep(time.Millisecond) {
			var err error // until the router has an address
			router.Do(func() { err = nstest.Advertise("eth0", time.Hour, prefix) })
			if time.Now().After(deadline) {
				t.Fatalf("the host learns nothing from the router: %v", err)
			}
		}
	}
	check := func(when string, w *Switch, ask bool, want string) {
		t.Helper()
		host.Do(func() {
			got, err := w.Ensure(v6, nil, ask)
			if reason := got.Reason(ask); err != nil || (reason == "") != (want == "") || !strings.Contains(reason, want) {
				t.Errorf("%s: %q (%+v), want %q: %v", when, reason, got, want, err)
			}
		})
	}
	const would, has = "would take away the routes that routers advertise on eth0", "it has lost the routes that it had from them"

	w := new(Switch)
	check("without a router", w, false, "net.ipv6.conf.all.forwarding is 0: containers")
	learn(netip.Prefix{})
	for range 2 {
		check("with a route", w, true, would)
	}
	host.Sh("sysctl -w net.ipv6.conf.all.forwarding=1")
	if route() {
		t.Fatal("the kernel keeps the route: this tests nothing")
	}
	for range 2 {
		check("without the route", w, true, has)
	}
	host.Sh("sysctl -w net.ipv6.conf.all.forwarding=0")
	learn(netip.MustParsePrefix("2001:db8:7::/64"))
	host.Sh("sysctl -w net.ipv6.conf.all.forwarding=1")
	check("in another process", new(Switch), true, has)
	host.Sh("sysctl -w net.ipv6.conf.eth0.accept_ra=2")
	learn(netip.Prefix{})
	check("with accept_ra=2", w, true, "")
	check("with accept_ra=2, in another process", new(Switch), true, "")

	host.Sh("sysctl -w net.ipv6.conf.all.forwarding=0")
	check("from the start with accept_ra=2", w, true, "")
	if got := host.Sh("sysctl -n net.ipv6.conf.all.forwarding"); got != "1\n" || !route() {
		t.Errorf("forwarding is %q, and the route is there: %t", got, route())
	}
}

// TestForwardingOfTheBridge checks that the switch of the bridge with an address in the subnet is reported and left to the
// program that made the bridge, and that the network's own device and other bridges do not count.
func TestForwardingOfTheBridge(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	for _, link := range []string{"leno-n", "br0", "br1"} {
		ns.Sh("ip link add " + link + " type bridge")
	}
	ns.Sh("ip addr add 10.5.1.0/32 dev leno-n; ip addr add 10.5.1.1/24 dev br0; ip addr add 10.6.1.1/24 dev br1; sysctl -w net.ipv4.ip_forward=1")
	for _, tt := range []struct{ script, off, wrong string }{
		{"true", "[]", ""},
		{"sysctl -w net.ipv4.conf.br0.forwarding=0 net.ipv4.conf.br1.forwarding=0", "[net.ipv4.conf.br0.forwarding]",
			"net.ipv4.conf.br0.forwarding is 0: containers cannot reach other hosts until it is 1"},
		{"sysctl -w net.ipv4.conf.br0.forwarding=1", "[]", ""},
	} {
		ns.Sh(tt.script)
		ns.Do(func() {
			got, err := new(Switch).Ensure(netip.MustParsePrefix("10.5.1.0/24"), []string{"leno-n"}, true)
			if err != nil || fmt.Sprint(got.Off) != tt.off || len(got.Set) != 0 || got.Reason(true) != tt.wrong {
				t.Errorf("%s: %+v, %q, %v", tt.script, got, got.Reason(true), err)
			}
		})
	}
}

// TestForwardingOfTheUnderlay checks the case that packets also arrive by the underlay's device. Its switch then
// counts as well as that of the network's own device, which may not exist.
func TestForwardingOfTheUnderlay(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	for _, link := range []string{"eth0", "leno-n"} {
		ns.Sh("ip link add " + link + " type bridge; sysctl -w net.ipv4.ip_forward=1 net.ipv4.conf.eth0.forwarding=0")
		ns.Do(func() {
			got, err := new(Switch).Ensure(netip.MustParsePrefix("10.5.1.0/24"), []string{"leno-n", "eth0"}, false)
			if err != nil || fmt.Sprint(got.Off) != "[net.ipv4.conf.eth0.forwarding]" {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}
