package probe

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/retry"
)

// ErrNoCapability reports that this process may not open the sockets of a probe.
var ErrNoCapability = errors.New("a probe needs CAP_NET_RAW, which this agent lacks: grant it " +
	"(AmbientCapabilities of its systemd unit) or run it as root")

const (
	receiveBuffer = 16 << 20 // bytes: one second of full answers, in case this process does not run for so long
	ttl           = 64
)

// sockets implements line with raw sockets of the namespace it was opened in. It uses only the messages of
// golang.org/x/net: that package's connections can set neither a packet's hop limit in IPv4 nor that it goes to a
// neighbour.
type sockets struct {
	v4, v6  *net.IPConn
	onLink  *net.IPConn // sends only to neighbours, and receives nothing
	id      int
	cookie  cookie
	readers sync.WaitGroup

	slots chan struct{} // has room for maxPending: holds one element per packet until its outcome is known

	reading sync.Mutex // held from reading a packet off a socket until it is delivered
	buf     []byte

	mu           sync.Mutex
	seq          uint16
	pending      map[pendingKey]*pending
	errorsByPort map[netip.AddrPort][]answer // for the addresses that hear was called for
	next         time.Time                   // when the next packet may leave
}

type pendingKey struct {
	v6  bool
	seq int
}

type pending struct {
	to     netip.Addr
	sent   time.Time
	answer chan answer // room for one
}

var _ pinger = (*sockets)(nil)

// open opens the sockets in the calling thread's network namespace.
func open(ctx context.Context) (_ *sockets, err error) {
	s := &sockets{slots: make(chan struct{}, maxPending), buf: make([]byte, 1<<16),
		pending: map[pendingKey]*pending{}, errorsByPort: map[netip.AddrPort][]answer{}}
	var random [2]byte
	_, _ = rand.Read(random[:]) // never fails
	_, _ = rand.Read(s.cookie[:])
	s.id = int(binary.BigEndian.Uint16(random[:]))
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.v4, err = listen(ctx, "ip4:icmp", tune4); err != nil {
		return nil, err
	}
	if s.onLink, err = listen(ctx, "ip4:icmp", tuneOnLink); err != nil {
		return nil, err
	}
	// A host without IPv6 has no IPv6 peers.
	if s.v6, err = listen(ctx, "ip6:ipv6-icmp", tune6); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, err
	}
	s.readers.Go(func() { s.read(s.v4, parse4) })
	if s.v6 != nil {
		s.readers.Go(func() { s.read(s.v6, parse6) })
	}
	return s, nil
}

func listen(ctx context.Context, network string, tune func(fd int) error) (*net.IPConn, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = tune(int(fd)) }), err)
	}}
	conn, err := config.ListenPacket(ctx, network, "")
	switch {
	case errors.Is(err, unix.EPERM):
		return nil, ErrNoCapability
	case err != nil:
		return nil, fmt.Errorf("open a raw socket: %w", err)
	}
	return conn.(*net.IPConn), nil
}

// tune4 makes packets leave whole or not at all, whatever path MTU the kernel has learned: that MTU is what the probe
// measures.
func tune4(fd int) error {
	// ICMP_FILTER of raw(7) hides the types whose bits are set
	const filter, echoReply, unreachable, exceeded, problem = 1, 0, 3, 11, 12
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE),
		unix.SetsockoptInt(fd, unix.SOL_RAW, filter, int(^int32(1<<echoReply|1<<unreachable|1<<exceeded|1<<problem))),
		setReceiveBuffer(fd))
}

// setReceiveBuffer sets the size of a socket's buffer, beyond net.core.rmem_max where this process has the right to
// that.
func setReceiveBuffer(fd int) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
}

func tuneOnLink(fd int) error {
	const filter = 1
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_RAW, filter, -1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DONTROUTE, 1))
}

func tune6(fd int) error {
	const echoReply = 129
	hide := unix.ICMPv6Filter{}
	for i := range hide.Data {
		hide.Data[i] = ^uint32(0)
	}
	for _, seen := range []int{1, 2, 3, 4, echoReply} { // the errors, and the answer
		hide.Data[seen/32] &^= 1 << (seen % 32)
	}
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
		unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_DONTFRAG, 1),
		unix.SetsockoptICMPv6Filter(fd, unix.SOL_ICMPV6, unix.ICMPV6_FILTER, &hide),
		setReceiveBuffer(fd))
}

// close stops the readers and waits for them. It may be called repeatedly.
func (s *sockets) close() error {
	var errs []error
	for _, conn := range []*net.IPConn{s.v4, s.onLink, s.v6} {
		if conn != nil {
			if err := conn.Close(); !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
		}
	}
	s.readers.Wait()
	return errors.Join(errs...)
}

// read delivers received packets until the socket is closed.
func (s *sockets) read(conn *net.IPConn, parse func([]byte) (message, bool)) {
	raw, err := conn.SyscallConn()
	for err == nil {
		err = raw.Read(func(fd uintptr) bool { return s.drain(int(fd), parse) })
	}
}

// catchUp delivers the packets already received for a family: on a busy host a reader may lag behind its socket, and
// an answer that arrived in time must not count as lost.
func (s *sockets) catchUp(v6 bool) {
	conn, parse := s.v4, parse4
	if v6 {
		conn, parse = s.v6, parse6
	}
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { s.drain(int(fd), parse) }) // a closed one has no packets
	}
}

// drain delivers the packets waiting on a socket; it returns false if there were none.
func (s *sockets) drain(fd int, parse func([]byte) (message, bool)) (any bool) {
	s.reading.Lock()
	defer s.reading.Unlock()
	for {
		n, from, err := unix.Recvfrom(fd, s.buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return any
		}
		any = true
		if m, ok := parse(s.buf[:n]); ok {
			s.deliver(m, sender(from))
		}
	}
}

func sender(a unix.Sockaddr) netip.Addr {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr)
	}
	return netip.Addr{}
}

// deliver hands a message to the packet's waiting caller.
func (s *sockets) deliver(m message, from netip.Addr) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !m.echo {
		// Any host may send any error: room is reserved for errors of the destination itself.
		const most, ofOthers = 100, 50
		at := netip.AddrPortFrom(m.to, uint16(m.port))
		recorded, asked := s.errorsByPort[at]
		if asked && (len(recorded) < ofOthers || len(recorded) < most && from == m.to) {
			s.errorsByPort[at] = append(recorded, answer{outcome: gotError, from: from, reason: m.reason, mtu: m.mtu})
		}
		return
	}
	to := m.to
	if m.reply {
		to = from
	}
	key := pendingKey{to.Is6(), m.seq}
	p := s.pending[key]
	if p == nil || m.id != s.id || p.to != to || m.reply && m.cookie != s.cookie {
		return
	}
	delete(s.pending, key)
	a := answer{outcome: gotReply, from: from, reason: m.reason, mtu: m.mtu, roundTrip: now.Sub(p.sent)}
	if !m.reply {
		a.outcome = gotError
	}
	p.answer <- a
}

// recordErrors starts recording errors about UDP packets to a port.
func (s *sockets) recordErrors(to netip.Addr, port int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := netip.AddrPortFrom(to, uint16(port)); s.errorsByPort[at] == nil {
		s.errorsByPort[at] = []answer{}
	}
}

// tunnelErrors implements line.
func (s *sockets) tunnelErrors(to netip.Addr, port int) []answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]answer(nil), s.errorsByPort[netip.AddrPortFrom(to, uint16(port))]...)
}

// send implements line.
func (s *sockets) send(ctx context.Context, e echo, timeout time.Duration) func() answer {
	at := func(a answer) func() answer { return func() answer { return a } }
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return at(answer{outcome: interrupted})
	}
	if !s.waitForTurn(ctx) {
		<-s.slots
		return at(answer{outcome: interrupted})
	}
	key, p, err := s.reserve(e.to)
	if err != nil {
		<-s.slots
		return at(answer{outcome: notSent, reason: err.Error()})
	}
	if err := s.write(e, key.seq); err != nil {
		s.forget(key, p)
		return at(answer{outcome: notSent, reason: sendErrorText(err)})
	}
	return func() answer {
		defer s.forget(key, p)
		return s.await(ctx, p, timeout-time.Since(p.sent))
	}
}

// forget removes a packet from those awaiting an answer.
func (s *sockets) forget(key pendingKey, p *pending) {
	s.mu.Lock()
	if s.pending[key] == p {
		delete(s.pending, key)
	}
	s.mu.Unlock()
	<-s.slots
}

// await blocks until a packet is answered, timeout is over, or ctx ends.
func (s *sockets) await(ctx context.Context, p *pending, timeout time.Duration) answer {
	select {
	case a := <-p.answer:
		return a
	case <-time.After(timeout):
	case <-ctx.Done():
		return answer{outcome: interrupted}
	}
	s.catchUp(p.to.Is6())
	select {
	case a := <-p.answer:
		return a
	default:
		return answer{outcome: noAnswer}
	}
}

// waitForTurn waits until the next packet may leave; it returns false when ctx ended first.
func (s *sockets) waitForTurn(ctx context.Context) bool {
	s.mu.Lock()
	now := time.Now()
	if s.next.Before(now) {
		s.next = now
	}
	wait := s.next.Sub(now)
	s.next = s.next.Add(pace)
	s.mu.Unlock()
	if wait < time.Millisecond { // too short for timers, and it evens out
		return ctx.Err() == nil
	}
	return retry.Sleep(ctx, wait) == nil
}

// reserve reserves a sequence number that no other pending packet has.
func (s *sockets) reserve(to netip.Addr) (pendingKey, *pending, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range 1 << 16 {
		s.seq++
		key := pendingKey{to.Is6(), int(s.seq)}
		if s.pending[key] == nil {
			p := &pending{to: to, sent: time.Now(), answer: make(chan answer, 1)}
			s.pending[key] = p
			return key, p, nil
		}
	}
	return pendingKey{}, nil, errors.New("too many packets are under way")
}

func (s *sockets) write(e echo, seq int) error {
	data, err := marshal(e.to, s.id, seq, e.size, s.cookie)
	if err != nil {
		return err
	}
	conn, control := s.v4, control4
	switch {
	case e.to.Is6():
		conn, control = s.v6, control6
	case e.link != 0:
		conn = s.onLink
	}
	if conn == nil {
		return unix.EAFNOSUPPORT
	}
	_, _, err = conn.WriteMsgIP(data, control(e), &net.IPAddr{IP: e.to.AsSlice()})
	return err
}

func control4(e echo) []byte {
	info := unix.Inet4Pktinfo{Ifindex: int32(cmp.Or(e.link, e.vrf))}
	if e.from.IsValid() {
		info.Spec_dst = e.from.As4()
	}
	return append(unix.PktInfo4(&info), control(unix.SOL_IP, unix.IP_TTL, e.hops)...)
}

func control6(e echo) []byte {
	var out []byte
	if e.from.IsValid() {
		out = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: e.from.As16(), Ifindex: uint32(e.vrf)})
	}
	return append(out, control(unix.SOL_IPV6, unix.IPV6_HOPLIMIT, e.hops)...)
}

// control returns a control message with one number.
func control(level, kind, value int) []byte {
	if value == 0 {
		value = ttl
	}
	out := make([]byte, unix.CmsgSpace(4))
	header := unix.Cmsghdr{Level: int32(level), Type: int32(kind)}
	header.SetLen(unix.CmsgLen(4))
	if _, err := binary.Encode(out, binary.NativeEndian, header); err != nil {
		return nil
	}
	binary.NativeEndian.PutUint32(out[unix.CmsgLen(0):], uint32(value))
	return out
}

// sendErrorText returns why the kernel did not send, in its own words, or in clearer ones where these are not clear
// enough.
func sendErrorText(err error) string {
	switch {
	case errors.Is(err, unix.EMSGSIZE):
		return exceedsMTU
	case errors.Is(err, unix.EPERM):
		return "a firewall of this host drops it"
	case errors.Is(err, unix.EINVAL):
		return "a blackhole route refuses it, or this host does not have the address to send it from"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return "this host does not have the address to send it from"
	}
	var call *os.SyscallError
	if errors.As(err, &call) {
		err = call.Err
	}
	return err.Error()
}
