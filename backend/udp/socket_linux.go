package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
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
	*descriptor
	at      netip.AddrPort
	segment atomic.Bool // UDP_SEGMENT works

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
	d, err := newDescriptor(fd)
	if err != nil {
		return nil, err
	}
	s := &socket{descriptor: d, at: at}
	s.in.iov = make([]unix.Iovec, 0, messages)
	s.out.iov = make([]unix.Iovec, 0, messages*maxIOV)
	if err := tuneSocket(fd, at.Addr()); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	// Setting the size to none asks whether the kernel knows the option. For
	// each message it stands in the message.
	s.segment.Store(want.segment && unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, 0) == nil)
	if want.gro {
		// Without it datagrams come one by one.
		_ = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1)
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

// Receive is Bind's.
func (s *socket) Receive(in []offload.Inbound) (int, error) {
	if !s.enter() {
		return 0, net.ErrClosed
	}
	defer s.leave()
	in = in[:min(len(in), messages)]
	s.in.forReceiving(in)
	for idle := 0; ; {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.in.headers[0])),
			uintptr(len(in)), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case errno == 0:
			s.in.received(in[:n])
			return int(n), nil
		case errno == unix.EINTR:
		case errno != unix.EAGAIN:
			return 0, errno
		case idle < yields:
			idle++
			yield()
		case !s.wait(unix.POLLIN):
			return 0, net.ErrClosed
		}
	}
}

// Send is Bind's.
func (s *socket) Send(out []offload.Outbound) (int, error) {
	if !s.enter() {
		return 0, net.ErrClosed
	}
	defer s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	done := 0
	for done < len(out) {
		chunk := out[done:min(len(out), done+messages)]
		if !s.segment.Load() {
			if err := s.sendEach(&chunk[0]); err != nil {
				return done, err
			}
			done++
			continue
		}
		s.out.reset()
		for i := range chunk {
			s.out.add(i, &chunk[i], chunk[i].Segments)
		}
		n, errno := s.sendmmsg(len(chunk))
		done += n
		if errno == 0 {
			continue
		}
		if len(out[done].Segments) == 1 || errno == unix.EPERM {
			return done, s.sendError(errno)
		}
		// A path narrower than the segments, which the kernel does not fragment,
		// or a device or a policy (IPsec) that cannot have it: EIO, EINVAL.
		if errno == unix.EIO {
			s.segment.Store(false)
		}
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
			failed = s.sendError(errno)
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
		case errno == unix.EINTR:
		case errno == unix.EAGAIN && s.wait(unix.POLLOUT):
		default:
			return done, errno
		}
	}
	return done, 0
}

func (s *socket) sendError(errno unix.Errno) error {
	if s.closed.Load() {
		return net.ErrClosed
	}
	return errno
}

// Close is Bind's.
func (s *socket) Close() error { return s.close() }
