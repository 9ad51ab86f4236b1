package offload

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/internal/testkit/nstest"
)

// Features that a device may leave to its reader, from linux/if_tun.h.
const (
	featureCsum = 0x01
	featureTSO  = 0x02 | 0x04 | 0x08 // IPv4, IPv6 and with ECN
	featureUSO  = 0x20 | 0x40        // IPv4 and IPv6

	allFeatures = featureCsum | featureTSO | featureUSO
)

const patience = 2 * time.Minute

// openTUN creates a TUN device with vnet headers in a namespace.
func openTUN(t *testing.T, ns *nstest.NS, name string, features, mtu int) *os.File {
	t.Helper()
	fd := -1
	var err error
	ns.Do(func() { fd, err = attach(name, features) })
	if err != nil {
		t.Fatalf("open %s: %v", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() {
		if err := file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	// The device's queue must hold all segments of a super packet at once.
	ns.Sh(fmt.Sprintf("ip link set %s mtu %d txqueuelen 2000 up", name, mtu))
	return file
}

func attach(name string, features int) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, features); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// router is a kernel between two devices. It accepts super packets from the first, and sends the
// packets they stand for to the second, which has no offloads.
type router struct {
	t       *testing.T
	in, out *os.File
}

func newRouter(t *testing.T) *router {
	ns := nstest.New(t)
	r := &router{t: t, in: openTUN(t, ns, "in", allFeatures, 65535), out: openTUN(t, ns, "out", 0, 65535)}
	ns.Sh(`echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
ip addr add 10.5.9.1/32 dev in
ip route add 10.5.1.0/24 dev in
ip route add 10.5.2.0/24 dev out
ip route add fd00:5:0:1::/64 dev in
ip route add fd00:5:0:2::/64 dev out`)
	return r
}

// cross writes a frame and reads as many packets as it should become.
func (r *router) cross(frame []byte, n int) [][]byte {
	r.t.Helper()
	if _, err := r.in.Write(frame); err != nil {
		r.t.Fatalf("write %x: %v", frame[:HeaderLen], err)
	}
	return r.read(n)
}

// read reads n packets with the test's own destination.
func (r *router) read(n int) (pkts [][]byte) {
	r.t.Helper()
	if err := r.out.SetReadDeadline(time.Now().Add(patience)); err != nil {
		r.t.Fatal(err)
	}
	buf := make([]byte, HeaderLen+65535)
	for len(pkts) < n {
		got, err := r.out.Read(buf)
		if err != nil {
			r.t.Fatalf("packet %d of %d: %v", len(pkts), n, err)
		}
		if pkt := bytes.Clone(buf[HeaderLen:got]); bytes.Equal(pkt[16:18], []byte{10, 5}) || bytes.Equal(pkt[24:32], []byte{0xfd, 0, 0, 5, 0, 0, 0, 2}) {
			pkts = append(pkts, pkt)
		}
	}
	return pkts
}

// TestSplitAsTheKernel checks that the kernel splits each super packet into exactly the packets
// that Split makes. It rejects one whose segment size is its whole payload.
func TestSplitAsTheKernel(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	specs := supers()
	specs["tcp4 all options"] = specs["tcp4 all options"].with(func(s *packetSpec) { s.ipOptions = bytes.Repeat([]byte{1}, 40) })
	specs["tcp6 routing header"] = specs["tcp6"].with(func(s *packetSpec) {
		s.first, s.extensions = 43, slices.Concat([]byte{6, 2, 4, 0, 0, 0, 0, 0}, fill(16))
	})
	specs["udp6 routing header"] = specs["tcp6 routing header"].with(func(s *packetSpec) {
		s.udp, s.extensions = true, slices.Concat([]byte{17}, s.extensions[1:])
	})
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		for _, size := range []int{0, 100, 999, 1420, 5000} { // 0 is only a partial checksum
			for _, ecn := range []uint8{0, TypeECN} {
				spec := specs[name]
				if ecn != 0 && (spec.udp || size == 0) || len(spec.payload) <= size {
					continue
				}
				spec.ttl = 64
				frame := super(spec.build(), size)
				frame[1] |= ecn
				spec.ttl = 63
				mine := super(spec.build(), size)
				mine[1] |= ecn
				var s Splitter
				segs, err := s.Split(mine)
				if err != nil {
					t.Fatalf("%s by %d: %v", name, size, err)
				}
				t.Run(fmt.Sprintf("%s by %d, type %#x", name, size, frame[1]), func(t *testing.T) {
					r.t = t
					checkPackets(t, whole(segs), r.cross(frame, len(segs)))
				})
			}
		}
	}
}

// TestJoinForTheKernel checks that the kernel splits each joined frame into the packets that were
// joined.
func TestJoinForTheKernel(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	for _, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			for _, sizes := range [][]int{
				{1000, 1000}, {1000, 1000, 1}, {999, 999, 7}, {1, 1, 1},
				slices.Repeat([]int{1200}, 54), slices.Repeat([]int{64}, 64), {2, 1},
			} {
				spec := packetSpec{v6: v6, udp: udp, host: 2, id: 0xfff0, seq: 0xffffff00, options: timestamps, ttl: 64}
				pkts := stream(spec, sizes...)
				spec.ttl = 63
				want := stream(spec, sizes...)
				t.Run(fmt.Sprintf("v6 %t, udp %t, %d of %d", v6, udp, len(sizes), sizes[0]), func(t *testing.T) {
					r.t = t
					j := NewJoiner(true, true)
					for _, pkt := range pkts {
						j.Add(pkt)
					}
					frames := j.Frames()
					if len(frames) != 1 {
						t.Fatalf("%d frames", len(frames))
					}
					checkPackets(t, r.cross(slices.Concat(frames[0].Header[:], slices.Concat(frames[0].Parts...)), len(want)), want)
				})
			}
		}
	}
}

// pump carries packets from one device to another as an overlay does: they are split, checked and
// joined again.
type pump struct {
	t             *testing.T
	supers, joins atomic.Int64
}

func (p *pump) run(from, to *os.File, j *Joiner) {
	var s Splitter
	buf := make([]byte, HeaderLen+65535)
	for {
		n, err := from.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				p.t.Error(err)
			}
			return
		}
		s.Reset()
		segs, err := s.Split(buf[:n])
		if err != nil {
			p.t.Errorf("%v: %x", err, buf[:min(n, 100)])
			return
		}
		if len(segs) > 1 {
			p.supers.Add(1)
		}
		j.Reset()
		for _, pkt := range whole(segs) {
			if !refValid(pkt) {
				p.t.Errorf("wrong packet %x", pkt)
			}
			j.Add(pkt)
		}
		for _, f := range j.Frames() {
			if f.Packets > 1 {
				p.joins.Add(1)
			}
			if _, err := to.Write(slices.Concat(f.Header[:], slices.Concat(f.Parts...))); err != nil {
				p.t.Error(err)
				return
			}
		}
	}
}

// refValid reports whether a packet's checksums are correct.
func refValid(pkt []byte) bool {
	at, proto := refTransport(pkt)
	if pkt[0]>>4 == 4 && refSum(pkt[:at]) != 0xffff {
		return false
	}
	return proto != 6 && proto != 17 || refSum(refPseudo(pkt), pkt[at:]) == 0xffff
}

// overlay is two hosts with a pump between their devices.
type overlay struct {
	a, b *nstest.NS
	pump *pump
}

func newOverlay(t *testing.T, features int) *overlay {
	o := &overlay{a: nstest.New(t), b: nstest.New(t), pump: &pump{t: t}}
	devices := map[*nstest.NS]*os.File{}
	for i, ns := range []*nstest.NS{o.a, o.b} {
		devices[ns] = openTUN(t, ns, "tun", features, 1472)
		ns.Sh(fmt.Sprintf(`echo 1 > /proc/sys/net/ipv4/tcp_ecn
ip addr add 10.5.0.%[1]d/24 dev tun
ip addr add fd00:5::%[1]d/64 dev tun nodad`, i+1))
	}
	var pumps sync.WaitGroup
	t.Cleanup(func() {
		for _, dev := range devices {
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		}
		pumps.Wait()
	})
	joined := func() *Joiner { return NewJoiner(features&featureTSO != 0, features&featureUSO != 0) }
	pumps.Go(func() { o.pump.run(devices[o.a], devices[o.b], joined()) })
	pumps.Go(func() { o.pump.run(devices[o.b], devices[o.a], joined()) })
	return o
}

// in runs a function in a namespace.
func in(t *testing.T, ns *nstest.NS, f func() error) {
	t.Helper()
	var err error
	ns.Do(func() { err = f() })
	if err != nil {
		t.Fatal(err)
	}
}

// TestSockets checks that sockets on both sides agree on every byte, with the kernel's own super
// packets between them.
func TestSockets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		features int
		tcp, udp bool // whether super packets are expected
	}{
		{"all", allFeatures, true, true},
		{"TSO", featureCsum | featureTSO, true, false},
		{"checksums", featureCsum, false, false},
		{"none", 0, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := newOverlay(t, c.features)
			for _, addr := range []string{"10.5.0.2", "fd00:5::2"} {
				before := o.pump.supers.Load()
				o.sendTCP(t, addr)
				between := o.pump.supers.Load()
				o.sendUDP(t, addr)
				if got := between > before; got != c.tcp {
					t.Errorf("%s: TCP super packets: %t, want %t", addr, got, c.tcp)
				}
				if got := o.pump.supers.Load() > between; got != c.udp {
					t.Errorf("%s: UDP super packets: %t, want %t", addr, got, c.udp)
				}
			}
			if (o.pump.joins.Load() > 0) != c.tcp {
				t.Errorf("%d joined frames", o.pump.joins.Load())
			}
			for _, ns := range []*nstest.NS{o.a, o.b} {
				for _, line := range strings.Split(strings.TrimSpace(ns.Sh("nstat -asz "+complaints)), "\n")[1:] {
					if f := strings.Fields(line); f[1] != "0" {
						t.Errorf("the kernel counts %s %s", f[1], f[0])
					}
				}
			}
		})
	}
}

// complaints lists the kernel's counters of invalid packets.
const complaints = "IpInHdrErrors Ip6InHdrErrors TcpInErrs TcpInCsumErrors UdpInCsumErrors Udp6InCsumErrors"

func (o *overlay) sendTCP(t *testing.T, addr string) {
	t.Helper()
	var l net.Listener
	in(t, o.b, func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(addr, "5000"))
		return err
	})
	defer l.Close()
	data := fill(1 << 20)
	var echoed sync.WaitGroup
	defer echoed.Wait()
	echoed.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		got, err := io.ReadAll(io.LimitReader(conn, int64(len(data))))
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("the far end got %d bytes, %v", len(got), err)
		}
		if _, err := conn.Write(got); err != nil {
			t.Error(err)
		}
	})
	var conn net.Conn
	in(t, o.a, func() (err error) {
		conn, err = net.DialTimeout("tcp", l.Addr().String(), patience)
		return err
	})
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(data); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
}

// sendUDP sends trains of datagrams by UDP_SEGMENT. It sends each after the one before has arrived.
func (o *overlay) sendUDP(t *testing.T, addr string) {
	t.Helper()
	const size = 1000
	var from, to *net.UDPConn
	in(t, o.b, func() (err error) {
		to, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(addr), Port: 5000})
		return err
	})
	defer to.Close()
	in(t, o.a, func() (err error) {
		from, err = net.DialUDP("udp", nil, to.LocalAddr().(*net.UDPAddr))
		return err
	})
	defer from.Close()
	raw, err := from.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, size)
	}), err); err != nil {
		t.Fatal(err)
	}
	if err := to.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 65536)
	for _, n := range []int{1, size, 2 * size, 20*size + 1, 60 * size} {
		data := fill(n)
		if _, err := from.Write(data); err != nil {
			t.Fatal(err)
		}
		for want := data; len(want) > 0; {
			got, err := to.Read(buf)
			if err != nil {
				t.Fatalf("%d of %d bytes to come: %v", len(want), n, err)
			}
			if m := min(size, len(want)); !bytes.Equal(buf[:got], want[:m]) {
				t.Fatalf("%d of %d bytes to come: a datagram of %d", len(want), n, got)
			}
			want = want[min(size, len(want)):]
		}
	}
}
