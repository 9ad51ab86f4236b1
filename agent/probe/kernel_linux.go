package probe

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
)

// readKernel gathers what a plan needs to know, in the calling thread's network namespace. Its result looks up routes
// on demand, until done is called.
func readKernel(h Host) (s kernelState, done func(), err error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return s, nil, fmt.Errorf("open netlink: %w", err)
	}
	list, err := handle.AddrList(nil, netlink.FAMILY_ALL)
	// the list still has what did not change while containers come and go
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		handle.Close()
		return s, nil, fmt.Errorf("list addresses: %w", err)
	}
	s = kernelState{local: map[netip.Addr]bool{}, strictFilter: kernel.ReversePathFilter(h.Underlay.Interface) == "1"}
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			s.local[addr.Unmap()] = true
		}
	}
	if link, err := handle.LinkByName(h.Link); err == nil {
		s.link = link.Attrs().Index
	}
	if link, err := handle.LinkByName(backend.OtherFamilyLinkName(h.Network)); err == nil {
		s.otherFamily, s.otherFamilyMTU = link.Attrs().Index, link.Attrs().MTU
	}
	s.route = func(to netip.Addr, vrf int) (int, bool) {
		routes, err := handle.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{OifIndex: vrf})
		if err != nil || len(routes) == 0 {
			return 0, false
		}
		return routes[0].LinkIndex, routes[0].Gw == nil
	}
	s.routeMTU = func(to netip.Addr) int {
		routes, err := handle.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
		if err != nil || len(routes) == 0 {
			return 0
		}
		return routes[0].MTU
	}
	return s, handle.Close, nil
}
