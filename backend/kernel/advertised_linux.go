package kernel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Advertised returns the sorted names of the devices that have IPv6 routes or addresses from router
// advertisements (RFC 4861) and would lose them when the host forwards. The kernel then drops the
// routes (rt6_purge_dflt_routers) and ignores the advertisements that would renew the addresses.
// This affects devices with accept_ra 1, which means "unless this host is a router itself"
// (ip-sysctl). Programs that process advertisements themselves set it to 0. Advertised looks in the
// calling thread's network namespace.
func Advertised() ([]string, error) {
	h, err := newHandle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	// The kernel then filters by protocol. Kernels before 4.20 cannot, and the library filters
	// instead.
	if err := h.SetStrictCheck(true); err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
		return nil, err
	}
	var indexes []int
	routes, err := h.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA},
		netlink.RT_FILTER_PROTOCOL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list advertised routes: %w", err)
	}
	for _, r := range routes {
		indexes = append(indexes, r.LinkIndex)
		for _, hop := range r.MultiPath {
			indexes = append(indexes, hop.LinkIndex)
		}
	}
	addrs, err := h.AddrList(nil, netlink.FAMILY_V6)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if a.Flags&unix.IFA_F_MANAGETEMPADDR != 0 { // set on every address that the kernel creates from advertisements
			indexes = append(indexes, a.LinkIndex)
		}
	}
	slices.Sort(indexes)
	var names []string
	for _, index := range slices.Compact(indexes) {
		link, err := h.LinkByIndex(index)
		if err != nil {
			continue // gone in the meantime, or index 0
		}
		name := link.Attrs().Name
		if accept, err := Sysctl("ipv6", "conf", name, "accept_ra"); err != nil || accept == "1" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// IgnoresRouters reports whether the kernel ignores router advertisements on a device because the
// host forwards. It returns false where forwarding is off for the device itself.
func IgnoresRouters(device string) bool {
	accept, err := Sysctl("ipv6", "conf", device, "accept_ra")
	forwards, errForwards := Sysctl("ipv6", "conf", device, "forwarding")
	return err == nil && errForwards == nil && accept == "1" && forwards != "0"
}
