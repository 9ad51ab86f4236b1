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
	"golang.org/x/sys/unix"

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

// takeOver sends from the tunnel's port in a container to the addresses of a peer, each time that its host has forgotten
// the tunnel's connection. It returns how many datagrams of the tunnel the container has received. None of the tunnel's
// packets may be lost in the meantime, from one container to another.
func (w *testWorld) takeOver(h *lab.Host, attacker *lab.Container, peer []netip.Addr, port uint16, from, to *lab.Container) (stolen int) {
	w.T.Helper()
	for family, addr := range peer {
		var socket *net.UDPConn
		w.Must(attacker.Do(func() (err error) {
			socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(attacker.Addrs[family], port)))
			return err
		}))
		pings, err := from.StartEchoes(w.Ctx, to.Addrs[family], 5*time.Millisecond)
		w.Must(err)
		w.Must(pings.WaitAnswers(w.Ctx, 5))
		for range 20 {
			w.forgetConnections(h)
			for range 5 {
				_, err := socket.WriteToUDPAddrPort([]byte("mine"), netip.AddrPortFrom(addr, port))
				w.Must(err)
			}
			w.Must(pings.WaitAnswers(w.Ctx, 2))
		}
		result, err := pings.Stop()
		w.Must(err)
		if result.Lost() != 0 {
			w.T.Errorf("family %d: %d of %d pings lost", family, result.Lost(), result.Sent)
		}
		w.Must(socket.SetReadDeadline(time.Now()))
		for buffer := make([]byte, 2000); ; stolen++ {
			if _, _, err := socket.ReadFrom(buffer); errors.Is(err, os.ErrDeadlineExceeded) {
				break
			} else if err != nil {
				w.T.Fatal(err)
			}
		}
		w.Must(socket.Close())
	}
	return stolen
}

// addToLoopback gives the loopback device of the calling thread's network namespace an address that can be used at once.
func addToLoopback(addr netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.AddrAdd(lo, &netlink.Addr{IPNet: netlink.NewIPNet(addr.AsSlice()), Flags: unix.IFA_F_NODAD})
}

// TestAttackingContainer: a container without privileges sends to the port of its host's tunnel on a peer. It neither gets
// what the peer sends to its host nor injects packets, into a peer's tunnel or that of its own host, whatever the backend
// and the family of the underlay, whichever firewall has leno's rules, and also after another program removed them. A local
// user injects packets with vxlan only.
func TestAttackingContainer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		backend, options, firewall string
		port                       uint16
		family                     int // of the underlay, an index of addresses
	}{
		{"vxlan", "", "auto", 8472, 0}, {"vxlan", "direct_routing = true", "nftables", 8472, 0},
		{"udp", "", "nftables", 8285, 0}, {"wireguard", "", "auto", 51820, 0},
		{"vxlan", "", "nftables", 8472, 1}, {"udp", "", "auto", 8285, 1}, {"wireguard", "", "nftables", 51820, 1},
	} {
		t.Run(strings.TrimSpace(tt.backend+" "+tt.options)+[]string{"", " over IPv6"}[tt.family], func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2})
			a, b := w.Hosts[0], w.Hosts[1]
			for _, h := range w.Hosts {
				underlay := []string{"", "underlay {\n  interface_regex = [\"^fd00:c0:2:\"]\n}"}[tt.family]
				w.Must(h.StartAgent(h.Config(world.ShortLease, underlay, fmt.Sprintf("firewall {\n  type = %q\n}", tt.firewall),
					h.Network("default", strings.Replace(world.Plan(tt.backend), "{}", "{\n"+tt.options+"\n}", 1)+"\n  ip_masq = true"))))
			}
			for _, h := range w.Hosts {
				w.WaitHealth(h, 200)
			}
			attacker, neighbour, target := w.Container(a, "default"), w.Container(a, "default"), w.Container(b, "default")
			w.Linked(w.Containers)
			received := w.serve(target)
			takeOver := func() {
				t.Helper()
				// Docker keeps the port of a masqueraded datagram.
				_, err := a.Exec(w.Ctx, "sh", "-euc", fmt.Sprintf(
					"for x in iptables ip6tables; do $x -w -t nat -I POSTROUTING -p udp --dport %d -j MASQUERADE; done", tt.port))
				w.Must(err)
				if stolen := w.takeOver(a, attacker, b.Addrs, tt.port, neighbour, target); stolen != 0 {
					t.Errorf("the attacker received %d datagrams of its host's tunnel", stolen)
				}
			}
			takeOver()

			to := netip.AddrPortFrom(target.Addrs[0], servicePort)
			inner := lab.UDPPacket(netip.AddrPortFrom(neighbour.Addrs[0], 9), to, "injected")
			w.Must(send(attacker.Namespace, netip.AddrPort{}, netip.AddrPortFrom(b.Addrs[tt.family], tt.port), w.inTunnel(tt.backend, b, inner), 20))
			received.awaits(w, neighbour.Namespace, to, "wanted")
			received.lacks(w, "injected")

			// A tunnel also has addresses in the network, and the attacker's own host has a tunnel.
			local, forged := w.serve(neighbour), netip.MustParseAddr([]string{"192.0.2.200", "fd00:c0:2::c8"}[tt.family]) // of the network between hosts
			w.Must(attacker.Do(func() error { return addToLoopback(forged) }))
			inside := func(h *lab.Host, of *lab.Container) []netip.Addr {
				subnet := netip.PrefixFrom(of.Addrs[tt.family], []int{24, 64}[tt.family]).Masked().Addr()
				return []netip.Addr{subnet, subnet.Next(), h.Addrs[tt.family]}
			}
			for _, x := range []struct {
				victim       *lab.Host
				target, from *lab.Container
				received     *service
			}{{b, target, neighbour, received}, {a, neighbour, target, local}} {
				to := netip.AddrPortFrom(x.target.Addrs[0], servicePort)
				for _, addr := range inside(x.victim, x.target) {
					for _, source := range []netip.Addr{attacker.Addrs[tt.family], forged} {
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
			w.Must(send(a.Namespace, netip.AddrPort{}, netip.AddrPortFrom(b.Addrs[tt.family], tt.port), w.inTunnel(tt.backend, b, user), 20))
			received.awaits(w, neighbour.Namespace, to, "wanted after the user's")
			if tt.backend != "vxlan" {
				received.lacks(w, "of a user")
			} else {
				w.Must(received.has("of a user"))
			}

			// Another program removes all rules.
			_, err := a.Exec(w.Ctx, "nft", "flush", "ruleset")
			w.Must(err)
			w.Eventually("the rules to be back", func(ctx context.Context) error {
				_, err := a.Exec(ctx, "nft", "list", "chain", "inet", "leno", "tunnels")
				return err
			})
			takeOver()
			w.Must(send(attacker.Namespace, netip.AddrPort{}, netip.AddrPortFrom(b.Addrs[tt.family], tt.port), w.inTunnel(tt.backend, b, inner), 20))
			received.awaits(w, neighbour.Namespace, to, "wanted afterwards")
			received.lacks(w, "injected")
			// Containers of the network use the same port between each other.
			w.Must(send(attacker.Namespace, netip.AddrPort{}, netip.AddrPortFrom(target.Addrs[0], tt.port), []byte("x"), 1))
		})
	}
}

// TestStrangerOnTheUnderlay: a host that is not of the network sends to containers, with an address of its own and with
// those of containers, plainly and to the port of the tunnel. wireguard and udp drop the forged ones, vxlan and host-gw do
// not while rp_filter is off or loose (2). While the host drops what is not accepted, only published ports and answers pass.
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
			}
			for family, addr := range target.Addrs {
				w.ip(stranger, fmt.Sprintf("route add %s via %s", addr, b.Addrs[family]))
				for _, source := range []netip.Addr{peer.Addrs[family], local.Addrs[family]} {
					w.Must(stranger.Do(func() error { return addToLoopback(source) }))
				}
			}
			ports := func(addr netip.Addr) netip.AddrPort { return netip.AddrPortFrom(addr, servicePort) }
			// Of IPv6, rp_filter says nothing.
			for _, x := range []struct{ filter, family int }{{2, 0}, {0, 0}, {0, 1}} {
				for _, h := range hosts {
					_, err := h.Exec(w.Ctx, "sh", "-euc", fmt.Sprintf("for f in all eth0; do echo %d > /proc/sys/net/ipv4/conf/$f/rp_filter; done", x.filter))
					w.Must(err)
				}
				what := fmt.Sprintf("family %d, rp_filter %d", x.family, x.filter)
				to := ports(target.Addrs[x.family])
				// Nothing is dropped that comes from the stranger's own address.
				received.awaits(w, stranger.Namespace, to, "own, "+what)
				var forged []string
				for i, source := range []netip.Addr{peer.Addrs[x.family], local.Addrs[x.family]} {
					forged = append(forged, fmt.Sprintf("forged %d, %s", i, what))
					w.Must(send(stranger.Namespace, netip.AddrPortFrom(source, 9), to, []byte(forged[i]), 20))
				}
				if tt.port != 0 && x.family == 0 {
					forged = append(forged, "in the tunnel, "+what)
					inner := lab.UDPPacket(netip.AddrPortFrom(peer.Addrs[x.family], 9), to, forged[2])
					w.Must(send(stranger.Namespace, netip.AddrPort{}, netip.AddrPortFrom(b.Addrs[0], tt.port), w.inTunnel(tt.backend, b, inner), 20))
				}
				received.awaits(w, peer.Namespace, to, "of a peer, "+what)
				received.awaits(w, local.Namespace, to, "of a neighbour, "+what)
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
