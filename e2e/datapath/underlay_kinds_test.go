package datapath

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// TestBehindNAT checks that hosts whose public addresses are translated by a router send from their
// own addresses.
func TestBehindNAT(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "udp"} {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2})
			script := "sysctl -qw net.ipv4.ip_forward=1\n"
			for i, h := range w.Hosts {
				script += fmt.Sprintf("iptables -t nat -A PREROUTING -d 203.0.113.%[1]d -j DNAT --to %[2]s\niptables -t nat -A POSTROUTING -s %[2]s -j SNAT --to 203.0.113.%[1]d\n", 11+i, h.Addrs[0])
			}
			if out, err := w.Switch.Exec(w.Ctx, "sh", "-ec", script); err != nil {
				t.Fatal(err, out)
			}
			for i, h := range w.Hosts {
				underlay := fmt.Sprintf("underlay {\n  public_ip = \"203.0.113.%d\"\n}\n", 11+i)
				w.Must(h.StartAgent(h.Config(underlay, world.ShortLease, h.Network("default", world.Plan(backend)))))
			}
			for _, h := range w.Hosts {
				w.Must(h.WaitReady(w.Ctx))
				w.Container(h, "default")
			}
			w.Settle("default")
			w.crosses()
			w.sizes(w.Containers[0], w.Containers[1].Addrs[0])
			lease, err := w.ownLease(w.Hosts[0], "default")
			w.Must(err)
			if len(lease.PublicIPs) == 0 || lease.PublicIPs[0].String() != "203.0.113.11" {
				t.Errorf("lease %+v", lease)
			}
			out, err := w.Hosts[0].Leno(w.Ctx, "status")
			w.Must(err)
			if text := strings.Join(strings.Fields(out), " "); !strings.Contains(text, "underlay eth0, 203.0.113.11, fd00:c0:2::11 from 192.0.2.11, fd00:c0:2::11, MTU 1500: the IPv4 default route leaves through it; address 203.0.113.11 from underlay.public_ip") {
				t.Errorf("status:\n%s", out)
			}
		})
	}
	t.Run("host-gw", func(t *testing.T) {
		w := newWorld(t, lab.Options{Hosts: 1})
		h := w.Hosts[0]
		w.Must(h.StartAgent(h.Config("underlay {\n  public_ip = \"203.0.113.11\"\n}\n", world.ShortLease, h.Network("default", world.Plan("host-gw")))))
		w.WaitHealth(h, 503, "public address 203.0.113.11 is not an address of interface eth0")
	})
}

// TestMixedUnderlay configures IPv6 on two of three hosts that have both families. Those two reach
// each other, and the unreachable hosts are reported on both sides.
func TestMixedUnderlay(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "udp"} {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, lab.Options{})
			for i, underlay := range []string{"", "underlay {\n  can_reach = \"fd00:c0:2::1\"\n}\n", "underlay {\n  interface_regex = [\"^fd00:c0:2:\"]\n}\n"} {
				h := w.Hosts[i]
				w.Must(h.StartAgent(h.Config(underlay, world.ShortLease, h.Network("default", world.Plan(backend)))))
			}
			for i, h := range w.Hosts {
				w.Must(h.WaitReady(w.Ctx))
				if i > 0 {
					w.Container(h, "default")
				}
			}
			for i, want := range []string{"2 skipped", "1 peers in place, 1 skipped", "1 peers in place, 1 skipped"} {
				reason := "receives over IPv4, and this host over IPv6"
				if i == 0 {
					reason = "receives over IPv6, and this host over IPv4"
				}
				w.WaitHealth(w.Hosts[i], 429, want, reason)
			}
			w.crosses()
			w.sizes(w.Containers[0], w.Containers[1].Addrs[0])
		})
	}
}

// TestAddressOnLoopback uses hosts that are routers themselves, each with an address on loopback
// that is reachable over two links. One of the links may fail.
func TestAddressOnLoopback(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "udp"} {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2})
			for i, h := range w.Hosts {
				w.plugIn(h, fmt.Sprintf("up%d", i), fmt.Sprintf("198.18.0.%d/24", 11+i))
				w.ip(h, fmt.Sprintf("addr add 203.0.113.%d/32 dev lo", 11+i),
					fmt.Sprintf("link set up%d mtu 1420", i),
					fmt.Sprintf("route add 203.0.113.%[1]d/32 nexthop via 192.0.2.%[1]d nexthop via 198.18.0.%[1]d", 12-i))
			}
			for _, h := range w.Hosts {
				w.Must(h.StartAgent(h.Config("underlay {\n  interfaces = [\"lo\"]\n}\n", world.ShortLease, h.Network("default", world.Plan(backend)))))
			}
			for _, h := range w.Hosts {
				w.Must(h.WaitReady(w.Ctx))
			}
			w.Settle("default")
			for i, h := range w.Hosts {
				w.mtu(h, fmt.Sprintf("= 1420 of up%d, by which the route to 203.0.113.%d leaves, - ", i, 12-i))
				w.Container(h, "default")
			}
			w.crosses()
			// This also holds while the link with the small MTU is the only one.
			for i, h := range w.Hosts {
				w.ip(h, fmt.Sprintf("route replace 203.0.113.%[1]d/32 via 198.18.0.%[1]d", 12-i))
			}
			w.crosses()
			w.sizes(w.Containers[0], w.Containers[1].Addrs[0])
		})
	}
}

// TestUnderlayIsATunnel reduces the MTU below a tunnel between hosts. The tunnel keeps its MTU;
// leno adapts.
func TestUnderlayIsATunnel(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "udp"} {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2})
			for i, h := range w.Hosts {
				w.ip(h, fmt.Sprintf("link add vx0 type vxlan id 77 dstport 4789 local %s remote %s dev eth0", h.Addrs[0], w.Hosts[1-i].Addrs[0]),
					fmt.Sprintf("addr add 198.18.0.%d/24 dev vx0", 11+i), "link set vx0 up")
				w.Must(h.StartAgent(h.Config("underlay {\n  interfaces = [\"vx0\"]\n}\n", world.ShortLease, h.Network("default", world.Plan(backend)))))
			}
			for _, h := range w.Hosts {
				w.Must(h.WaitReady(w.Ctx))
			}
			w.Settle("default")
			for _, h := range w.Hosts {
				w.mtu(h, "= 1450 of vx0 - ")
				w.ip(h, "link set eth0 mtu 1420")
			}
			for _, h := range w.Hosts {
				w.mtu(h, "= 1370 of vx0 (1420 of eth0 - 50) - ")
				w.Container(h, "default")
			}
			w.crosses()
			w.sizes(w.Containers[0], w.Containers[1].Addrs[0])
		})
	}
}

// TestDirectRoutingFollowsRoutes checks that the agent decides again which peers are direct
// neighbours when the host's routes to a peer change.
func TestDirectRoutingFollowsRoutes(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	direct := `
  ipv4 { prefix = "10.5.0.0/16" }
  ipv6 { prefix = "fd00:5::/48" }
  backend "vxlan" {
    direct_routing = true
  }`
	w.Start(func(h *lab.Host) []string { return []string{world.ShortLease, h.Network("default", direct)} })
	for _, h := range w.Hosts {
		w.Container(h, "default")
	}
	w.Settle("default")
	through := func(want string) {
		for _, h := range w.Hosts {
			w.within(soon, h.Name+" sends through "+want, func(context.Context) error {
				n := 0
				for _, route := range w.Routes(h) {
					if !strings.Contains(route, " via ") {
						continue
					}
					if n++; !strings.Contains(route, "dev "+want) {
						return fmt.Errorf("%s", route)
					}
				}
				if n != 2 {
					return fmt.Errorf("%d routes, not one of each family", n)
				}
				return nil
			})
		}
		w.crosses()
	}
	through("eth0")
	forward := "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.br0.send_redirects=0 net.ipv6.conf.all.forwarding=1"
	if out, err := w.Switch.Exec(w.Ctx, strings.Fields(forward)...); err != nil {
		t.Fatal(err, out)
	}
	for i, h := range w.Hosts {
		other := w.Hosts[1-i]
		w.ip(h, fmt.Sprintf("route add %s/32 via 192.0.2.254", other.Addrs[0]), fmt.Sprintf("-6 route add %s/128 via fd00:c0:2::fe", other.Addrs[1]))
	}
	through("leno-default")
	for i, h := range w.Hosts {
		other := w.Hosts[1-i]
		w.ip(h, fmt.Sprintf("route del %s/32", other.Addrs[0]), fmt.Sprintf("-6 route del %s/128", other.Addrs[1]))
	}
	through("eth0")
}

// TestDifferentMTUs: hosts of one network have underlays of different MTUs. What is larger than the smaller one arrives in
// fragments or is refused with an error, nothing is lost in silence, and the tests of paths find no fault in that.
func TestDifferentMTUs(t *testing.T) {
	t.Parallel()
	for _, backend := range world.Carrying {
		t.Run(backend, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2})
			a, b := w.Hosts[0], w.Hosts[1]
			w.ip(b, "link set eth0 mtu 1380")
			w.StartNetwork(backend)
			large, small := w.Containers[0], w.Containers[1]
			w.Linked(w.Containers)
			if large.MTU <= small.MTU {
				t.Fatalf("MTUs %d and %d", large.MTU, small.MTU)
			}
			fits := small.MTU
			if backend == "wireguard" {
				fits -= fits % 16
			}
			for family, to := range small.Addrs {
				headers := []int{28, 48}[family]
				w.Eventually("a large packet to arrive in fragments", func(ctx context.Context) error {
					_, err := large.Exec(ctx, "ping", "-n", "-c", "1", "-W", "1", "-M", "dont", "-s", fmt.Sprint(large.MTU-headers), to.String())
					return err
				})
				out, err := large.Exec(w.Ctx, "ping", "-n", "-c", "2", "-i", "0.2", "-W", "1", "-M", "do", "-s", fmt.Sprint(large.MTU-headers), to.String())
				if want := fmt.Sprint(fits); err == nil || !strings.Contains(out+err.Error(), want) {
					t.Errorf("a packet that may not be fragmented: no error names %s: %v\n%s", want, err, out)
				}
			}
			w.Eventually("full-size packets to be tested", func(ctx context.Context) error {
				out, err := a.Exec(ctx, world.Leno(), "peers", "-json", "default")
				var list api.PeerList
				if err == nil {
					err = json.Unmarshal([]byte(out), &list)
				}
				if err != nil || len(list.Peers) != 1 || list.Peers[0].Path == nil || list.Peers[0].Path.State != api.PathReached ||
					list.Peers[0].Path.MTU != fits {
					return fmt.Errorf("%v: %s", err, out)
				}
				return nil
			})
			for _, h := range []*lab.Host{a, b} {
				w.WaitHealth(h, 200)
			}
		})
	}
}
