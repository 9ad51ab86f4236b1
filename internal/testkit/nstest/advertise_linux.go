package nstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Advertise sends one router advertisement (RFC 4861, 4.2) from a device of the calling thread's
// network namespace to all hosts on its link. For the lifetime, they get a default route through
// this router and, with a valid 64-bit prefix, addresses in it and a route to it.
func Advertise(link string, lifetime time.Duration, prefix netip.Prefix) (err error) {
	device, err := net.InterfaceByName(link)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	const hops = 255 // hosts ignore a router further away
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, hops),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, device.Index))
	if err != nil {
		return err
	}
	packet := []byte{134, 0, 0, 0, 64, 0} // the kernel fills in the checksum
	packet = binary.BigEndian.AppendUint16(packet, uint16(lifetime/time.Second))
	packet = append(packet, make([]byte, 8)...) // reachable time and retransmission timer: unspecified
	if prefix.IsValid() {
		const onLinkAndAutonomous = 0xc0
		packet = append(packet, 3, 4, byte(prefix.Bits()), onLinkAndAutonomous)
		for range 2 { // valid and preferred
			packet = binary.BigEndian.AppendUint32(packet, uint32(lifetime/time.Second))
		}
		packet = append(append(packet, 0, 0, 0, 0), prefix.Addr().AsSlice()...)
	}
	allNodes := netip.MustParseAddr("ff02::1").As16()
	return unix.Sendto(fd, packet, 0, &unix.SockaddrInet6{Addr: allNodes, ZoneId: uint32(device.Index)})
}
