package wireguard

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// TestPathLook checks when a path counts as failed.
func TestPathLook(t *testing.T) {
	type look struct {
		after  time.Duration
		rx, tx int64
		failed bool
	}
	const second = time.Second
	keepalives := []look{{0, 0, 0, false}}
	for range 20 {
		last := keepalives[len(keepalives)-1]
		keepalives = append(keepalives, look{20 * second, 0, last.tx + 32, false})
	}
	for name, looks := range map[string][]look{
		"keepalives":            keepalives,
		"keepalives and data":   {{0, 0, 0, false}, {20 * second, 0, 180, false}, {20 * second, 0, 360, true}},
		"idle":                  {{0, 5, 5, false}, {time.Minute, 5, 5, false}, {time.Minute, 5, 5, false}},
		"answered":              {{0, 5, 5, false}, {20 * time.Second, 6, 6, false}, {20 * time.Second, 7, 7, false}, {20 * time.Second, 8, 8, false}},
		"no answer":             {{0, 0, 0, false}, {7 * time.Second, 0, 1, false}, {7 * time.Second, 0, 2, false}, {8 * time.Second, 0, 3, true}, {8 * time.Second, 0, 4, false}},
		"answered late":         {{0, 0, 0, false}, {7 * time.Second, 0, 1, false}, {7 * time.Second, 0, 2, false}, {8 * time.Second, 9, 3, false}},
		"looked at often":       {{0, 0, 0, false}, {7 * time.Second, 0, 1, false}, {time.Second, 0, 1, false}, {6 * time.Second, 0, 2, false}, {time.Second, 0, 2, false}, {7 * time.Second, 0, 3, true}},
		"nothing sent meantime": {{0, 0, 0, false}, {7 * time.Second, 0, 1, false}, {time.Hour, 0, 1, false}, {20 * time.Second, 0, 2, false}},
		"counters start again":  {{0, 9, 9, false}, {20 * time.Second, 0, 1, false}, {20 * time.Second, 0, 2, false}, {20 * time.Second, 0, 3, true}},
	} {
		p, now := &path{}, time.Now()
		keepalive := time.Duration(0)
		if strings.Contains(name, "keepalive") {
			keepalive = 25 * time.Second
		}
		for i, l := range looks {
			now = now.Add(l.after)
			if got := p.look(now, l.rx, l.tx, keepalive); got != l.failed {
				t.Errorf("%s, look %d: failed %t", name, i, got)
			}
		}
	}
}

// nat is hosts 1 and 2 behind a router that translates their addresses to 203.0.113.1, and host 3 outside. Host 2 is
// reached at the port 51830 of the router.
type nat struct {
	router  *nstest.NS
	a, b, c *host
}

const (
	masquerade = `nft 'add table ip nat; add chain ip nat out { type nat hook postrouting priority 100; }; add chain ip nat in { type nat hook prerouting priority -100; }'
nft add rule ip nat out oifname wan masquerade`
	forwards = `nft add rule ip nat in ip daddr 203.0.113.1 udp dport 51820 dnat to 192.168.7.1:51820
nft add rule ip nat in ip daddr 203.0.113.1 udp dport 51830 dnat to 192.168.7.2:51820
nft add rule ip nat out ip saddr 192.168.7.0/24 ip daddr 192.168.7.0/24 masquerade` // packets that return to the LAN
)

func newNAT(t *testing.T, kind backend.Type, rules string) *nat {
	t.Helper()
	n := &nat{router: nstest.New(t)}
	n.router.Sh(`ip link add lan type bridge; ip addr add 192.168.7.254/24 dev lan; ip link set lan up; sysctl -qw net.ipv4.ip_forward=1
[ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ] || sysctl -qw net.bridge.bridge-nf-call-iptables=0`)
	for i, h := range []**host{&n.a, &n.b, &n.c} {
		number := i + 1
		own, public, gateway, port := fmt.Sprintf("192.168.7.%d", number), "203.0.113.1", "192.168.7.254", fmt.Sprint("lan", number)
		if number == 3 {
			own, public, gateway, port = "203.0.113.3", "203.0.113.3", "", "wan"
		}
		made := &host{t: t, kind: kind, n: number, ns: nstest.New(t), dir: t.TempDir()}
		made.ns.Sh(fmt.Sprintf("ip link add br0 type bridge; ip link set br0 up; ip addr add 10.5.%[1]d.1/24 dev br0; ip addr add fd00:5:0:%[1]d::1/64 dev br0", number))
		nstest.Join(nstest.Joint{NS: made.ns, Link: "eth0", Addrs: []string{own + "/24"}}, nstest.Joint{NS: n.router, Link: port})
		made.at = &backend.Underlay{Interface: "eth0", MTU: 1500, Addrs: addrs(public), Own: addrs(own)}
		if gateway == "" {
			n.router.Sh("ip addr add 203.0.113.1/24 dev wan")
		} else {
			n.router.Sh("ip link set " + port + " master lan")
			made.ns.Sh("ip route add default via " + gateway)
		}
		*h = made
	}
	n.b.at.Ports = map[uint16]uint16{DefaultPort: 51830}
	n.router.Sh(rules)
	for _, h := range n.hosts() {
		h.ns.Settle()
		h.renew()
	}
	for _, h := range n.hosts() {
		var peers []backend.Peer
		for _, o := range n.hosts() {
			if o != h {
				peers = append(peers, o.asPeer())
			}
		}
		h.state = h.newState(peers...)
	}
	return n
}

func (n *nat) hosts() []*host { return []*host{n.a, n.b, n.c} }

func (n *nat) apply() {
	for _, h := range n.hosts() {
		h.t.Helper()
		h.apply()
	}
}

// readdress gives a host behind the router another address.
func (h *host) readdress(to string) {
	h.t.Helper()
	h.ns.Sh(fmt.Sprintf("ip addr flush dev eth0; ip addr add %s/24 dev eth0; ip route add default via 192.168.7.254", to))
	h.at.Own = addrs(to)
	h.state.Underlay = h.underlay()
	h.apply()
}

// endpoint returns where a host sends what is for another.
func (h *host) endpoint(to *host) (endpoint netip.AddrPort) {
	h.ns.Do(func() { endpoint = h.backend.Counters()[fmt.Sprint("node-", to.n)].Endpoint })
	return endpoint
}

// steady checks that no host changes anything, with the paths that packets have taken.
func (n *nat) steady() {
	for _, h := range n.hosts() {
		h.t.Helper()
		if r, err := h.tryApply(); err != nil || r.Writes != 0 || len(r.Repaired) != 0 || len(r.Unproven) != 0 || len(r.Skipped) != 0 {
			h.t.Errorf("host %d: %+v, %v", h.n, r, err)
		}
	}
}

// TestNAT checks that hosts behind one NAT reach each other by their local addresses, and a host outside by forwarded
// ports or, without these, once they have sent to it.
func TestNAT(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		for _, rules := range []string{masquerade + "\n" + forwards, masquerade} {
			forwarded := strings.Contains(rules, forwards)
			t.Run(fmt.Sprintf("%s, forwarded ports %t", name, forwarded), func(t *testing.T) {
				t.Parallel()
				n := newNAT(t, kind, rules)
				n.c.apply() // sends to the others before they have sent anything
				n.a.apply()
				n.b.apply()
				for _, way := range [][2]*host{{n.c, n.b}, {n.c, n.a}, {n.a, n.b}, {n.b, n.a}, {n.b, n.c}} {
					way[0].ping(way[1])
				}
				n.steady()
				n.c.ping(n.b) // not taken from its path
				for _, tt := range []struct {
					from, to *host
					want     string
				}{{n.a, n.b, "192.168.7.2:51820"}, {n.b, n.a, "192.168.7.1:51820"}, {n.a, n.c, "203.0.113.3:51820"}} {
					if got := tt.from.endpoint(tt.to); got.String() != tt.want {
						t.Errorf("host %d sends to %d at %s, want %s", tt.from.n, tt.to.n, got, tt.want)
					}
				}
				if got := n.c.endpoint(n.b); got.Addr().String() != "203.0.113.1" {
					t.Errorf("from outside %s", got)
				}
				n.b.readdress("192.168.7.12")
				n.a.state = n.a.newState(n.b.asPeer(), n.c.asPeer())
				n.a.apply()
				if got := n.a.endpoint(n.b).String(); got != "192.168.7.12:51820" {
					t.Errorf("to the new address: %s", got)
				}
				n.a.ping(n.b)

				a, c := dumpPeers(n.a.backend), dumpPeers(n.c.backend)
				if strings.Count(a, "keepalive 25s") != 1 || strings.Contains(c, "keepalive") {
					t.Errorf("peers of host 1\n%sof host 3\n%s", a, c)
				}
			})
		}
	}
}

// TestAlternatives checks that hosts behind one NAT reach each other through it if they cannot directly.
func TestAlternatives(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNAT(t, kind, masquerade+"\n"+forwards)
			n.router.Sh("nft 'add table bridge b; add chain bridge b c { type filter hook forward priority 0; ip saddr 192.168.7.0/24 ip daddr 192.168.7.0/24 drop; }'")
			n.apply()
			n.answersAfterAWhile(n.a, n.b)
			n.answersAfterAWhile(n.b, n.a)
			if got := n.a.endpoint(n.b).Addr().String(); got != "203.0.113.1" && got != "192.168.7.254" {
				t.Errorf("endpoint %s", got)
			}
			n.steady()
			n.a.ping(n.b)
			n.c.ping(n.b)
		})
	}
}

// toPort40000 are rules of the router with which packets of host 2 come from port 40000.
const toPort40000 = masquerade + "; nft insert rule ip nat out oifname wan ip saddr 192.168.7.2 udp sport 51820 masquerade to :40000"

// TestForgottenPath checks that a host outside is reached again after the NAT has forgotten the path, and that it answers
// to the port that the NAT has chosen then, to which it could not send before.
func TestForgottenPath(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNAT(t, kind, masquerade+"\n"+forwards)
			n.apply()
			for _, way := range [][2]*host{{n.a, n.b}, {n.a, n.c}, {n.c, n.b}} {
				way[0].ping(way[1])
			}
			n.forget(toPort40000)
			n.answersAfterAWhile(n.b, n.c)
			n.steady()
			if got := n.c.endpoint(n.b).String(); got != "203.0.113.1:40000" {
				t.Errorf("endpoint %s", got)
			}
			// Nor is it given up when something about the underlay changes.
			at := n.c.underlay()
			at.Devices = append(at.Devices, "other")
			n.c.at, n.c.state.Underlay = &at, at
			n.c.apply()
			if got := n.c.endpoint(n.b).String(); got != "203.0.113.1:40000" {
				t.Errorf("after a change of the underlay: endpoint %s", got)
			}
			n.c.ping(n.b)
		})
	}
}

// TestPortNoLongerChosen checks that a host outside gives up a port that the NAT had chosen and no longer forwards.
func TestPortNoLongerChosen(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNAT(t, kind, toPort40000)
			n.apply()
			n.b.ping(n.c)
			n.c.ping(n.b)
			if got := n.c.endpoint(n.b).String(); got != "203.0.113.1:40000" {
				t.Errorf("endpoint %s", got)
			}
			n.forget(masquerade + "\n" + forwards)
			n.answersAfterAWhile(n.c, n.b)
		})
	}
}

// TestChangeBehindNAT checks that a change of another option leaves the endpoint alone that a NAT has chosen, to which
// packets still go.
func TestChangeBehindNAT(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNAT(t, kind, toPort40000)
			n.b.apply()
			n.c.apply()
			n.b.ping(n.c)
			psk := filepath.Join(n.c.dir, "psk")
			mustNil(t, os.WriteFile(psk, []byte(testPrivate), 0o600))
			for _, options := range []string{`{"persistent_keepalive":9}`, fmt.Sprintf(`{"psk_file":%q}`, psk)} {
				n.c.options = options
				mustNil(t, n.c.backend.Change(n.c.config()))
				n.c.state = n.c.newState(n.a.asPeer(), n.b.asPeer())
				if r := n.c.apply(); r.Writes == 0 {
					t.Errorf("%s: nothing was changed", options)
				}
				if got := n.c.endpoint(n.b).String(); got != "203.0.113.1:40000" {
					t.Errorf("%s: endpoint %s", options, got)
				}
			}
		})
	}
}

// forget gives the router other rules and makes it forget all paths.
func (n *nat) forget(rules string) {
	n.a.t.Helper()
	n.router.Sh("nft flush ruleset; " + rules)
	var err error
	n.router.Do(func() { err = netlink.ConntrackTableFlush(netlink.ConntrackTable) })
	mustNil(n.a.t, err)
}

// answersAfterAWhile makes a host send to another and apply its state until there is an answer.
func (n *nat) answersAfterAWhile(from, to *host) {
	from.t.Helper()
	for deadline := time.Now().Add(4 * time.Minute); time.Now().Before(deadline); {
		if _, err := from.ns.Try(fmt.Sprintf("ping -n -c 3 -i 0.2 -W 0.3 -I %s %s", inner(from.n)[0], inner(to.n)[0])); err == nil {
			return
		}
		if _, err := from.tryApply(); err != nil {
			from.t.Fatal(err)
		}
	}
	from.t.Errorf("host %d does not reach host %d: %s", from.n, to.n, from.endpoint(to))
}
