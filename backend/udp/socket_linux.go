package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend/udp/offload"
)

const (
	// socketBuffer is asked for in each direction, bytes. With the default of
	// 208 KiB bursts of small packets are lost before the reader wakes.
	socketBuffer = 8 << 20

	// messages is the most one system call takes or brings.
	messages = 32

	// maxIOV is the most parts a message may have: a header and a payload for
	// each segment, and one more for a frame's vnet header. The kernel takes
	// 1,024.
	maxIOV = 2*offload.MaxSegments + 1
)

// socket is one UDP socket.
//
// wireguard-go's conn.StdNetBind does not fit: it listens on the wildcard
// addresses of both families, so that two networks could not share a port on
// two addresses, copies payloads together before it sends them, and boxes each
// sender in an Endpoint.
type socket struct {
	fd      int
	failed  int    // receptions in a row
	gro     bool   // UDP_GRO is on
	segment bool   // UDP_SEGMENT is known
	lost    uint32 // SO_RXQ_OVFL, as last told

	in  mmsg
	mu  sync.Mutex // for out
	out mmsg
}

var _ Bind = (*socket)(nil)

// listen binds sockets to one address and port in the calling thread's network
// namespace. A port in use is EADDRINUSE in an error that names it.
func listen(at netip.AddrPort, sockets int, want offloads) (_ []*socket, err error) {
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
		// The first is bound without SO_REUSEPORT, so that it fails when anybody
		// has the port, also one who would share it. It shares it afterwards.
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
			return out, fmt.Errorf("udp port %d on %s is used by another program: %w", at.Port(), at.Addr(), unix.EADDRINUSE)
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
	// Setting the size to none asks whether the kernel knows the option. For
	// each message it stands in the message.
	s.segment = want.segment && unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, 0) == nil
	// Without it datagrams come one by one.
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
	// The two families have two types.
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
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
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT))
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

// FD is Bind's.
func (s *socket) FD() int { return s.fd }

// Receive is Bind's.
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
			s.failed++ // pending errors are told once
			return 0, nil
		}
	}
}

// Send is Bind's.
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
		// The kernel does not fragment segments where a path is narrower, and some
		// devices and policies (IPsec) cannot have them.
		out[done].Alone = true
		if err := s.sendEach(&out[done]); err != nil {
			return done, err
		}
		done++
	}
	return done, nil
}

// sendEach sends the segments of a message as messages of their own.
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

// sendmmsg sends the first n messages and returns how many went and why the
// next did not.
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

// Close is Bind's.
func (s *socket) Close() error { return closeOnce(&s.fd) }
