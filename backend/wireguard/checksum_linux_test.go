package wireguard

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/internal/testkit/waiting"
)

// zeroSum returns the payload of 2 bytes with which a UDP packet over IPv6 has the checksum 0.
func zeroSum(from, to netip.AddrPort) []byte {
	src, dst := from.Addr().As16(), to.Addr().As16()
	const length = 8 + 2
	sum := uint32(unix.IPPROTO_UDP) + 2*length + uint32(from.Port()) + uint32(to.Port())
	for i := 0; i < 16; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(src[i:])) + uint32(binary.BigEndian.Uint16(dst[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return binary.BigEndian.AppendUint16(nil, uint16(0xffff-sum))
}

// TestZeroChecksum checks that UDP packets over IPv6 arrive whose checksum is 0 by computation.
func TestZeroChecksum(t *testing.T) {
	t.Parallel()
	for name, kind := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newHosts(t, kind, `{}`)
			from := netip.AddrPortFrom(netip.MustParseAddr(inner(1)[1]), 7001)
			to := netip.AddrPortFrom(netip.MustParseAddr(inner(2)[1]), 7002)
			var in, out *net.UDPConn
			var err error
			b.ns.Do(func() { in, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(to)) })
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			a.ns.Do(func() { out, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to)) })
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			want, got := zeroSum(from, to), []byte(nil)
			waiting.Until(t, "a packet", func() bool { // those before the handshake may be lost
				if _, err := out.Write(want); err != nil {
					t.Fatal(err)
				}
				if err := in.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 100)
				n, err := in.Read(buf)
				got = buf[:n]
				return err == nil
			})
			if string(got) != string(want) {
				t.Errorf("received %x, want %x", got, want)
			}
		})
	}
}

func TestCompleteChecksum(t *testing.T) {
	from, to := netip.MustParseAddrPort("[fd00::1]:7001"), netip.MustParseAddrPort("[fd00::2]:7002")
	packet := func(change func(p []byte)) []byte {
		src, dst := from.Addr().As16(), to.Addr().As16()
		p := append([]byte{0x60, 0, 0, 0, 0, 10, unix.IPPROTO_UDP, 64}, append(src[:], dst[:]...)...)
		p = binary.BigEndian.AppendUint16(p, from.Port())
		p = binary.BigEndian.AppendUint16(p, to.Port())
		p = append(append(p, 0, 10, 0, 0), zeroSum(from, to)...)
		change(p)
		return p
	}
	for name, tt := range map[string]struct {
		change func(p []byte)
		want   uint16
	}{
		"computed": {func([]byte) {}, 0xffff},
		"none":     {func(p []byte) { p[49]++ }, 0},
		"tcp":      {func(p []byte) { p[6] = unix.IPPROTO_TCP }, 0},
		"ipv4":     {func(p []byte) { p[0] = 0x45 }, 0},
		"another":  {func(p []byte) { p[47] = 7 }, 7},
	} {
		p := packet(tt.change)
		completeChecksum(p)
		if got := binary.BigEndian.Uint16(p[46:]); got != tt.want {
			t.Errorf("%s: checksum %#x, want %#x", name, got, tt.want)
		}
	}
	for n := range 48 {
		completeChecksum(make([]byte, n))
	}
}
