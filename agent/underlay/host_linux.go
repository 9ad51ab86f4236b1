package underlay

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// look lists interfaces, addresses and default routes of the calling thread's
// network namespace, and the route to reach when that is valid.
func look(reach netip.Addr) (Host, error) {
	// A handle of its own: the package's functions would use the namespace of
	// whichever thread first needed them.
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return Host{}, err
	}
	defer h.Close()

	var host Host
	links, err := h.LinkList()
	if err != nil {
		return Host{}, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		link, err := lookLink(h, l)
		if err != nil {
			return Host{}, err
		}
		host.Links = append(host.Links, link)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST},
			netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		if err != nil {
			return Host{}, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			host.Defaults = append(host.Defaults, defaultRoutes(r, family == netlink.FAMILY_V6)...)
		}
	}
	if reach.IsValid() {
		host.Reach, host.ReachErr = lookRoute(h, reach)
	}
	return host, nil
}

func lookLink(h *netlink.Handle, l netlink.Link) (Link, error) {
	a := l.Attrs()
	out := Link{Name: a.Name, Index: a.Index, MTU: a.MTU, Up: a.Flags&net.FlagUp != 0, Loopback: a.Flags&net.FlagLoopback != 0}
	addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return Link{}, fmt.Errorf("list addresses of %s: %w", a.Name, err)
	}
	for _, a := range addrs {
		addr, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		addr = addr.Unmap()
		out.Addrs = append(out.Addrs, Address{
			Addr:       addr,
			Tentative:  a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0,
			Deprecated: a.Flags&unix.IFA_F_DEPRECATED != 0,
			// The same bit means "secondary" on an IPv4 address.
			Temporary: addr.Is6() && a.Flags&unix.IFA_F_TEMPORARY != 0,
		})
	}
	return out, nil
}

// defaultRoutes is r as one route a next hop, none when it is no default route.
func defaultRoutes(r netlink.Route, v6 bool) []DefaultRoute {
	if r.Dst != nil {
		if ones, _ := r.Dst.Mask.Size(); ones != 0 || !r.Dst.IP.IsUnspecified() {
			return nil
		}
	}
	out := []DefaultRoute{}
	for _, hop := range r.MultiPath {
		out = append(out, DefaultRoute{Link: hop.LinkIndex, Metric: r.Priority, IPv6: v6})
	}
	if len(out) == 0 && r.LinkIndex != 0 {
		out = append(out, DefaultRoute{Link: r.LinkIndex, Metric: r.Priority, IPv6: v6})
	}
	return out
}

func lookRoute(h *netlink.Handle, to netip.Addr) (Route, error) {
	routes, err := h.RouteGet(net.IP(to.AsSlice()))
	if err != nil {
		return Route{}, fmt.Errorf("no route: %w", err)
	}
	if len(routes) == 0 {
		return Route{}, fmt.Errorf("no route")
	}
	source, _ := netip.AddrFromSlice(routes[0].Src)
	return Route{Link: routes[0].LinkIndex, Source: source.Unmap()}, nil
}
