package udp

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend/kernel/nstest"
	"github.com/lenonet/leno/backend/udp/udptest"
)

// deviceEnds is a device and a kernel behind it.
type deviceEnds struct {
	dev    Device
	inject func(pkt []byte)    // the kernel routes it to the device
	taken  func() (pkt []byte) // the next packet the kernel got
}

// The contract of Device, on the fake and on the kernel's.
func TestDeviceContract(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) deviceEnds{"fake": fakeDevice, "TUN": realDevice} {
		t.Run(name, func(t *testing.T) {
			ends := open(t)
			bufs, sizes := newBatch(ends.dev.BatchSize()).bufs, make([]int, ends.dev.BatchSize())
			out := udpPacket([4]byte{10, 5, 1, 0}, [4]byte{10, 5, 2, 3}, "out")
			ends.inject(out)
			n, err := ends.dev.Read(bufs, sizes)
			if err != nil || n != 1 || !bytes.Equal(bufs[0][28:sizes[0]], out[28:]) {
				t.Fatalf("read %d packets, %v: %x", n, err, bufs[0][:sizes[0]])
			}
			in := [][]byte{udpPacket([4]byte{10, 5, 2, 3}, [4]byte{10, 5, 1, 0}, "first"), udpPacket([4]byte{10, 5, 2, 3}, [4]byte{10, 5, 1, 0}, "second")}
			if n, err := ends.dev.Write(in); n != 2 || err != nil {
				t.Fatalf("wrote %d packets, %v", n, err)
			}
			for _, want := range in {
				if got := ends.taken(); !bytes.Equal(got, want[28:]) {
					t.Errorf("the kernel got %q, want %q", got, want[28:])
				}
			}

			blocked := make(chan error)
			go func() {
				for {
					if _, err := ends.dev.Read(bufs, sizes); err != nil {
						blocked <- err
						return
					}
				}
			}()
			if err := errors.Join(ends.dev.Close(), ends.dev.Close()); err != nil {
				t.Errorf("close: %v", err)
			}
			if err := <-blocked; !errors.Is(err, os.ErrClosed) {
				t.Errorf("blocked read: %v", err)
			}
			if _, err := ends.dev.Read(bufs, sizes); !errors.Is(err, os.ErrClosed) {
				t.Errorf("read after close: %v", err)
			}
			if n, err := ends.dev.Write(in); n != 0 || !errors.Is(err, os.ErrClosed) {
				t.Errorf("write after close: %d, %v", n, err)
			}
		})
	}
}

func fakeDevice(t *testing.T) deviceEnds {
	dev := udptest.NewDevice(4)
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
	return attachReal(t, nstest.New(t))
}

// attachReal opens the TUN of a namespace and gives it an address and a route.
func attachReal(t *testing.T, ns *nstest.NS) deviceEnds {
	t.Helper()
	var dev *tun
	var kernel *net.UDPConn
	inNS(t, ns, func() (err error) {
		dev, err = openTUN(testLink)
		return err
	})
	// Without IPv6 the kernel has nothing of its own to say.
	ns.Sh("echo 1 > /proc/sys/net/ipv6/conf/leno-test/disable_ipv6\n" +
		"ip addr add 10.5.1.0/32 dev leno-test; ip link set leno-test up; ip route add 10.5.2.0/24 dev leno-test")
	inNS(t, ns, func() (err error) {
		kernel, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(addrPort("10.5.1.0:7")))
		return err
	})
	t.Cleanup(func() {
		if err := errors.Join(dev.Close(), kernel.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := kernel.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
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

// The contract of Bind, on the fake and on sockets of both families.
func TestBindContract(t *testing.T) {
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
				var s *socket
				if s, err = listen(t.Context(), at); err == nil {
					b = s
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
			memory := newBatch(b.BatchSize())
			largest := make([]byte, 65507)
			for _, want := range [][]byte{[]byte("first"), {}, largest} {
				if n, err := a.Send([][]byte{want}, tt.b); n != 1 || err != nil {
					t.Fatalf("sent %d, %v", n, err)
				}
				n, err := b.Receive(memory.bufs, memory.sizes, memory.from)
				if err != nil || n != 1 || !bytes.Equal(memory.bufs[0][:memory.sizes[0]], want) || memory.from[0] != tt.a {
					t.Fatalf("received %d, %v: %d bytes from %s", n, err, memory.sizes[0], memory.from[0])
				}
			}
			if n, err := a.Send([][]byte{[]byte("good"), make([]byte, 65535), []byte("untried")}, tt.b); n != 1 || !errors.Is(err, syscall.EMSGSIZE) {
				t.Errorf("too long: sent %d, %v", n, err)
			}
			if n, err := b.Receive(memory.bufs, memory.sizes, memory.from); n != 1 || err != nil || string(memory.bufs[0][:memory.sizes[0]]) != "good" {
				t.Errorf("before the long one: %d, %v", n, err)
			}

			blocked := make(chan error)
			mine := newBatch(a.BatchSize())
			go func() {
				_, err := a.Receive(mine.bufs, mine.sizes, mine.from)
				blocked <- err
			}()
			if err := errors.Join(a.Close(), a.Close()); err != nil {
				t.Errorf("close: %v", err)
			}
			if err := <-blocked; !errors.Is(err, net.ErrClosed) {
				t.Errorf("blocked receive: %v", err)
			}
			if _, err := a.Receive(mine.bufs, mine.sizes, mine.from); !errors.Is(err, net.ErrClosed) {
				t.Errorf("receive after close: %v", err)
			}
			if n, err := a.Send([][]byte{[]byte("late")}, tt.b); n != 0 || !errors.Is(err, net.ErrClosed) {
				t.Errorf("send after close: %d, %v", n, err)
			}
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

// Outer packets go without DF, and bursts find room.
func TestSocketOptions(t *testing.T) {
	ns := nstest.New(t)
	for at, option := range map[netip.AddrPort][3]int{
		addrPort("127.0.0.1:8285"): {unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT},
		addrPort("[::1]:8285"):     {unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT},
	} {
		var s *socket
		inNS(t, ns, func() (err error) {
			s, err = listen(t.Context(), at)
			return err
		})
		raw, err := s.conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		// The kernel doubles what it is asked for, for its own accounting.
		for _, want := range [][3]int{option, {unix.SOL_SOCKET, unix.SO_RCVBUF, 2 * socketBuffer}, {unix.SOL_SOCKET, unix.SO_SNDBUF, 2 * socketBuffer}} {
			var got int
			var optErr error
			err := raw.Control(func(fd uintptr) { got, optErr = unix.GetsockoptInt(int(fd), want[0], want[1]) })
			if err := errors.Join(err, optErr); err != nil || got != want[2] {
				t.Errorf("option %d of level %d on %s is %d, want %d: %v", want[1], want[0], at, got, want[2], err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Offloads of an earlier owner do not outlive him: what is read is whole, with
// the checksum that a vnet header would have promised to fill in.
func TestTUNForgetsOffloads(t *testing.T) {
	ns := nstest.New(t)
	inNS(t, ns, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		ifr, err := unix.NewIfreq(testLink)
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		return errors.Join(
			unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr),
			unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6),
			unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1),
			unix.Close(fd))
	})
	ends := attachReal(t, ns)
	mustContain(t, ns.Sh("ip -d -o link show leno-test"), "vnet_hdr off", "persist on", "pi off")
	ends.inject(udpPacket([4]byte{10, 5, 1, 0}, [4]byte{10, 5, 2, 3}, "whole"))
	b := newBatch(1)
	if _, err := ends.dev.Read(b.bufs, b.sizes); err != nil {
		t.Fatal(err)
	}
	// RFC 768: addresses, protocol and length are summed with the datagram.
	pkt := b.bufs[0][:b.sizes[0]]
	datagram := append(bytes.Clone(pkt[20:]), pkt[12:20]...)
	if len(pkt)%2 == 1 {
		datagram = append(append(bytes.Clone(pkt[20:]), 0), pkt[12:20]...)
	}
	datagram = append(datagram, 0, 17, 0, byte(len(pkt)-20))
	if checksum(datagram) != 0 {
		t.Errorf("partial checksum in %x", pkt)
	}
}

// The real ends cost no allocation a packet either.
func TestSeamsDoNotAllocate(t *testing.T) {
	ns := nstest.New(t)
	ends := attachReal(t, ns)
	out := udpPacket([4]byte{10, 5, 1, 0}, [4]byte{10, 5, 2, 3}, "out")
	in := [][]byte{udpPacket([4]byte{10, 5, 2, 3}, [4]byte{10, 5, 1, 0}, "in")}
	mem := newBatch(1)
	var failed error
	if n := testing.AllocsPerRun(100, func() {
		ends.inject(out)
		_, readErr := ends.dev.Read(mem.bufs, mem.sizes)
		_, writeErr := ends.dev.Write(in)
		if readErr != nil || writeErr != nil {
			failed = errors.Join(readErr, writeErr)
		}
	}); n != 0 || failed != nil {
		t.Errorf("TUN: %.0f allocations a packet, %v", n, failed)
	}
	for _, at := range []netip.AddrPort{addrPort("127.0.0.1:8285"), addrPort("[::1]:8285")} {
		var s *socket
		inNS(t, ns, func() (err error) {
			s, err = listen(t.Context(), at)
			return err
		})
		if n := testing.AllocsPerRun(100, func() {
			_, sendErr := s.Send(in, at)
			_, receiveErr := s.Receive(mem.bufs, mem.sizes, mem.from)
			if sendErr != nil || receiveErr != nil {
				failed = errors.Join(sendErr, receiveErr)
			}
		}); n != 0 || failed != nil {
			t.Errorf("socket on %s: %.0f allocations a packet, %v", at, n, failed)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
