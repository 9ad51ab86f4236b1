package overlay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend/kernel"
)

// An announcement is the MAC address that a device of this host has, for one of the host's IPv6 addresses.
type announcement struct {
	link int // ifindex
	mac  kernel.MAC
	addr netip.Addr
}

// newAnnouncement returns what to announce for an IPv6 address on a device. ok is false if the device is not there or
// has no MAC address.
func newAnnouncement(link int, addr netip.Addr) (a announcement, ok bool) {
	device, err := net.InterfaceByIndex(link)
	if err != nil || len(device.HardwareAddr) != len(kernel.MAC{}) {
		return announcement{}, false
	}
	return announcement{link, kernel.MAC(device.HardwareAddr), addr}, true
}

// send tells all hosts on the link, with an unsolicited neighbour advertisement (RFC 4861, 7.2.6). Those that know the
// address with another MAC address then use this one. It needs CAP_NET_RAW, and sends in the calling thread's network
// namespace, on the device of that name.
func (a announcement) send(device string) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing is left to be written
	const hops = 255                      // from the link itself, or it is ignored
	allNodes := netip.MustParseAddr("ff02::1")
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_HOPS, hops),
		unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_LOOP, 0))
	if err == nil { // refused while the kernel does not know yet whether another host has the address
		err = unix.Bind(fd, &unix.SockaddrInet6{Addr: a.addr.As16()})
	}
	if err == nil {
		forwards, _ := kernel.Sysctl("ipv6", "conf", device, "forwarding") // a router's neighbours may have routes over it
		to := &unix.SockaddrInet6{Addr: allNodes.As16(), ZoneId: uint32(a.link)}
		err = unix.Sendto(fd, a.message(forwards != "" && forwards != "0"), unix.MSG_DONTWAIT, to)
	}
	if err != nil {
		return fmt.Errorf("announce %s on %s: %w", a.addr, device, err)
	}
	return nil
}

// message returns the advertisement, whose checksum the kernel fills in.
func (a announcement) message(router bool) []byte {
	const advertisement, fromRouter, override, linkAddress, units = 136, 0x80, 0x20, 2, 1 // units of 8 bytes
	flags := byte(override)
	if router {
		flags |= fromRouter
	}
	out := append([]byte{advertisement, 0, 0, 0, flags, 0, 0, 0}, a.addr.AsSlice()...)
	return append(append(out, linkAddress, units), a.mac[:]...)
}
