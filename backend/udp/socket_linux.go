package udp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// socketBuffer is asked for in each direction, bytes. With the default of 208
// KiB bursts of small packets are lost before the reader wakes.
const socketBuffer = 8 << 20

// socket is one UDP socket, one datagram a call.
//
// wireguard-go's conn.StdNetBind does not fit: it listens on the wildcard
// addresses of both families, so that two networks could not share a port on
// two addresses, and boxes each sender in an Endpoint.
type socket struct {
	conn *net.UDPConn
	at   netip.AddrPort
}

var _ Bind = (*socket)(nil)

// listen binds a socket in the calling thread's network namespace. A port in
// use is EADDRINUSE in an error that names it.
func listen(ctx context.Context, at netip.AddrPort) (*socket, error) {
	network := "udp4"
	if at.Addr().Is6() {
		network = "udp6"
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = tuneSocket(int(fd), at.Addr()) })
		return errors.Join(err, failed)
	}}
	conn, err := config.ListenPacket(ctx, network, at.String())
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("udp port %d on %s is used by another program: %w", at.Port(), at.Addr(), unix.EADDRINUSE)
	case err != nil:
		return nil, fmt.Errorf("listen on udp port %d of %s: %w", at.Port(), at.Addr(), err)
	}
	return &socket{conn: conn.(*net.UDPConn), at: at}, nil
}

// tuneSocket sets what must hold before the first packet.
//
// Outer packets go without DF, as those of the kernel's VXLAN and WireGuard
// do: the advertised MTU makes them fit, and where a path is narrower than the
// underlay's device they are fragmented rather than lost in silence. Inner
// packets keep their own DF, which the kernel answers at the device.
func tuneSocket(fd int, at netip.Addr) error {
	var err error
	if at.Is4() {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
	} else {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT)
	}
	if err != nil {
		return fmt.Errorf("allow outer fragments: %w", err)
	}
	// Past the sysctl's limit needs CAP_NET_ADMIN; less is slower, not wrong.
	for force, plain := range map[int]int{unix.SO_RCVBUFFORCE: unix.SO_RCVBUF, unix.SO_SNDBUFFORCE: unix.SO_SNDBUF} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, socketBuffer) != nil {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, socketBuffer); err != nil {
				return fmt.Errorf("set socket buffer: %w", err)
			}
		}
	}
	return nil
}

// Receive is Bind's.
func (s *socket) Receive(bufs [][]byte, sizes []int, from []netip.AddrPort) (int, error) {
	n, sender, err := s.conn.ReadFromUDPAddrPort(bufs[0])
	if err != nil {
		return 0, err
	}
	sizes[0] = n
	from[0] = netip.AddrPortFrom(sender.Addr().Unmap(), sender.Port())
	return 1, nil
}

// Send is Bind's.
func (s *socket) Send(pkts [][]byte, to netip.AddrPort) (int, error) {
	for i, pkt := range pkts {
		if _, err := s.conn.WriteToUDPAddrPort(pkt, to); err != nil {
			return i, err
		}
	}
	return len(pkts), nil
}

// BatchSize is Bind's.
func (s *socket) BatchSize() int { return 1 }

// Close is Bind's.
func (s *socket) Close() error {
	if err := s.conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
