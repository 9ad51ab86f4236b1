// Package pathtest finds out whether packets over a device arrive: it sends test packets to peers and recognizes the
// answers.
package pathtest

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

const (
	// answerTime is how long Test waits for answers. Later ones are seen by the next call.
	answerTime = 50 * time.Millisecond
	// testHops is the number of hops that a packet to the peer itself may make.
	testHops = 64
)

// A Packet is sent to an address of a peer, and to one behind the peer, which answers that the packet may make no more
// hops: its firewall may drop what is for the host itself.
type Packet struct {
	ID       uint64
	From, To netip.Addr
	Behind   netip.Addr
	Via      netip.Addr // the neighbour on the device to which it is sent
}

// Tester sends and receives test packets below the firewall, so that rules about this host do not apply to them. It
// opens its socket in the network namespace of the thread that calls Test first.
type Tester struct {
	fd     int // of a packet socket (packet(7)), -1 while there is none
	cookie [8]byte
}

// New returns a tester that has no socket yet.
func New() *Tester {
	t := &Tester{fd: -1}
	rand.Read(t.cookie[:]) // never fails
	return t
}

func (t *Tester) Close() {
	if t.fd >= 0 {
		_ = unix.Close(t.fd)
		t.fd = -1
	}
}

// open opens the socket. It receives ICMP of both families from all devices, except what this host sends.
func (t *Tester) open() error {
	if t.fd >= 0 {
		return nil
	}
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 8},
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IPV6, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: 5},
		bpf.LoadAbsolute{Off: 9, Size: 1}, // the protocol (RFC 791)
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_ICMP, SkipTrue: 2, SkipFalse: 3},
		bpf.LoadAbsolute{Off: 6, Size: 1}, // the next header (RFC 8200)
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_ICMPV6, SkipTrue: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return err
	}
	program := make([]unix.SockFilter, len(filter))
	for i, f := range filter {
		program[i] = unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	// With protocol 0, nothing is received before the filter is in place.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL)}))
	if err != nil {
		return errors.Join(fmt.Errorf("set up a packet socket: %w", err), unix.Close(fd))
	}
	t.fd = fd
	return nil
}

// bigEndian returns a number of two bytes in the order of the network.
func bigEndian(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// Test sends test packets over a device, and waits a moment for answers. It returns the ids of those packets, and of
// earlier ones, that were answered since the last call.
func (t *Tester) Test(link string, packets []Packet) (map[uint64]bool, error) {
	device, err := net.InterfaceByName(link)
	if err != nil {
		return nil, err
	}
	if err := t.open(); err != nil {
		return nil, err
	}
	known, err := neighbours(device)
	if err != nil {
		return nil, err
	}
	answered := map[uint64]bool{}
	var errs []error
	waiting := map[uint64]bool{}
	for _, p := range packets {
		t.receive(answered) // of earlier packets: the socket has room for some hundred
		if answered[p.ID] {
			continue
		}
		waiting[p.ID] = true
		errs = append(errs, t.send(device, p, known))
	}
	maps.DeleteFunc(waiting, func(id uint64, _ bool) bool { return answered[id] })
	for end := time.Now().Add(answerTime); len(waiting) > 0; {
		left := time.Until(end)
		if left <= 0 {
			break
		}
		fds := []unix.PollFd{{Fd: int32(t.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			break
		}
		t.receive(answered)
		for id := range answered {
			delete(waiting, id)
		}
	}
	return answered, errors.Join(errs...)
}

// send sends a test packet: an echo request to the peer, and one that may make no hop to the address behind it.
func (t *Tester) send(device *net.Interface, p Packet, known map[netip.Addr]net.HardwareAddr) error {
	to := &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_IP), Ifindex: device.Index}
	if p.To.Is6() {
		to.Protocol = bigEndian(unix.ETH_P_IPV6)
	}
	if len(device.HardwareAddr) > 0 {
		mac := known[p.Via]
		if mac == nil {
			ask(p.Via)
			return nil
		}
		to.Halen = uint8(copy(to.Addr[:], mac))
	}
	for _, one := range []struct {
		to   netip.Addr
		hops int
	}{{p.To, testHops}, {p.Behind, 1}} {
		packet, err := t.packet(p.ID, p.From, one.to, one.hops)
		if err != nil {
			return err
		}
		if err := unix.Sendto(t.fd, packet, unix.MSG_DONTWAIT, to); err != nil {
			return fmt.Errorf("send to %s by %s: %w", one.to, device.Name, err)
		}
	}
	return nil
}

// neighbours returns the hardware addresses of the neighbours on a device that the kernel knows, none for a device
// without such addresses.
func neighbours(device *net.Interface) (map[netip.Addr]net.HardwareAddr, error) {
	known := map[netip.Addr]net.HardwareAddr{}
	if len(device.HardwareAddr) == 0 {
		return known, nil
	}
	all, err := netlink.NeighList(device.Index, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range all {
		if ip, ok := netip.AddrFromSlice(n.IP); ok && isUsable(n) {
			known[ip.Unmap()] = n.HardwareAddr
		}
	}
	return known, nil
}

// isUsable reports whether an entry has the hardware address of a neighbour.
func isUsable(n netlink.Neigh) bool {
	isNeighbour := n.Family == netlink.FAMILY_V4 || n.Family == netlink.FAMILY_V6
	return isNeighbour && len(n.HardwareAddr) > 0 && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) == 0
}

// ask makes the kernel ask for the hardware address of a neighbour.
func ask(addr netip.Addr) {
	const discard = 9
	if conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, discard))); err == nil {
		_, _ = conn.Write([]byte{0}) // only the question matters
		_ = conn.Close()
	}
}

// packet returns an echo request with this tester's cookie and an id.
func (t *Tester) packet(id uint64, from, to netip.Addr, hops int) ([]byte, error) {
	data := binary.BigEndian.AppendUint64(t.cookie[:len(t.cookie):len(t.cookie)], id)
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: int(uint16(id)), Seq: 1, Data: data}}
	if to.Is6() {
		m.Type = ipv6.ICMPTypeEchoRequest
		body, err := m.Marshal(icmp.IPv6PseudoHeader(from.AsSlice(), to.AsSlice()))
		if err != nil {
			return nil, err
		}
		header := []byte{0x60, 0, 0, 0, 0, byte(len(body)), unix.IPPROTO_ICMPV6, byte(hops)} // RFC 8200
		header = append(append(header, from.AsSlice()...), to.AsSlice()...)
		return append(header, body...), nil
	}
	body, err := m.Marshal(nil)
	if err != nil {
		return nil, err
	}
	header := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, byte(hops), unix.IPPROTO_ICMP, 0, 0} // RFC 791
	header = append(append(header, from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(header[2:], uint16(len(header)+len(body)))
	binary.BigEndian.PutUint16(header[10:], checksum(header))
	return append(header, body...), nil
}

// checksum returns the checksum of a header (RFC 1071).
func checksum(header []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// receive adds the ids of the packets that were answered, by an echo or by an error that quotes the packet.
func (t *Tester) receive(answered map[uint64]bool) {
	var buffer [2048]byte
	for {
		n, _, err := unix.Recvfrom(t.fd, buffer[:], unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return
		}
		if id, ok := t.idIn(buffer[:n]); ok {
			answered[id] = true
		}
	}
}

// idIn returns the id of the test packet that a packet of ICMP answers.
func (t *Tester) idIn(packet []byte) (id uint64, ok bool) {
	kind, reply, exceeded := 40, byte(ipv6.ICMPTypeEchoReply), byte(ipv6.ICMPTypeTimeExceeded) // RFC 8200
	if len(packet) > 0 && packet[0]>>4 == 4 {
		kind, reply, exceeded = int(packet[0]&15)*4, byte(ipv4.ICMPTypeEchoReply), byte(ipv4.ICMPTypeTimeExceeded)
	}
	at := bytes.Index(packet, t.cookie[:]) // of the packet itself, or of one that an error quotes
	if at <= kind || packet[kind] != reply && packet[kind] != exceeded || len(packet) < at+16 {
		return 0, false
	}
	return binary.BigEndian.Uint64(packet[at+8:]), true
}
