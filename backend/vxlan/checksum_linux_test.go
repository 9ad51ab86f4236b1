package vxlan

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/nstest"
)

// twoHosts returns a host whose peer, 192.0.2.2, is the other namespace.
func twoHosts(t *testing.T) (h host, other *nstest.NS) {
	t.Helper()
	a, b := nstest.New(t), nstest.New(t)
	nstest.Join(nstest.Joint{NS: a, Link: "eth0", Addrs: []string{"192.0.2.1/24"}}, nstest.Joint{NS: b, Link: "eth0", Addrs: []string{"192.0.2.2/24"}})
	return host{t, a}, b
}

// sentWhole sends a datagram through the device and reports whether its checksum was correct when
// it arrived at the other host's interface. An offloaded checksum is not: between two virtual
// interfaces it is never computed.
func (h host) sentWhole(other *nstest.NS) bool {
	h.t.Helper()
	fd := -1
	other.Do(func() {
		var err error
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_IP))); err != nil {
			h.t.Fatal(err)
		}
	})
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		h.t.Fatal(err)
	}
	send := func() {
		h.ns.Do(func() {
			c, err := net.Dial("udp", "10.5.2.7:9")
			if err != nil {
				h.t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write([]byte("leno checks a sum")); err != nil {
				h.t.Fatal(err)
			}
		})
	}
	send()
	const inner = 14 + 20 + 8 + 8 + 14
	frame := make([]byte, 2048)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		n, _, err := unix.Recvfrom(fd, frame, 0)
		if err == unix.EAGAIN { // it may be lost while the underlay is still being resolved
			send()
			continue
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			h.t.Fatal(err)
		}
		if n < inner+28 || !strings.Contains(string(frame[:n]), "leno checks a sum") {
			continue
		}
		ip := frame[inner:n]
		length := int(binary.BigEndian.Uint16(ip[2:]))
		pseudo := append(slices.Clone(ip[12:20]), 0, unix.IPPROTO_UDP, 0, byte(length-20))
		return sum(append(pseudo, ip[20:length]...)) == 0xffff
	}
	h.t.Fatal("the datagram did not arrive")
	return false
}

func htons(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// sum returns the ones' complement sum of RFC 1071.
func sum(b []byte) uint16 {
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	var s uint32
	for ; len(b) > 0; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// TestChecksumOffload checks that each choice has its effect on packets, is reported with its
// reason, and is restored after another program changed the device.
func TestChecksumOffload(t *testing.T) {
	t.Parallel()
	h, other := twoHosts(t)
	s := h.state("eth0", "192.0.2.1")
	index := 0
	for _, tt := range []struct {
		option, release string
		on              bool
		note            string
	}{
		{"auto", "", true, "checksum offload on: no fault is known of Linux "},
		{"off", "", false, `checksum offload off: the network says checksum_offload = "off"`},
		{"auto", "", true, "with the driver veth"},
		{"auto", "5.4.0-42-generic", false, "checksum offload off: Linux 5.4.0-42-generic may write wrong checksums"},
		{"on", "5.4.0-42-generic", true, `checksum offload on: the network says checksum_offload = "on"`},
	} {
		b := h.open("test", "leno-test", fmt.Sprintf(`{"checksum_offload":%q}`, tt.option))
		b.checksum.release = tt.release
		for _, step := range []string{"", "changed"} {
			if step != "" {
				h.ns.Sh("ethtool -K leno-test tx-checksum-ip-generic " + map[bool]string{true: "off", false: "on"}[tt.on])
			}
			r := h.apply(b, s)
			if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], tt.note) {
				t.Errorf("%+v: notes %q", tt, r.Notes)
			}
			if repaired := fmt.Sprint(r.Repaired); (repaired == "[device had another checksum offload]") != (step != "") {
				t.Errorf("%+v %s: repaired %s", tt, step, repaired)
			}
			shown := "tx-checksum-ip-generic: " + map[bool]string{true: "on", false: "off"}[tt.on]
			if got := h.ns.Sh("ethtool -k leno-test"); !strings.Contains(got, shown) {
				t.Errorf("%+v %s: not %q in\n%s", tt, step, shown, got)
			}
			if whole := h.sentWhole(other); whole == tt.on {
				t.Errorf("%+v %s: a packet's checksum was right: %v", tt, step, whole)
			}
			if r := h.apply(b, s); r.Writes != 0 {
				t.Errorf("%+v: second apply: %+v", tt, r)
			}
		}
		if now := h.ns.Index("leno-test"); index != 0 && now != index {
			t.Errorf("%+v: the device was created again", tt)
		} else {
			index = now
		}
	}
}

// TestDriversBelow checks that the drivers of all devices that carry packets count.
func TestDriversBelow(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	ns.Sh(`ip link add br0 type bridge; ip link set eth1 master br0; ip link set br0 up
		ip link add vx0 type vxlan id 9 dstport 4789 local 192.0.2.1 dev eth0
		ip tuntap add tun0 mode tun`)
	for devices, want := range map[string]string{
		"eth0": "veth", "br0": "bridge veth", "vx0": "vxlan", "tun0 br0": "bridge tun veth", "gone": "", "lo": "",
	} {
		ns.Do(func() {
			h, err := kernel.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			got, err := h.Drivers(strings.Fields(devices))
			if err != nil || strings.Join(got, " ") != want {
				t.Errorf("%s: %v, %v, want %s", devices, got, err, want)
			}
		})
	}
}

// TestBehindNAT checks that a host behind a NAT that gives it another address sends from the
// address it has.
func TestBehindNAT(t *testing.T) {
	t.Parallel()
	for name, u := range map[string][2]string{
		"IPv4": {"203.0.113.1", "192.0.2.1"},
		"IPv6": {"2001:db8:ffff::1", "2001:db8:2::1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			s := h.state("eth0", u[0])
			if u[1] == "2001:db8:2::1" {
				slices.Reverse(s.Peers[0].PublicIPs)
			}
			s.Underlay.Own = []netip.Addr{netip.MustParseAddr(u[1])}
			if r := h.apply(h.open("test", "leno-test", `{}`), s); r.Peers != 1 {
				t.Errorf("report %+v", r)
			}
			if got := h.device(); !strings.Contains(got, "local "+u[1]) {
				t.Errorf("device %s", got)
			}
		})
	}
	b, err := Type().New(backend.Config{Network: "test", Pools: pools})
	if err != nil {
		t.Fatal(err)
	}
	none := backend.Underlay{Interface: "spare", MTU: 1500, Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.1")}, Own: make([]netip.Addr, 1)}
	if _, err := b.Advertise(none); err == nil || !strings.Contains(err.Error(), "spare has no IPv4 address of its own to send from behind the public 203.0.113.1") {
		t.Errorf("error %v", err)
	}
}
