package soak

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/lenonet/leno/e2e/lab"
)

// attackEvery is the time between two packets of an attacker to the same port.
const attackEvery = 100 * time.Millisecond

// servicePort is the UDP port of a container on which nothing may arrive.
const servicePort = 7777

// An attacker is a container without privileges that sends to the tunnels of other hosts.
type attacker struct {
	*machine
	network  network
	self     *lab.Container
	targets  []*lab.Container
	sockets  []*net.UDPConn // of the attacker, each on the port of a tunnel
	services []*net.UDPConn // of the targets
	sent     int
}

// attackPeers makes the host's containers attack the other hosts of their networks.
func (r *run) attackPeers(ctx context.Context, s Step, m *machine) error {
	node, _ := m.now()
	var attackers []*attacker
	defer func() {
		for _, a := range attackers {
			a.close()
		}
	}()
	begun := r.now()
	var rules strings.Builder
	for _, p := range m.takesPart() {
		a := &attacker{machine: m, network: p.network}
		for at, c := range r.pings.containersOf(p.name) {
			if at.machine == m {
				a.self = c
			} else {
				a.targets = append(a.targets, c)
			}
		}
		if a.self == nil || len(a.targets) == 0 {
			continue
		}
		attackers = append(attackers, a)
		if err := a.open(); err != nil {
			return err
		}
		// As Docker's rule, which keeps the port of a datagram.
		for i, addr := range a.self.Addrs {
			fmt.Fprintf(&rules, "add rule inet soak post %s saddr %s meta l4proto udp masquerade\n", []string{"ip", "ip6"}[i], addr)
		}
	}
	err := m.script("nft -f - <<'END'\nadd table inet soak\n" +
		"add chain inet soak post { type nat hook postrouting priority 90; }\n" + rules.String() + "END")(ctx)
	if err != nil {
		return err
	}
	forgotten, err := r.attack(ctx, m, attackers, s.For)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err = errors.Join(err, m.script("nft delete table inet soak")(ctx), sleep(ctx, attackEvery))
	for _, a := range attackers {
		x := Attack{Node: node, Network: a.network.name, Span: Span{begun, r.now()}, Sent: a.sent, Forgotten: forgotten}
		x.Injected, x.Stolen = drain(a.services), drain(a.sockets)
		r.record(func(h *History) { h.Attacks = append(h.Attacks, x) })
		r.say("%s: %d packets of an attacker in %s, %d injected, %d stolen", node, x.Sent, x.Network, x.Injected, x.Stolen)
	}
	return err
}

// attack sends for a time. The host forgets its connections every five seconds, as it does after minutes without packets.
func (r *run) attack(ctx context.Context, m *machine, attackers []*attacker, d time.Duration) (forgotten []time.Duration, err error) {
	for i, end := 0, time.Now().Add(d); time.Now().Before(end); i++ {
		if i%50 == 0 {
			forgotten = append(forgotten, r.now())
			if err := m.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
				return forgotten, err
			}
		}
		for _, a := range attackers {
			a.send()
		}
		if err := sleep(ctx, attackEvery); err != nil {
			return forgotten, err
		}
	}
	return forgotten, nil
}

// ports returns the UDP ports that the network's tunnels may have.
func (n network) ports() (vxlan, udp uint16, wireGuard []uint16) {
	return uint16(8467 + n.number), uint16(8267 + n.number), []uint16{uint16(51800 + 2*n.number), uint16(51801 + 2*n.number)}
}

// open opens the sockets.
func (a *attacker) open() error {
	listen := func(ns *lab.Namespace, port uint16) (conn *net.UDPConn, err error) {
		err = ns.Do(func() error {
			conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: int(port)}) // of both families
			return err
		})
		return conn, err
	}
	for _, c := range a.targets {
		conn, err := listen(c.Namespace, servicePort)
		if err != nil {
			return err
		}
		a.services = append(a.services, conn)
	}
	vxlan, udp, wireGuard := a.network.ports()
	for _, port := range append([]uint16{vxlan, udp}, wireGuard...) {
		conn, err := listen(a.self.Namespace, port)
		if err != nil {
			return err
		}
		a.sockets = append(a.sockets, conn)
	}
	return nil
}

// send sends one packet from each tunnel's port to the same one of each other host, so that the peer's packets for the
// attacker's host may come to the attacker. For VXLAN and udp, it also sends a forged one of a third container: to the
// addresses of the other host and to those of its own. A container without IPv6 sends over IPv4 only.
func (a *attacker) send() {
	for i, c := range a.targets {
		source := a.targets[(i+1)%len(a.targets)]
		forged := lab.UDPPacket(netip.AddrPortFrom(source.Addrs[0], 9), netip.AddrPortFrom(c.Addrs[0], servicePort), "forged")
		for _, socket := range a.sockets {
			port := uint16(socket.LocalAddr().(*net.UDPAddr).Port)
			for _, addr := range addrsOn(c.Host, underlayDevice) {
				a.write(socket, netip.AddrPortFrom(addr, port), []byte("mine"))
			}
			for _, h := range []*lab.Host{c.Host, a.self.Host} {
				for _, packet := range a.inTunnel(h, port, forged) {
					for _, addr := range addrsOn(h, append(devicesOf(a.network.name), underlayDevice)...) {
						a.write(socket, netip.AddrPortFrom(addr, port), packet)
					}
				}
			}
		}
	}
}

func (a *attacker) write(socket *net.UDPConn, to netip.AddrPort, packet []byte) {
	if _, err := socket.WriteToUDPAddrPort(packet, to); err == nil {
		a.sent++
	}
}

// inTunnel returns a packet as the tunnels of a host on a port carry it.
func (a *attacker) inTunnel(h *lab.Host, port uint16, packet []byte) (out [][]byte) {
	switch vxlan, udp, _ := a.network.ports(); port {
	case vxlan:
		for _, mac := range hardwareAddrs(h, a.network.name) {
			out = append(out, lab.InVXLAN(byte(a.network.number), mac, packet))
		}
	case udp:
		out = append(out, packet)
	}
	return out
}

// devicesOf returns the names of the devices that a network may have.
func devicesOf(network string) []string {
	return []string{devicePrefix + network, devicePrefix + network + otherDevice}
}

// addrsOn returns a host's addresses on devices, but for those of the link.
func addrsOn(h *lab.Host, devices ...string) (out []netip.Addr) {
	eachDevice(h, devices, func(device *net.Interface) {
		addrs, _ := device.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
				out = append(out, p.Addr())
			}
		}
	})
	return out
}

// hardwareAddrs returns those of a host's devices of a network.
func hardwareAddrs(h *lab.Host, network string) (out []net.HardwareAddr) {
	eachDevice(h, devicesOf(network), func(device *net.Interface) {
		if len(device.HardwareAddr) > 0 {
			out = append(out, device.HardwareAddr)
		}
	})
	return out
}

// eachDevice calls do for those of the devices that a host has.
func eachDevice(h *lab.Host, names []string, do func(*net.Interface)) {
	_ = h.Do(func() error {
		for _, name := range names {
			if device, err := net.InterfaceByName(name); err == nil {
				do(device)
			}
		}
		return nil
	})
}

func (a *attacker) close() {
	for _, conn := range slices.Concat(a.sockets, a.services) {
		_ = conn.Close()
	}
}

// drain counts the datagrams that sockets have received.
func drain(all []*net.UDPConn) (n int) {
	for _, conn := range all {
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		for buffer := make([]byte, 2000); ; n++ {
			if _, _, err := conn.ReadFrom(buffer); err != nil {
				break
			}
		}
	}
	return n
}
