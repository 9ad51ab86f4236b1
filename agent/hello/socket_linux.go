package hello

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// errorPause is the time after an error of the kernel until a socket is read again.
const errorPause = time.Second

// udpSocket implements Socket in the namespace that it was opened in.
type udpSocket struct {
	conn    *net.UDPConn
	own     netip.Addr
	receive func(from netip.Addr, message []byte)
	links   atomic.Pointer[map[int]bool] // indexes of the devices that Accept named
	reader  sync.WaitGroup
}

// ListenUDP implements Listen.
func ListenUDP(ctx context.Context, own netip.Addr, receive func(from netip.Addr, message []byte)) (Socket, error) {
	network, level, option := "udp4", unix.SOL_IP, unix.IP_PKTINFO
	if own.Is6() {
		network, level, option = "udp6", unix.SOL_IPV6, unix.IPV6_RECVPKTINFO
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }), err)
	}}
	conn, err := config.ListenPacket(ctx, network, netip.AddrPortFrom(own, Port).String())
	if err != nil {
		return nil, err
	}
	s := &udpSocket{conn: conn.(*net.UDPConn), own: own, receive: receive}
	s.links.Store(&map[int]bool{})
	s.reader.Go(s.read)
	return s, nil
}

// Accept implements Socket.
func (s *udpSocket) Accept(links []string) {
	indexes := map[int]bool{}
	for _, name := range links {
		if link, err := net.InterfaceByName(name); err == nil {
			indexes[link.Index] = true
		}
	}
	s.links.Store(&indexes)
}

// Send implements Socket.
func (s *udpSocket) Send(to netip.Addr, message []byte) error {
	_, err := s.conn.WriteToUDPAddrPort(message, netip.AddrPortFrom(to, Port))
	return err
}

// Close implements Socket. It may be called repeatedly.
func (s *udpSocket) Close() error {
	err := s.conn.Close()
	s.reader.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// read delivers messages until the socket is closed.
func (s *udpSocket) read() {
	message, control := make([]byte, maxMessage+1), make([]byte, 128)
	for {
		n, controlLen, _, from, err := s.conn.ReadMsgUDPAddrPort(message, control)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(errorPause)
			continue
		}
		if from.Port() == Port && (*s.links.Load())[s.arrivalLink(control[:controlLen])] {
			s.receive(from.Addr().Unmap(), message[:n])
		}
	}
}

// arrivalLink returns the index of the device by which a packet arrived, 0 if that is not known.
func (s *udpSocket) arrivalLink(control []byte) int {
	if s.own.Is6() {
		var c ipv6.ControlMessage
		if c.Parse(control) != nil {
			return 0
		}
		return c.IfIndex
	}
	var c ipv4.ControlMessage
	if c.Parse(control) != nil {
		return 0
	}
	return c.IfIndex
}
