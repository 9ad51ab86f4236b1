package udp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// trafficTime limits how long a test waits for traffic.
const trafficTime = 3 * time.Minute

// option is one socket option.
type option struct {
	level, name int
	value       string
}

func number(level, name, value int) option {
	return option{level, name, string(binary.NativeEndian.AppendUint32(nil, uint32(value)))}
}

func control(options []option) func(_, _ string, raw syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			for _, o := range options {
				failed = errors.Join(failed, unix.SetsockoptString(int(fd), o.level, o.name, o.value))
			}
		})
		return errors.Join(err, failed)
	}
}

// listenUDP opens a socket for the test, with buffers for bursts.
func listenUDP(t *testing.T, ns *nstest.NS, at string, options ...option) *net.UDPConn {
	t.Helper()
	options = append(options, number(unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20), number(unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 8<<20))
	config := net.ListenConfig{Control: control(options)}
	var conn net.PacketConn
	inNS(t, ns, func() (err error) {
		conn, err = config.ListenPacket(t.Context(), "udp", at)
		return err
	})
	t.Cleanup(func() { _ = conn.Close() }) // some tests close it themselves
	if err := conn.SetDeadline(time.Now().Add(trafficTime)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.UDPConn)
}

// listenTCP opens a listener for the test.
func listenTCP(t *testing.T, ns *nstest.NS, at string, options ...option) *net.TCPListener {
	t.Helper()
	config := net.ListenConfig{Control: control(options)}
	var listener net.Listener
	inNS(t, ns, func() (err error) {
		listener, err = config.Listen(t.Context(), "tcp", at)
		return err
	})
	t.Cleanup(func() { _ = listener.Close() })
	tcp := listener.(*net.TCPListener)
	if err := tcp.SetDeadline(time.Now().Add(trafficTime)); err != nil {
		t.Fatal(err)
	}
	return tcp
}

// dialTCP connects for the test.
func dialTCP(t *testing.T, ns *nstest.NS, to string, options ...option) *net.TCPConn {
	t.Helper()
	dialer := net.Dialer{Control: control(options)}
	ctx, cancel := context.WithTimeout(t.Context(), trafficTime)
	defer cancel()
	var conn net.Conn
	inNS(t, ns, func() (err error) {
		conn, err = dialer.DialContext(ctx, "tcp", to) // an IP address is dialled on this thread
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(trafficTime)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// connect returns both ends of one TCP connection.
func connect(t *testing.T, from, to *nstest.NS, addr string, options ...option) (client, server *net.TCPConn) {
	t.Helper()
	listener := listenTCP(t, to, net.JoinHostPort(addr, "0"), options...)
	client = dialTCP(t, from, listener.Addr().String(), options...)
	server, err := listener.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	if err := errors.Join(listener.Close(), server.SetDeadline(time.Now().Add(trafficTime))); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// randomBytes returns n bytes that are the same in every run.
func randomBytes(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data) // never fails
	return data
}

// pour writes data at one end and compares what the other end reads.
func pour(from, to *net.TCPConn, data []byte) error {
	var group errgroup.Group
	group.Go(func() error {
		_, err := from.Write(data)
		return errors.Join(err, from.CloseWrite())
	})
	group.Go(func() error {
		sum := sha256.New()
		n, err := io.Copy(sum, to)
		if err == nil && !bytes.Equal(sum.Sum(nil), sumOf(data)) {
			err = fmt.Errorf("%d bytes arrived and differ from the %d that were sent", n, len(data))
		}
		return err
	})
	return group.Wait()
}

func sumOf(data []byte) []byte {
	sum := sha256.Sum256(data)
	return sum[:]
}

// transfer sends 2 MiB over TCP and compares what arrived.
func transfer(t *testing.T, from, to *nstest.NS, addr string, options ...option) {
	t.Helper()
	client, server := connect(t, from, to, addr, options...)
	if err := pour(client, server, randomBytes(2<<20)); err != nil {
		t.Fatal(err)
	}
}

// cmsg returns one control message for a datagram.
func cmsg(level, kind int, data ...byte) []byte {
	b := make([]byte, unix.CmsgSpace(len(data)))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = int32(level), int32(kind)
	h.SetLen(unix.CmsgLen(len(data)))
	copy(b[unix.CmsgLen(0):], data)
	return b
}

// numbered returns one datagram of a flow. Its number and content can be recovered from it.
func numbered(flow byte, seq uint32, size int) []byte {
	b := make([]byte, size)
	b[0] = flow
	binary.BigEndian.PutUint32(b[1:], seq)
	for i := 5; i < size; i++ {
		b[i] = byte(i) ^ byte(seq) ^ flow
	}
	return b
}

// numberOf is the inverse of numbered. It returns an error for datagrams that were changed,
// truncated or concatenated.
func numberOf(b []byte) (flow byte, seq uint32, err error) {
	if len(b) < 5 {
		return 0, 0, fmt.Errorf("datagram of %d bytes", len(b))
	}
	flow, seq = b[0], binary.BigEndian.Uint32(b[1:])
	if !bytes.Equal(b, numbered(flow, seq, len(b))) {
		return 0, 0, fmt.Errorf("datagram %d of flow %d: %d bytes, not what was sent", seq, flow, len(b))
	}
	return flow, seq, nil
}

// burst is a number of datagrams that are sent in one go.
type burst struct {
	size, count int
	tail        int // size of one more, shorter datagram, or 0
}

// bursts returns bursts that suit segmentation offload and bursts that do not: many small ones,
// many large ones, a shorter last one, few, a single one.
func bursts(largest int) []burst {
	return []burst{
		{64, 60, 0}, {largest, 1, 0}, {1200, 50, 700}, {8, 1, 0}, {largest, 44, 9}, {700, 2, 0}, {9, 3, 0},
		{largest, 2, largest - 1}, {333, 60, 332},
	}
}

// sizes returns the sizes of a burst's datagrams.
func (b burst) sizes() []int {
	var sizes []int
	for range b.count {
		sizes = append(sizes, b.size)
	}
	if b.tail > 0 {
		sizes = append(sizes, b.tail)
	}
	return sizes
}

// send writes the datagrams of a burst, numbered from seq on, with control messages, and returns
// the number after the last. If segmented, it makes one call with UDP_SEGMENT, which puts one super
// packet on the container's device.
func (b burst) send(conn *net.UDPConn, to netip.AddrPort, flow byte, seq uint32, segmented bool, with ...[]byte) (uint32, error) {
	var all []byte
	for _, size := range b.sizes() {
		datagram := numbered(flow, seq, size)
		seq++
		if all = append(all, datagram...); segmented {
			continue
		}
		if _, _, err := conn.WriteMsgUDPAddrPort(datagram, bytes.Join(with, nil), to); err != nil {
			return seq, fmt.Errorf("send %d bytes: %w", size, err)
		}
	}
	if segmented {
		with = append(with, cmsg(unix.SOL_UDP, unix.UDP_SEGMENT, binary.NativeEndian.AppendUint16(nil, uint16(b.size))...))
		if _, _, err := conn.WriteMsgUDPAddrPort(all, bytes.Join(with, nil), to); err != nil {
			return seq, fmt.Errorf("send %d bytes in segments of %d: %w", len(all), b.size, err)
		}
	}
	return seq, nil
}

// udpPacket returns a complete IPv4 packet from port 9 to port 7, without UDP checksum.
func udpPacket(src, dst [4]byte, payload string) []byte {
	pkt := []byte{0x45, 0, 0, byte(28 + len(payload)), 0, 1, 0, 0, 64, 17, 0, 0}
	pkt = append(append(pkt, src[:]...), dst[:]...)
	sum := checksum(pkt)
	pkt[10], pkt[11] = byte(sum>>8), byte(sum)
	pkt = append(pkt, 0, 9, 0, 7, 0, byte(8+len(payload)), 0, 0)
	return append(pkt, payload...)
}

// checksum returns the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
