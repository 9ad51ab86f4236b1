package udp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend/udp/offload"
	"github.com/lenonet/leno/internal/testkit/nstest"
	"github.com/lenonet/leno/internal/testkit/udptest"
)

// deviceEnds is a device and the kernel behind it.
type deviceEnds struct {
	dev    Device
	inject func(pkt []byte)    // the kernel routes it to the device
	taken  func() (pkt []byte) // the next packet that the kernel received
}

// deviceMemory returns the buffers that a reader of a device needs.
func deviceMemory() (buf []byte, frames [][]byte) {
	return make([]byte, 2*maxFrame), make([][]byte, 4)
}

// frames returns one frame per packet, without offloads.
func frames(pkts ...[]byte) []offload.Frame {
	out := make([]offload.Frame, len(pkts))
	for i, pkt := range pkts {
		out[i] = offload.Frame{Parts: [][]byte{pkt}, Packets: 1, Bytes: len(pkt)}
	}
	return out
}

// TestDeviceContract checks the contract of Device, for the fake and the kernel's device.
func TestDeviceContract(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) deviceEnds{"fake": fakeDevice, "TUN": realDevice} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ends := open(t)
			buf, read := deviceMemory()
			out := udpPacket([4]byte{10, 5, 1, 0}, [4]byte{10, 5, 2, 3}, "out")
			if n, err := ends.dev.Read(buf, read); n != 0 || err != nil {
				t.Fatalf("read %d frames where there are none, %v", n, err)
			}
			ends.inject(out)
			awaitReadable(t, ends.dev.FD())
			n, err := ends.dev.Read(buf, read)
			if err != nil || n != 1 || len(read[0]) != offload.HeaderLen+len(out) || !bytes.Equal(read[0][offload.HeaderLen+28:], out[28:]) {
				t.Fatalf("read %d frames, %v: %x", n, err, read[:n])
			}
			// Waiting packets come in one call, as far as there is room.
			for range 5 {
				ends.inject(out)
			}
			for _, room := range []int{2, 1, 2} {
				awaitReadable(t, ends.dev.FD())
				if n, err := ends.dev.Read(buf, read[:room]); n != room || err != nil {
					t.Fatalf("read %d frames where %d wait and there is room, %v", n, room, err)
				}
			}
			ends.inject(out)
			ends.inject(out)
			for range 2 {
				if n, err := ends.dev.Read(buf[:maxFrame], read); n != 1 || err != nil {
					t.Fatalf("read %d frames into room for one, %v", n, err)
				}
			}
			in := [][]byte{udpPacket([4]byte{10, 5, 2, 3}, [4]byte{10, 5, 1, 0}, "first"), udpPacket([4]byte{10, 5, 2, 3}, [4]byte{10, 5, 1, 0}, "second")}
			if n, err := ends.dev.Write(frames(in...)); n != 2 || err != nil {
				t.Fatalf("wrote %d frames, %v", n, err)
			}
			for _, want := range in {
				if got := ends.taken(); !bytes.Equal(got, want[28:]) {
					t.Errorf("the kernel got %q, want %q", got, want[28:])
				}
			}
			// A frame in parts, two joined packets, one inconsistent frame.
			mixed := frames(in[0], joined(in[0], in[0]), udpPacket([4]byte{10, 5, 2, 3}, [4]byte{10, 5, 1, 0}, "last"))
			mixed[0].Parts = [][]byte{in[0][:28], in[0][28:30], in[0][30:]}
			mixed[1].Header = offloaded(offload.TypeUDP, 5)
			if n, err := ends.dev.Write(mixed); n != 3 || err != nil {
				t.Fatalf("wrote %d frames, %v", n, err)
			}
			for _, want := range []string{"first", "first", "first", "last"} {
				if got := ends.taken(); string(got) != want {
					t.Errorf("the kernel got %q, want %q", got, want)
				}
			}
			mixed[1].Header = offloaded(offload.TypeUDP, 0)
			if n, err := ends.dev.Write(mixed); n != 1 || !errors.Is(err, syscall.EINVAL) {
				t.Errorf("a frame that lies: wrote %d, %v", n, err)
			}
			if got := ends.taken(); string(got) != "first" {
				t.Errorf("before the one that lies the kernel got %q", got)
			}

			if err := errors.Join(ends.dev.Close(), ends.dev.Close()); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

// joined returns a super packet of two datagrams with the same header, whose checksum is left to
// the kernel.
func joined(a, b []byte) []byte {
	pkt := append(bytes.Clone(a), b[28:]...)
	binary.BigEndian.PutUint16(pkt[2:], uint16(len(pkt)))
	pkt[10], pkt[11] = 0, 0
	binary.BigEndian.PutUint16(pkt[10:], checksum(pkt[:20]))
	binary.BigEndian.PutUint16(pkt[24:], uint16(len(pkt)-20))
	pseudo := append(bytes.Clone(pkt[12:20]), 0, 17, 0, byte(len(pkt)-20))
	binary.BigEndian.PutUint16(pkt[26:], ^checksum(pseudo))
	return pkt
}

// offloaded returns the vnet header of an IPv4 super packet of datagrams.
func offloaded(kind uint8, size uint16) (out [offload.HeaderLen]byte) {
	offload.Header{Flags: offload.NeedsCsum, Type: kind, HdrLen: 28, GSOSize: size, CsumStart: 20, CsumOffset: 6}.Encode(out[:])
	return out
}

func fakeDevice(t *testing.T) deviceEnds {
	dev := newFakeDevice(4)
	return deviceEnds{
		dev:    dev,
		inject: func(pkt []byte) { dev.Inject(pkt) },
		taken: func() []byte {
			buf := make([]byte, maxPacket)
			n, ok := dev.Take(buf)
			if !ok {
				t.Error("device closed")
			}
			return buf[28:n]
		},
	}
}

func realDevice(t *testing.T) deviceEnds {
	return attachReal(t, nstest.New(t), allOffloads)
}

// attachReal opens the TUN of a namespace and gives it an address and a route.
func attachReal(t *testing.T, ns *nstest.NS, want offloads) deviceEnds {
	t.Helper()
	var queues []*tun
	var kernel *net.UDPConn
	inNS(t, ns, func() (err error) {
		queues, err = openTUN(testLink, 1, want)
		return err
	})
	dev := queues[0]
	// Without IPv6 the kernel sends nothing of its own.
	ns.Sh("echo 1 > /proc/sys/net/ipv6/conf/leno-test/disable_ipv6\n" +
		"ip addr replace 10.5.1.0/32 dev leno-test; ip link set leno-test up; ip route replace 10.5.2.0/24 dev leno-test")
	inNS(t, ns, func() (err error) {
		kernel, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(addrPort("10.5.1.0:7")))
		return err
	})
	t.Cleanup(func() {
		if err := errors.Join(dev.Close(), kernel.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := kernel.SetDeadline(time.Now().Add(trafficTime)); err != nil {
		t.Fatal(err)
	}
	return deviceEnds{
		dev: dev,
		inject: func(pkt []byte) {
			if _, err := kernel.WriteToUDPAddrPort(pkt[28:], netip.AddrPortFrom(netip.AddrFrom4([4]byte(pkt[16:20])), 9)); err != nil {
				t.Error(err)
			}
		},
		taken: func() []byte {
			buf := make([]byte, maxPacket)
			n, _, err := kernel.ReadFromUDPAddrPort(buf)
			if err != nil {
				t.Error(err)
			}
			return buf[:n]
		},
	}
}

// TestBindContract checks the contract of Bind, for the fake and sockets of both families.
func TestBindContract(t *testing.T) {
	t.Parallel()
	fake := func(*testing.T) func(at netip.AddrPort) (Bind, error) {
		wire := udptest.NewWire(65507)
		return func(at netip.AddrPort) (Bind, error) {
			b, err := wire.Listen(at, 4)
			if err != nil {
				return nil, err
			}
			return b, nil
		}
	}
	real := func(t *testing.T) func(at netip.AddrPort) (Bind, error) {
		ns := nstest.New(t)
		return func(at netip.AddrPort) (b Bind, err error) {
			ns.Do(func() {
				var s []*socket
				if s, err = listen(at, 0, 1, allOffloads); err == nil {
					b = s[0]
				}
			})
			return b, err
		}
	}
	for _, tt := range []struct {
		name   string
		opener func(t *testing.T) func(at netip.AddrPort) (Bind, error)
		a, b   netip.AddrPort
	}{
		{"fake", fake, addrPort("127.0.0.1:8285"), addrPort("127.0.0.2:8285")},
		{"IPv4", real, addrPort("127.0.0.1:8285"), addrPort("127.0.0.2:8285")},
		{"IPv6", real, addrPort("[::1]:8285"), addrPort("[::1]:8286")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			open := tt.opener(t)
			a, errA := open(tt.a)
			b, errB := open(tt.b)
			if err := errors.Join(errA, errB); err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			if _, err := open(tt.a); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("second listener: %v", err)
			}
			largest := make([]byte, 65507)
			for _, want := range [][]byte{[]byte("first"), {}, largest} {
				if n, err := a.Send(message(tt.b, want)); n != 1 || err != nil {
					t.Fatalf("sent %d, %v", n, err)
				}
				if got := receive(t, b, tt.a, 1); !bytes.Equal(got[0], want) {
					t.Fatalf("received %d bytes, want %d", len(got[0]), len(want))
				}
			}
			// One message with many datagrams, of which the last is shorter.
			many := offload.Outbound{To: tt.b, Size: 1000}
			for i := range offload.MaxSegments {
				many.Segments = append(many.Segments, offload.Segment{Head: bytes.Repeat([]byte{byte(i)}, 20), Body: make([]byte, 980)})
				many.Bytes += 1000
			}
			many.Segments[offload.MaxSegments-1].Body = nil
			many.Bytes -= 980
			if n, err := a.Send([]offload.Outbound{many, message(tt.b, []byte("next"))[0]}); n != 2 || err != nil {
				t.Fatalf("sent %d, %v", n, err)
			}
			for i, got := range receive(t, b, tt.a, offload.MaxSegments+1) {
				want := []byte("next")
				if i < offload.MaxSegments {
					want = append(bytes.Clone(many.Segments[i].Head), many.Segments[i].Body...)
				}
				if !bytes.Equal(got, want) {
					t.Fatalf("datagram %d is %d bytes, %x..., want %d", i, len(got), got[:min(len(got), 20)], len(want))
				}
			}
			long := message(tt.b, []byte("good"), make([]byte, 65535), []byte("untried"))
			if n, err := a.Send(long); n != 1 || long[1].Sent != 0 || !errors.Is(err, syscall.EMSGSIZE) {
				t.Errorf("too long: sent %d, %v", n, err)
			}
			if got := receive(t, b, tt.a, 1); string(got[0]) != "good" {
				t.Errorf("before the long one: %q", got)
			}

			if n, err := b.Receive(newReceiver().in); n != 0 || err != nil {
				t.Errorf("received %d messages where there are none, %v", n, err)
			}
			if err := errors.Join(a.Close(), a.Close()); err != nil {
				t.Errorf("close: %v", err)
			}
			nstest.AwaitForks()
			again, err := open(tt.a)
			if err != nil {
				t.Fatalf("the port is not free after close: %v", err)
			}
			if err := again.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// awaitReadable waits until a descriptor is readable.
func awaitReadable(t *testing.T, fd int) {
	t.Helper()
	awaitAny(t, []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}})
}

func awaitAny(t *testing.T, fds []unix.PollFd) {
	t.Helper()
	n, err := unix.Poll(fds, int(trafficTime.Milliseconds()))
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(fds, int(trafficTime.Milliseconds()))
	}
	if n == 0 || err != nil {
		t.Fatalf("nothing came: %v", err)
	}
}

// readable waits for the one of several ends that has a packet.
func readable[E interface{ FD() int }](t *testing.T, ends []E) int {
	t.Helper()
	fds := make([]unix.PollFd, len(ends))
	for i, end := range ends {
		fds[i] = unix.PollFd{Fd: int32(end.FD()), Events: unix.POLLIN}
	}
	awaitAny(t, fds)
	return slices.IndexFunc(fds, func(fd unix.PollFd) bool { return fd.Revents&unix.POLLIN != 0 })
}

// receive receives n datagrams, all from one sender.
func receive(t *testing.T, b Bind, from netip.AddrPort, n int) (out [][]byte) {
	t.Helper()
	in := newReceiver().in
	for len(out) < n {
		awaitReadable(t, b.FD())
		messages, err := b.Receive(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range in[:messages] {
			if m.From != from {
				t.Fatalf("a datagram from %s, want %s", m.From, from)
			}
			if m.Size == 0 {
				out = append(out, nil)
			}
			for pkt := range slices.Chunk(m.Buf[:m.Size], max(m.Segment, 1)) {
				out = append(out, bytes.Clone(pkt))
			}
		}
	}
	if len(out) != n {
		t.Fatalf("%d datagrams, want %d", len(out), n)
	}
	return out
}

// TestSocketOptions checks that outer packets are sent without DF, and buffers have room for
// bursts.
func TestSocketOptions(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	for at, option := range map[netip.AddrPort][3]int{
		addrPort("127.0.0.1:8285"): {unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT},
		addrPort("[::1]:8285"):     {unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT},
	} {
		s := listenReal(t, ns, at, 1, allOffloads)[0]
		// The kernel doubles the requested size, for its own accounting.
		for _, want := range [][3]int{option, {unix.SOL_SOCKET, unix.SO_RCVBUF, 2 * socketBuffer}, {unix.SOL_SOCKET, unix.SO_SNDBUF, 2 * socketBuffer}} {
			got, err := unix.GetsockoptInt(s.fd, want[0], want[1])
			if err != nil || got != want[2] {
				t.Errorf("option %d of level %d on %s is %d, want %d: %v", want[1], want[0], at, got, want[2], err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// listenReal binds sockets in a namespace.
func listenReal(t *testing.T, ns *nstest.NS, at netip.AddrPort, n int, want offloads) (out []*socket) {
	t.Helper()
	inNS(t, ns, func() (err error) {
		out, err = listen(at, 0, n, want)
		return err
	})
	t.Cleanup(func() {
		for _, s := range out {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return out
}

// TestSocketsShareAPort checks that our sockets share a port among themselves but with no other
// socket, not even one that would share it.
func TestSocketsShareAPort(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	for _, at := range []netip.AddrPort{addrPort("127.0.0.1:8285"), addrPort("[::1]:8285")} {
		mine := listenReal(t, ns, at, 3, allOffloads)
		for _, n := range []int{1, 3} {
			var err error
			ns.Do(func() { _, err = listen(at, 0, n, allOffloads) })
			if !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("%d more sockets: %v", n, err)
			}
		}
		// All of a sender's datagrams reach the same socket; different senders are spread.
		used := map[int]bool{}
		for port := range uint16(40) {
			from := netip.AddrPortFrom(at.Addr(), 10000+port)
			sender := listenReal(t, ns, from, 1, allOffloads)[0]
			for range 2 {
				if n, err := sender.Send(message(at, []byte("a"), []byte("b"))); n != 2 || err != nil {
					t.Fatal(n, err)
				}
			}
			found := readable(t, mine)
			receive(t, mine[found], from, 4) // so none has come to another socket
			used[found] = true
		}
		if len(used) != 3 {
			t.Errorf("40 senders use %d of 3 sockets", len(used))
		}
	}
}

// TestTUNForgetsOffloads checks that offloads of a previous owner do not outlive it: without any,
// packets are read complete, including the checksum that a vnet header would otherwise leave to be
// filled in. With offloads they are complete after Split.
func TestTUNForgetsOffloads(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	inNS(t, ns, func() error {
		queues, err := openTUN(testLink, 2, allOffloads)
		for _, q := range queues {
			if q.can != allOffloads {
				t.Errorf("the kernel has %+v", q.can)
			}
			err = errors.Join(err, q.Close())
		}
		return err
	})
	nstest.AwaitForks()
	mustContain(t, ns.Sh("ip -d -o link show leno-test"), "multi_queue", "vnet_hdr on", "persist on", "pi off")
	for _, want := range []offloads{{}, {tso: true}} {
		t.Run(fmt.Sprintf("%+v", want), func(t *testing.T) {
			nstest.AwaitForks()
			ends := attachReal(t, ns, want)
			ends.inject(udpPacket([4]byte{10, 5, 1, 0}, [4]byte{10, 5, 2, 3}, "whole"))
			buf, read := deviceMemory()
			awaitReadable(t, ends.dev.FD())
			if _, err := ends.dev.Read(buf, read); err != nil {
				t.Fatal(err)
			}
			if header := read[0][:offload.HeaderLen]; want.tso == bytes.Equal(header, make([]byte, offload.HeaderLen)) {
				t.Errorf("vnet header %x", header)
			}
			var split offload.Splitter
			segments, err := split.Split(read[0])
			if err != nil || len(segments) != 1 {
				t.Fatal(len(segments), err)
			}
			// RFC 768: addresses, protocol and length are summed with the datagram, which has an
			// odd length here.
			pkt := segments[0].Head
			pseudo := slices.Concat([]byte{0}, pkt[12:20], []byte{0, 17, 0, byte(len(pkt) - 20)})
			if binary.BigEndian.Uint16(pkt[26:]) == 0 || checksum(append(bytes.Clone(pkt[20:]), pseudo...)) != 0 {
				t.Errorf("partial checksum in %x", pkt)
			}
		})
	}
}

// TestSeamsDoNotAllocate checks that the real ends do not allocate per packet either.
func TestSeamsDoNotAllocate(t *testing.T) {
	ns := nstest.New(t)
	ends := attachReal(t, ns, allOffloads)
	out := udpPacket([4]byte{10, 5, 1, 0}, [4]byte{10, 5, 2, 3}, "out")
	in := frames(udpPacket([4]byte{10, 5, 2, 3}, [4]byte{10, 5, 1, 0}, "in"))
	buf, read := deviceMemory()
	var failed error
	if n := testing.AllocsPerRun(100, func() {
		ends.inject(out)
		_, readErr := ends.dev.Read(buf, read)
		_, writeErr := ends.dev.Write(in)
		if readErr != nil || writeErr != nil {
			failed = errors.Join(readErr, writeErr)
		}
	}); n != 0 || failed != nil {
		t.Errorf("TUN: %.0f allocations a packet, %v", n, failed)
	}
	for _, at := range []netip.AddrPort{addrPort("127.0.0.1:8285"), addrPort("[::1]:8285")} {
		s := listenReal(t, ns, at, 1, allOffloads)[0]
		messages := message(at, out, out)
		memory := newReceiver().in
		if n := testing.AllocsPerRun(100, func() {
			_, sendErr := s.Send(messages)
			_, receiveErr := s.Receive(memory)
			if sendErr != nil || receiveErr != nil {
				failed = errors.Join(sendErr, receiveErr)
			}
		}); n != 0 || failed != nil {
			t.Errorf("socket on %s: %.0f allocations a packet, %v", at, n, failed)
		}
	}
}
