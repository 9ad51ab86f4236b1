package switchover

import (
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/lenonet/leno/backend/kernel"
)

// routesOver returns the destinations of leno's routes into a device, nil if they cannot be read.
func routesOver(link string) map[netip.Prefix]bool {
	device, err := netlink.LinkByName(link)
	if err != nil {
		return nil
	}
	wanted := &netlink.Route{LinkIndex: device.Attrs().Index, Protocol: kernel.Protocol}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, wanted, netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil
	}
	out := map[netip.Prefix]bool{}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		if addr, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			bits, _ := r.Dst.Mask.Size()
			out[netip.PrefixFrom(addr.Unmap(), bits)] = true
		}
	}
	return out
}
