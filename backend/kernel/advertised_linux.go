package kernel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Advertised are the names of the devices that would lose IPv6 routes if the
// host began to forward, sorted: those with routes that routers advertise (RFC
// 4861), and accept_ra 1, by which the kernel means "unless this host is a router
// itself" (ip-sysctl, rt6_purge_dflt_routers). Programs that read advertisements
// themselves set it to 0. It looks in the calling thread's network namespace.
func Advertised() ([]string, error) {
	h, err := newHandle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	routes, err := h.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list advertised routes: %w", err)
	}
	var names []string
	for _, r := range routes {
		indexes := []int{r.LinkIndex}
		for _, hop := range r.MultiPath {
			indexes = append(indexes, hop.LinkIndex)
		}
		for _, index := range indexes {
			link, err := h.LinkByIndex(index)
			if err != nil {
				continue // gone meanwhile, or none
			}
			name := link.Attrs().Name
			if accept, err := Sysctl("ipv6", "conf", name, "accept_ra"); err != nil || accept == "1" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
