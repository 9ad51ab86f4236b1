package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/udp/offload"
)

const (
	// socketBuffer is the buffer size requested for each direction, in bytes. With the default of
	// 208 KiB, bursts of small packets are lost before the reader wakes up.
	socketBuffer = 8 << 20

	// messages is the maximum number of messages per system call.
	messages = 32

	// maxIOV is the maximum number of parts of a message: a header and a payload for each segment,
	// and one more for a frame's vnet header. The kernel accepts 1,024.
	maxIOV = 2*offload.MaxSegments + 1
)

// socket is one UDP socket.
//
// wireguard-go's conn.StdNetBind does not fit: it listens on the wildcard addresses of both
// families, so that two networks could not share a port on two addresses. It also copies payloads
// together before it sends them, and boxes each sender in an Endpoint.
type socket struct {
	fd      int
	failed  int    // failed receptions in a row
	gro     bool   // UDP_GRO is on
	segment bool   // the kernel supports UDP_SEGMENT
	lost    uint32 // the last value of SO_RXQ_OVFL

	in  mmsg
	mu  sync.Mutex // for out
	out mmsg
}

var _ Bind = (*socket)(nil)

// listen binds sockets to one address and port in the calling thread's network namespace, and to a
// VRF unless vrf is 0. If the port is in use, the error names it and wraps EADDRINUSE.
func listen(at netip.AddrPort, vrf, sockets int, want offloads) (_ []*socket, err error) {
	var out []*socket
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(out))
		}
	}()
	for i := range sockets {
		s, err := newSocket(at, want)
		if err != nil {
			return out, fmt.Errorf("listen on udp port %d of %s: %w", at.Port(), at.Addr(), err)
		}
		out = append(out, s)
		if vrf != 0 {
			if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, vrf); err != nil {
				return out, fmt.Errorf("bind a socket to the VRF with index %d: %w", vrf, err)
			}
		}
		// The first socket is bound without SO_REUSEPORT, so that binding fails if any program has
		// the port, even one that would share it. Sharing is switched on afterwards.
		if i > 0 {
			err = s.share()
		}
		if err == nil {
			err = unix.Bind(s.fd, sockaddr(at))
		}
		if err == nil && i == 0 && sockets > 1 {
			err = s.share()
		}
		switch {
		case errors.Is(err, unix.EADDRINUSE):
			return out, kernel.PortInUse(int(at.Port()), "")
		case err != nil:
			return out, fmt.Errorf("listen on udp port %d of %s: %w", at.Port(), at.Addr(), err)
		}
	}
	return out, nil
}

func newSocket(at netip.AddrPort, want offloads) (*socket, error) {
	domain := unix.AF_INET
	if at.Addr().Is6() {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	s := &socket{fd: fd}
	s.in.iov = make([]unix.Iovec, 0, messages)
	s.out.iov = make([]unix.Iovec, 0, messages*maxIOV)
	if err := tuneSocket(fd, at.Addr()); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	// Setting the size to 0 tests whether the kernel supports the option. The actual size is passed
	// with each message.
	s.segment = want.segment && unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, 0) == nil
	// Without it, datagrams arrive one by one.
	s.gro = want.gro && unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1) == nil
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1); err != nil {
		return nil, errors.Join(fmt.Errorf("count overflows: %w", err), s.Close())
	}
	return s, nil
}

func (s *socket) share() error {
	return unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}

// tuneSocket sets the options that must be in place before the first packet.
//
// Outer packets are sent without DF, like those of the kernel's VXLAN and WireGuard. The advertised
// MTU makes them fit; where a path is narrower than the underlay's device, they are fragmented
// rather than silently lost. Inner packets keep their own DF, which the kernel handles at the
// device.
func tuneSocket(fd int, at netip.Addr) error {
	var err error
	if at.Is4() {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
	} else {
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT))
	}
	if err != nil {
		return fmt.Errorf("allow outer fragments: %w", err)
	}
	// Exceeding the sysctl's limit needs CAP_NET_ADMIN. A smaller buffer is slower, not wrong.
	for force, plain := range map[int]int{unix.SO_RCVBUFFORCE: unix.SO_RCVBUF, unix.SO_SNDBUFFORCE: unix.SO_SNDBUF} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, socketBuffer) != nil {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, socketBuffer); err != nil {
				return fmt.Errorf("set socket buffer: %w", err)
			}
		}
	}
	return nil
}

// FD implements Bind.
func (s *socket) FD() int { return s.fd }

// Receive implements Bind.
func (s *socket) Receive(in []offload.Inbound) (int, error) {
	in = in[:min(len(in), messages)]
	s.in.forReceiving(in)
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.in.headers[0])),
			uintptr(len(in)), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case errno == 0:
			s.lost = s.in.received(in[:n], s.lost)
			s.failed = 0
			return int(n), nil
		case errno == unix.EAGAIN:
			return 0, nil
		case errno == unix.EINTR:
		case s.failed == patience:
			return 0, errno
		default:
			s.failed++ // a pending error is reported only once
			return 0, nil
		}
	}
}

// Send implements Bind.
func (s *socket) Send(out []offload.Outbound) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := 0
	for done < len(out) {
		chunk := out[done:min(len(out), done+messages)]
		n, errno := 0, unix.EOPNOTSUPP
		if s.segment || len(chunk[0].Segments) == 1 {
			s.out.reset()
			for i := range chunk {
				if !s.segment && len(chunk[i].Segments) > 1 {
					chunk = chunk[:i]
					break
				}
				s.out.add(i, &chunk[i], chunk[i].Segments)
			}
			n, errno = s.sendmmsg(len(chunk))
		}
		if done += n; errno == 0 {
			continue
		}
		if len(out[done].Segments) == 1 || errno == unix.EPERM || errno == unix.EAGAIN {
			return done, errno
		}
		// The kernel does not fragment segments where a path is narrower, and some devices and
		// policies (IPsec) do not support them.
		out[done].Alone = true
		if err := s.sendEach(&out[done]); err != nil {
			return done, err
		}
		done++
	}
	return done, nil
}

// sendEach sends the segments of a message as separate messages.
func (s *socket) sendEach(o *offload.Outbound) error {
	var failed error
	for o.Sent = 0; o.Sent < len(o.Segments); {
		chunk := o.Segments[o.Sent:min(len(o.Segments), o.Sent+messages)]
		s.out.reset()
		for i := range chunk {
			s.out.add(i, o, chunk[i:i+1])
		}
		n, errno := s.sendmmsg(len(chunk))
		o.Sent += n
		if errno != 0 {
			failed = errno
			break
		}
	}
	return failed
}

// sendmmsg sends the first n messages. It returns how many were sent and why the next was not.
func (s *socket) sendmmsg(n int) (int, unix.Errno) {
	done := 0
	for done < n {
		sent, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.out.headers[done])),
			uintptr(n-done), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case errno == 0:
			done += int(sent)
		case errno != unix.EINTR:
			return done, errno
		}
	}
	return done, 0
}

// Close implements Bind.
func (s *socket) Close() error { return closeOnce(&s.fd) }
