package datapath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/world"
)

// servicePort is the UDP port of a service in a container.
const servicePort = 7777

// service counts the datagrams that a container receives, by their text.
type service struct {
	mu   sync.Mutex
	seen map[string]int
}

// serve starts a service in a container.
func (w *testWorld) serve(c *lab.Container) *service {
	w.T.Helper()
	s := &service{seen: map[string]int{}}
	var conn *net.UDPConn
	w.Must(c.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: servicePort})
		return err
	}))
	w.T.Cleanup(func() { _ = conn.Close() })
	go func() {
		buffer := make([]byte, 2000)
		for {
			n, _, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.seen[string(buffer[:n])]++
			s.mu.Unlock()
		}
	}()
	return s
}

// awaits blocks until the service has received a text.
func (s *service) awaits(w *testWorld, from *lab.Namespace, to netip.AddrPort, text string) {
	w.T.Helper()
	w.Eventually(text+" to arrive", func(context.Context) error {
		w.Must(send(from, netip.AddrPort{}, to, []byte(text), 1))
		return s.has(text)
	})
}

// has returns an error if the service has not received a text.
func (s *service) has(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen[text] == 0 {
		return fmt.Errorf("received %v", s.seen)
	}
	return nil
}

// lacks fails the test if the service has received a text. It is called when a later packet has arrived.
func (s *service) lacks(w *testWorld, text string) {
	w.T.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen[text] != 0 {
		w.T.Errorf("%d of %q arrived", s.seen[text], text)
	}
}

// send sends a datagram several times. A host may refuse to send it.
func send(from *lab.Namespace, source, to netip.AddrPort, data []byte, times int) error {
	return from.Do(func() error {
		var local *net.UDPAddr
		if source.IsValid() {
			local = net.UDPAddrFromAddrPort(source)
		}
		conn, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		for range times {
			_, _ = conn.Write(data)
		}
		return conn.Close()
	})
}

// inTunnel returns a packet as the tunnel of a host carries it.
func (w *testWorld) inTunnel(backend string, h *lab.Host, packet []byte) []byte {
	w.T.Helper()
	if backend != "vxlan" {
		return packet // udp has no header of its own, and wireguard drops whatever is not encrypted
	}
	var mac net.HardwareAddr
	w.Must(h.Do(func() error {
		device, err := net.InterfaceByName("leno-default")
		if err == nil {
			mac = device.HardwareAddr
		}
		return err
	}))
	return lab.InVXLAN(1, mac, packet)
}

// forgetConnections empties a host's connection tracking, as time does.
func (w *testWorld) forgetConnections(h *lab.Host) {
	w.T.Helper()
	w.Must(h.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
}

// TestAttackingContainer: a container without privileges sends to the port of its host's tunnel on a peer. It neither gets
// what the peer sends to its host nor injects packets, into a peer's tunnel or that of its own host, whatever the backend,
// and whichever firewall has leno's rules. A local user injects packets with vxlan only.
func TestAttackingContainer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		backend, options, firewall string
		port                       uint16
	}{{"vxlan", "", "auto", 8472}, {"vxlan", "direct_routing = true", "nftables", 8472}, {"udp", "", "nftables", 8285}, {"wireguard", "", "auto", 51820}} {
		t.Run(strings.TrimSpace(tt.backend+" "+tt.options), func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2})
			a, b := w.Hosts[0], w.Hosts[1]
			for _, h := range w.Hosts {
				w.Must(h.StartAgent(h.Config(world.ShortLease, fmt.Sprintf("firewall {\n  type = %q\n}", tt.firewall),
					h.Network("default", strings.Replace(world.Plan(tt.backend), "{}", "{\n"+tt.options+"\n}", 1)+"\n  ip_masq = true"))))
			}
			for _, h := range w.Hosts {
				w.WaitHealth(h, 200)
			}
			attacker, neighbour, target := w.Container(a, "default"), w.Container(a, "default"), w.Container(b, "default")
			w.Linked(w.Containers)
			// Docker keeps the port of a masqueraded datagram.
			_, err := a.Exec(w.Ctx, "sh", "-euc", fmt.Sprintf(
				"for x in iptables ip6tables; do $x -w -t nat -I POSTROUTING -p udp --dport %d -j MASQUERADE; done", tt.port))
			w.Must(err)
			received := w.serve(target)

			stolen := 0
			for family, addr := range b.Addrs {
				var socket *net.UDPConn
				w.Must(attacker.Do(func() (err error) {
					socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(attacker.Addrs[family], tt.port)))
					return err
				}))
				pings, err := neighbour.StartEchoes(target.Addrs[family], 5*time.Millisecond)
				w.Must(err)
				w.Must(pings.WaitAnswers(w.Ctx, 5))
				for range 20 {
					w.forgetConnections(a)
					for range 5 {
						_, err := socket.WriteToUDPAddrPort([]byte("mine"), netip.AddrPortFrom(addr, tt.port))
						w.Must(err)
					}
					w.Must(pings.WaitAnswers(w.Ctx, 2))
				}
				result, err := pings.Stop()
				w.Must(err)
				if result.Lost() != 0 {
					t.Errorf("family %d: %d of %d pings lost", family, result.Lost(), result.Sent)
				}
				w.Must(socket.SetReadDeadline(time.Now()))
				for buffer := make([]byte, 2000); ; stolen++ {
					if _, _, err := socket.ReadFrom(buffer); errors.Is(err, os.ErrDeadlineExceeded) {
						break
					} else if err != nil {
						t.Fatal(err)
					}
				}
				w.Must(socket.Close())
			}
			if stolen != 0 {
				t.Errorf("the attacker received %d datagrams of its host's tunnel", stolen)
			}

			to := netip.AddrPortFrom(target.Addrs[0], servicePort)
			inner := lab.UDPPacket(netip.AddrPortFrom(neighbour.Addrs[0], 9), to, "injected")
			w.Must(send(attacker.Namespace, netip.AddrPort{}, netip.AddrPortFrom(b.Addrs[0], tt.port), w.inTunnel(tt.backend, b, inner), 20))
			received.awaits(w, neighbour.Namespace, to, "wanted")
			received.lacks(w, "injected")

			// A tunnel also has addresses in the network, and the attacker's own host has a tunnel.
			local, forged := w.serve(neighbour), netip.MustParseAddr("192.0.2.200") // of the network between hosts
			_, err = attacker.Exec(w.Ctx, "ip", "addr", "add", forged.String()+"/32", "dev", "lo")
			w.Must(err)
			inside := func(h *lab.Host) []netip.Addr {
				subnet := w.Subnet(h, "default").Addr()
				return []netip.Addr{subnet, subnet.Next(), h.Addrs[0]}
			}
			for _, x := range []struct {
				victim       *lab.Host
				target, from *lab.Container
				received     *service
			}{{b, target, neighbour, received}, {a, neighbour, target, local}} {
				to := netip.AddrPortFrom(x.target.Addrs[0], servicePort)
				for _, addr := range inside(x.victim) {
					for _, source := range []netip.Addr{attacker.Addrs[0], forged} {
						text := fmt.Sprintf("injected at %s from %s", addr, source)
						inner := lab.UDPPacket(netip.AddrPortFrom(x.from.Addrs[0], 9), to, text)
						w.Must(send(attacker.Namespace, netip.AddrPortFrom(source, 9), netip.AddrPortFrom(addr, tt.port),
							w.inTunnel(tt.backend, x.victim, inner), 20))
						x.received.awaits(w, x.from.Namespace, to, "wanted, not what is "+text)
						x.received.lacks(w, text)
					}
				}
			}

			// A user of the host needs no container. vxlan cannot tell what he sends from what the tunnel sends.
			user := lab.UDPPacket(netip.AddrPortFrom(neighbour.Addrs[0], 9), to, "of a user")
			w.Must(send(a.Namespace, netip.AddrPort{}, netip.AddrPortFrom(b.Addrs[0], tt.port), w.inTunnel(tt.backend, b, user), 20))
			received.awaits(w, neighbour.Namespace, to, "wanted after the user's")
			if tt.backend != "vxlan" {
				received.lacks(w, "of a user")
			} else {
				w.Must(received.has("of a user"))
			}

			// Another program removes all rules.
			_, err = a.Exec(w.Ctx, "nft", "flush", "ruleset")
			w.Must(err)
			w.Eventually("the rules to be back", func(ctx context.Context) error {
				_, err := a.Exec(ctx, "nft", "list", "chain", "inet", "leno", "tunnels")
				return err
			})
			w.Must(send(attacker.Namespace, netip.AddrPort{}, netip.AddrPortFrom(b.Addrs[0], tt.port), w.inTunnel(tt.backend, b, inner), 20))
			received.awaits(w, neighbour.Namespace, to, "wanted afterwards")
			received.lacks(w, "injected")
			// Containers of the network use the same port between each other.
			w.Must(send(attacker.Namespace, netip.AddrPort{}, netip.AddrPortFrom(target.Addrs[0], tt.port), []byte("x"), 1))
		})
	}
}

// TestStrangerOnTheUnderlay: a host that is not of the network sends to containers, with an address of its own and with
// those of containers, plainly and to the port of the tunnel. wireguard and udp drop the forged ones, vxlan and host-gw do
// not while rp_filter is off. While the host drops what is not accepted, only published ports and answers pass.
func TestStrangerOnTheUnderlay(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		backend string
		isOpen  bool   // for forged packets
		port    uint16 // of the tunnel
	}{{"wireguard", false, 51820}, {"udp", false, 8285}, {"vxlan", true, 8472}, {"host-gw", true, 0}} {
		t.Run(tt.backend, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 3})
			a, b, stranger := w.Hosts[0], w.Hosts[1], w.Hosts[2]
			hosts := w.Hosts[:2]
			for _, h := range hosts {
				w.Must(h.StartAgent(h.Config(world.ShortLease, h.Network("default", world.Plan(tt.backend)+"\n  ip_masq = true"))))
			}
			for _, h := range hosts {
				w.WaitHealth(h, 200)
			}
			peer, target, local := w.Container(a, "default"), w.Container(b, "default"), w.Container(b, "default")
			w.Linked(w.Containers)
			received := w.serve(target)
			for _, h := range hosts {
				w.ip(h, "link set eth0 up")
				_, err := h.Exec(w.Ctx, "sh", "-euc", "for f in all eth0; do echo 0 > /proc/sys/net/ipv4/conf/$f/rp_filter; done")
				w.Must(err)
			}
			for family, addr := range target.Addrs {
				w.ip(stranger, fmt.Sprintf("route add %s via %s", addr, b.Addrs[family]))
				for _, source := range []netip.Addr{peer.Addrs[family], local.Addrs[family]} {
					line := fmt.Sprintf("addr add %s/%d dev lo", source, addr.BitLen())
					if source.Is6() {
						line += " nodad" // otherwise it can be used a moment later
					}
					w.ip(stranger, line)
				}
			}
			ports := func(addr netip.Addr) netip.AddrPort { return netip.AddrPortFrom(addr, servicePort) }
			for family := range target.Addrs {
				// Nothing is dropped that comes from the stranger's own address.
				own := fmt.Sprint("own ", family)
				received.awaits(w, stranger.Namespace, ports(target.Addrs[family]), own)
				var forged []string
				for i, source := range []netip.Addr{peer.Addrs[family], local.Addrs[family]} {
					forged = append(forged, fmt.Sprint("forged ", family, i))
					w.Must(send(stranger.Namespace, netip.AddrPortFrom(source, 9), ports(target.Addrs[family]), []byte(forged[i]), 20))
				}
				if tt.port != 0 && family == 0 {
					forged = append(forged, fmt.Sprint("in the tunnel ", family))
					inner := lab.UDPPacket(netip.AddrPortFrom(peer.Addrs[family], 9), ports(target.Addrs[family]), forged[2])
					w.Must(send(stranger.Namespace, netip.AddrPort{}, netip.AddrPortFrom(b.Addrs[0], tt.port), w.inTunnel(tt.backend, b, inner), 20))
				}
				received.awaits(w, peer.Namespace, ports(target.Addrs[family]), fmt.Sprint("of a peer ", family))
				received.awaits(w, local.Namespace, ports(target.Addrs[family]), fmt.Sprint("of a neighbour ", family))
				for _, text := range forged {
					if !tt.isOpen {
						received.lacks(w, text)
						continue
					}
					w.Eventually(text+" to arrive, as the page about security says", func(context.Context) error {
						return received.has(text)
					})
				}
			}

			for family, program := range []string{"iptables", "ip6tables"} {
				published := netip.AddrPortFrom(target.Addrs[family], servicePort)
				_, err := b.Exec(w.Ctx, "sh", "-euc", fmt.Sprintf(
					"%[1]s -w -P FORWARD DROP; %[1]s -w -t nat -A PREROUTING -p udp --dport 8888 -j DNAT --to-destination %[2]s", program, published))
				w.Must(err)
				w.forgetConnections(b)
				w.Must(send(stranger.Namespace, netip.AddrPort{}, ports(target.Addrs[family]), []byte("not accepted"), 20))
				received.awaits(w, stranger.Namespace, netip.AddrPortFrom(b.Addrs[family], 8888), fmt.Sprint("published ", family))
				received.awaits(w, peer.Namespace, ports(target.Addrs[family]), fmt.Sprint("of a peer later ", family))
				received.lacks(w, "not accepted")
				w.Must(target.Reach(w.Ctx, stranger.Addrs[family]))
			}
			for _, h := range hosts {
				w.WaitHealth(h, 200)
			}
		})
	}
}
