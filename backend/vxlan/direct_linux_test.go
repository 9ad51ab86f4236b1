package vxlan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// site is three hosts with a container network each: one and two on a switch,
// three behind the router the switch is in.
//
//	one 192.0.2.1 ─┐
//	two 192.0.2.2 ─┴─ router 192.0.2.254, 198.51.100.254 ── 198.51.100.3 three
type site struct {
	t      *testing.T
	router *nstest.NS
	hosts  []*siteHost
}

type siteHost struct {
	site   *site
	number int
	ns     *nstest.NS
	b      *vxlan
	addrs  []netip.Addr // between hosts
}

func newSite(t *testing.T, options string) *site {
	t.Helper()
	s := &site{t: t, router: nstest.New(t)}
	s.router.Sh(`sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
		ip link add near address 02:00:00:00:00:01 type bridge mcast_snooping 0; ip link set near up
		ip link add far address 02:00:00:00:00:02 type bridge mcast_snooping 0; ip link set far up
		ip addr add 192.0.2.254/24 dev near; ip addr add 2001:db8:2::fe/64 dev near nodad
		ip addr add 198.51.100.254/24 dev far; ip addr add 2001:db8:3::fe/64 dev far nodad`)
	for i := range 3 {
		h := &siteHost{site: s, number: i + 1, ns: nstest.New(t)}
		port := fmt.Sprintf("port%d", h.number)
		nstest.Join(nstest.Joint{NS: h.ns, Link: "eth0"}, nstest.Joint{NS: s.router, Link: port})
		h.ns.Sh(fmt.Sprintf(`sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=2
			ip link add br0 type bridge; ip link set br0 up
			ip addr add 10.5.%[1]d.1/24 dev br0; ip addr add fd00:5:0:%[1]d::1/64 dev br0 nodad`, h.number))
		h.stand(map[bool]string{true: "near", false: "far"}[h.number < 3])
		h.b = s.open(options)
		h.b.devices[0].mac[5] = byte(h.number)
		h.b.devices[1].mac = h.b.devices[0].mac
		s.hosts = append(s.hosts, h)
	}
	return s
}

func (s *site) open(options string) *vxlan {
	s.t.Helper()
	full, err := Type().Normalize(json.RawMessage(options))
	if err != nil {
		s.t.Fatal(err)
	}
	b, err := Type().New(backend.Config{Network: "test", Link: "leno-test", Pools: pools, Options: full})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = b.Close() })
	return b.(*vxlan)
}

// stand connects the host to one of the networks, with the addresses and routes it has there.
func (h *siteHost) stand(network string) {
	h.site.t.Helper()
	v4, v6 := "192.0.2.", "2001:db8:2::"
	if network == "far" {
		v4, v6 = "198.51.100.", "2001:db8:3::"
	}
	h.site.router.Sh(fmt.Sprintf("ip link set port%d master %s", h.number, network))
	h.ns.Sh(fmt.Sprintf(`ip addr flush dev eth0 scope global
		ip addr add %[1]s%[3]d/24 dev eth0; ip addr add %[2]s%[3]d/64 dev eth0 nodad
		ip route replace default via %[1]s254; ip -6 route replace default via %[2]sfe dev eth0`, v4, v6, h.number))
	h.addrs = []netip.Addr{netip.MustParseAddr(v4 + strconv.Itoa(h.number)), netip.MustParseAddr(v6 + strconv.Itoa(h.number))}
}

// state returns the host's state, with the two others as peers.
func (h *siteHost) state() backend.State {
	s := backend.State{Subnets: subnetsOf(h.number), Underlay: backend.Underlay{Interface: "eth0", Index: h.ns.Index("eth0"), MTU: 1500, Addrs: h.addrs}}
	for _, p := range h.site.hosts {
		if p != h {
			s.Peers = append(s.Peers, backend.Peer{
				Node: fmt.Sprint("host-", p.number), Subnets: subnetsOf(p.number), PublicIPs: p.addrs, Backend: Name,
				Attributes: json.RawMessage(fmt.Sprintf(`{"vni":1,"port":8472,"vtep_mac":%q}`, p.b.devices[0].mac)),
			})
		}
	}
	return s
}

func subnetsOf(n int) []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", n)), netip.MustParsePrefix(fmt.Sprintf("fd00:5:0:%d::/64", n))}
}

func (s *site) apply() {
	s.t.Helper()
	for _, h := range s.hosts {
		host{s.t, h.ns}.apply(h.b, h.state())
	}
}

// tunnelled returns how many packets the host has sent into its tunnel.
func (h *siteHost) tunnelled() int {
	h.site.t.Helper()
	return h.sent("leno-test")
}

// ways pings between all containers in both families and returns which pairs used the tunnel: "12
// direct 13 tunnel 23 tunnel".
func (s *site) ways() string {
	s.t.Helper()
	var out []string
	for i, a := range s.hosts {
		for _, b := range s.hosts[i+1:] {
			way := ""
			for _, pair := range [][2]string{
				{fmt.Sprintf("10.5.%d.1", a.number), fmt.Sprintf("10.5.%d.1", b.number)},
				{fmt.Sprintf("fd00:5:0:%d::1", a.number), fmt.Sprintf("fd00:5:0:%d::1", b.number)},
			} {
				before := [2]int{a.tunnelled(), b.tunnelled()}
				got := "lost"
				for range 5 { // neighbours may have to be resolved first
					before = [2]int{a.tunnelled(), b.tunnelled()}
					// The kernel sends few packets of its own: reports about groups.
					const packets = 10
					if _, err := a.ns.Try(fmt.Sprintf("ping -n -c %d -i 0.01 -w 60 -M do -s 1300 -I %s %s", packets, pair[0], pair[1])); err == nil {
						got = map[[2]bool]string{{false, false}: "direct", {true, true}: "tunnel"}[[2]bool{
							a.tunnelled()-before[0] >= packets, b.tunnelled()-before[1] >= packets}]
						break
					}
				}
				if way != "" && way != got {
					got = way + "/" + got
				}
				way = got
			}
			out = append(out, fmt.Sprintf("%d%d %s", a.number, b.number, way))
		}
	}
	return strings.Join(out, " ")
}

// TestDirectRoutingFollowsWhoMoves checks that peers on the same layer 2 are reached without the
// tunnel, others through it. Both follow when a host moves, or when only its routes do.
func TestDirectRoutingFollowsWhoMoves(t *testing.T) {
	t.Parallel()
	s := newSite(t, `{"direct_routing":true}`)
	expect := func(what, want string) {
		t.Helper()
		s.apply()
		if got := s.ways(); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
		for _, h := range s.hosts {
			if r := (host{t, h.ns}).apply(h.b, h.state()); r.Writes != 0 || r.Peers != 2 {
				t.Errorf("%s: host %d: second apply: %+v", what, h.number, r)
			}
		}
	}
	one, two, three := s.hosts[0], s.hosts[1], s.hosts[2]
	expect("at first", "12 direct 13 tunnel 23 tunnel")
	// Containers keep the tunnel's MTU, because the set of direct peers may change.
	if got := one.ns.Sh("ip -o link show leno-test"); !strings.Contains(got, "mtu 1450") {
		t.Errorf("device %s", got)
	}
	three.stand("near")
	expect("all on one network", "12 direct 13 direct 23 direct")
	two.stand("far")
	expect("two behind the router", "12 tunnel 13 direct 23 tunnel")
	one.stand("far")
	expect("one behind it, too", "12 direct 13 tunnel 23 tunnel")
	// The addresses stay, but routes lead elsewhere.
	one.ns.Sh("ip route add 198.51.100.2/32 via 198.51.100.254; ip -6 route add 2001:db8:3::2/128 via 2001:db8:3::fe")
	two.ns.Sh("ip route add 198.51.100.1/32 via 198.51.100.254; ip -6 route add 2001:db8:3::1/128 via 2001:db8:3::fe")
	expect("a gateway to a neighbour", "12 tunnel 13 tunnel 23 tunnel")
	one.ns.Sh("ip route del 198.51.100.2/32; ip -6 route del 2001:db8:3::2/128")
	two.ns.Sh("ip route del 198.51.100.1/32; ip -6 route del 2001:db8:3::1/128")
	expect("without it", "12 direct 13 tunnel 23 tunnel")
}

// TestDirectRoutingSwitchedUnderTraffic checks that switching the option loses no packet where
// rp_filter is loose: for a moment one host sends directly what the other expects through the
// tunnel.
func TestDirectRoutingSwitchedUnderTraffic(t *testing.T) {
	t.Parallel()
	s := newSite(t, `{}`)
	s.apply()
	if got := s.ways(); got != "12 tunnel 13 tunnel 23 tunnel" {
		t.Fatal(got)
	}
	s.switchTo(`{"direct_routing":true}`)
	if got := s.ways(); got != "12 direct 13 tunnel 23 tunnel" {
		t.Fatal(got)
	}
	var wg sync.WaitGroup
	lost := make([]int, 2)
	done := make(chan struct{})
	for i, command := range []string{"ping -n -i 0.005 -c 600 -W 20 -q -I 10.5.1.1 10.5.2.1", "ping -n -i 0.005 -c 600 -W 20 -q -I fd00:5:0:1::1 fd00:5:0:2::1"} {
		wg.Go(func() {
			out, _ := s.hosts[0].ns.Try(command) // it fails when one is lost
			m := regexp.MustCompile(`(\d+) packets transmitted, (\d+) received`).FindStringSubmatch(out)
			if m == nil {
				t.Errorf("%s: %s", command, out)
				return
			}
			sent, _ := strconv.Atoi(m[1])
			received, _ := strconv.Atoi(m[2])
			lost[i] = sent - received
		})
	}
	go func() { wg.Wait(); close(done) }()
	switches := 0
	for flowing := true; flowing; switches++ {
		s.switchTo(fmt.Sprintf(`{"direct_routing":%t}`, switches%2 == 1))
		select {
		case <-done:
			flowing = false
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Logf("%d switches, lost %v", switches, lost)
	if lost[0] != 0 {
		t.Errorf("%d of 600 IPv4 packets were lost in %d switches", lost[0], switches)
	}
	if lost[1] != 0 {
		t.Errorf("%d of 600 IPv6 packets were lost in %d switches", lost[1], switches)
	}
}

// TestDirectRoutingSwitchedWithoutGap checks that the routes to peers are replaced in place, in
// both families and in both directions. The kernel announces each deletion of a route.
func TestDirectRoutingSwitchedWithoutGap(t *testing.T) {
	t.Parallel()
	s := newSite(t, `{}`)
	s.apply()
	one := s.hosts[0]
	for i, options := range []string{`{"direct_routing":true}`, `{}`, `{"direct_routing":true}`} {
		var events *nl.NetlinkSocket
		one.ns.Do(func() {
			var err error
			if events, err = kernel.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE); err != nil {
				t.Fatal(err)
			}
		})
		one.b = s.open(options)
		host{t, one.ns}.apply(one.b, one.state())
		end := fmt.Sprintf("2001:db8:ffff:%d::/64", i+1)
		one.ns.Sh("ip -6 route add unreachable " + end)
		var deleted []string
		changed := map[string]bool{}
		for !changed[end] {
			messages, _, err := events.Receive()
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range messages {
				if dst := destination(t, m); m.Header.Type == unix.RTM_DELROUTE {
					deleted = append(deleted, dst)
				} else {
					changed[dst] = true
				}
			}
		}
		events.Close()
		for _, p := range subnetsOf(2) {
			if !changed[p.String()] || slices.Contains(deleted, p.String()) {
				t.Errorf("%s: route to %s changed: %t; deleted: %v", options, p, changed[p.String()], deleted)
			}
		}
		for _, p := range subnetsOf(3) { // never direct
			if changed[p.String()] || slices.Contains(deleted, p.String()) {
				t.Errorf("%s: route to %s changed", options, p)
			}
		}
		if got := one.ns.Sh("ip -6 route show proto 108 dev leno-test"); strings.Contains(got, ":: dev") || strings.Contains(got, "/128") {
			t.Errorf("%s: left behind:\n%s", options, got)
		}
	}
}

// destination returns the destination of the route in a message.
func destination(t *testing.T, m syscall.NetlinkMessage) string {
	t.Helper()
	attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range attrs {
		if addr, ok := netip.AddrFromSlice(a.Value); ok && a.Attr.Type == unix.RTA_DST {
			return netip.PrefixFrom(addr, int(m.Data[1])).String()
		}
	}
	return ""
}

// switchTo changes the option one host after the other, as when hosts read the change.
func (s *site) switchTo(options string) {
	s.t.Helper()
	for _, h := range s.hosts {
		h.b = s.open(options)
		host{s.t, h.ns}.apply(h.b, h.state())
	}
}
