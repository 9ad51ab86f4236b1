package underlay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kernel reads from the network namespace of the thread that opened it.
type kernel struct{ nl *netlink.Handle }

func open() (kernel, error) {
	// A separate handle: the package's functions would use the namespace of the thread that first needed them.
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	return kernel{h}, err
}

// look lists interfaces, addresses and default routes, and the route to reach if that is valid.
func (k kernel) look(reach netip.Addr) (Host, error) {
	var host Host
	links, err := whole(k.nl.LinkList)
	if err != nil {
		return Host{}, fmt.Errorf("list links: %w", err)
	}
	addrs, err := whole(k.addresses)
	if err != nil {
		return Host{}, fmt.Errorf("list addresses: %w", err)
	}
	kinds := map[int]string{}
	for _, l := range links {
		kinds[l.Attrs().Index] = l.Type()
	}
	for _, l := range links {
		link := toLink(l)
		for _, vrf := range []int{l.Attrs().Index, l.Attrs().MasterIndex} {
			if kinds[vrf] == "vrf" {
				link.VRF = vrf
			}
		}
		if master := l.Attrs().MasterIndex; kinds[master] != "" && kinds[master] != "vrf" {
			link.Port = master
		}
		link.Addrs = addrs[link.Index]
		host.Links = append(host.Links, link)
	}
	if host.Defaults, err = whole(defaultRoutes); err != nil {
		return Host{}, fmt.Errorf("list routes: %w", err)
	}
	if reach.IsValid() {
		host.Reach, host.ReachErr = k.route(reach, &netlink.RouteGetOptions{})
	}
	return host, nil
}

func toLink(l netlink.Link) Link {
	a := l.Attrs()
	out := Link{Name: a.Name, Index: a.Index, MTU: a.MTU, Up: a.Flags&net.FlagUp != 0,
		Loopback: a.Flags&net.FlagLoopback != 0}
	out.Carrier = a.Flags&net.FlagRunning != 0
	out.Ends = out.Loopback || l.Type() == "dummy" || l.Type() == "vrf"
	switch l := l.(type) {
	case *netlink.Vlan, *netlink.Macvlan, *netlink.Macvtap, *netlink.IPVlan:
		if a.NetNsID < 0 { // else the index belongs to another namespace
			out.Parent = a.ParentIndex
		}
	case *netlink.Vxlan:
		out.Parent, out.Overhead = l.VtepDevIndex, vxlanOverhead(l)
	}
	return out
}

// vxlanOverhead returns the size of the outer IP header, UDP, VXLAN and the inner Ethernet header (RFC 7348).
func vxlanOverhead(l *netlink.Vxlan) int {
	for _, ip := range []net.IP{l.SrcAddr, l.Group} {
		if len(ip) > 0 && ip.To4() == nil {
			return 40 + 8 + 8 + 14
		}
	}
	return 20 + 8 + 8 + 14
}

// whole repeats a listing that changed while it was read.
func whole[T any](list func() (T, error)) (out T, err error) {
	for range 3 {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

// addresses returns those of each link, by ifindex, oldest first. The kernel lists IPv6 addresses in the opposite
// order (ipv6_link_dev_addr), and a new address must not replace the one before it.
func (k kernel) addresses() (map[int][]Address, error) {
	found, err := k.nl.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	v4, v6 := map[int][]Address{}, map[int][]Address{}
	for _, a := range found {
		addr, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		addr = addr.Unmap()
		out := Address{
			Addr:       addr,
			Tentative:  a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0,
			Deprecated: a.Flags&unix.IFA_F_DEPRECATED != 0,
			// The same bit means "secondary" on an IPv4 address.
			Temporary: addr.Is6() && a.Flags&unix.IFA_F_TEMPORARY != 0,
			Narrow:    a.Scope >= unix.RT_SCOPE_LINK,
		}
		if addr.Is4() {
			v4[a.LinkIndex] = append(v4[a.LinkIndex], out)
		} else {
			v6[a.LinkIndex] = append(v6[a.LinkIndex], out)
		}
	}
	for link, list := range v6 {
		slices.Reverse(list)
		v4[link] = append(v4[link], list...)
	}
	return v4, nil
}

func toRoute(r netlink.Route) Route {
	source, _ := netip.AddrFromSlice(r.Src)
	out := Route{Source: source.Unmap(), MTU: r.MTU}
	for _, hop := range r.MultiPath {
		if hop.Flags&unix.RTNH_F_DEAD == 0 {
			out.Hops = append(out.Hops, hop.LinkIndex)
		}
	}
	if len(r.MultiPath) == 0 && r.LinkIndex != 0 && r.Flags&unix.RTNH_F_DEAD == 0 {
		out.Hops = []int{r.LinkIndex}
	}
	return out
}

// route returns the kernel's route to an address; for an address of this host it is loopback's.
func (k kernel) route(to netip.Addr, o *netlink.RouteGetOptions) (Route, error) {
	routes, err := k.nl.RouteGetWithOptions(net.IP(to.AsSlice()), o)
	if err != nil {
		return Route{}, fmt.Errorf("no route: %w", err)
	}
	if len(routes) == 0 {
		return Route{}, fmt.Errorf("no route")
	}
	return toRoute(routes[0]), nil
}

// paths returns the routes that packets from the choice to each address take. It asks for the route itself and not
// for the kernel's cached one, whose MTU may come from path MTU discovery and is forgotten after minutes. It leaves
// out addresses that cannot be reached now.
func (k kernel) paths(host Host, c Choice, to []netip.Addr) []Path {
	o := &netlink.RouteGetOptions{FIBMatch: true}
	if c.Own[0].IsValid() {
		o.SrcAddr = c.Own[0].AsSlice()
	}
	if l, ok := host.link(c.Index); ok {
		o.OifIndex = l.VRF
	}
	var out []Path
	for _, addr := range to {
		if r, err := k.route(addr, o); err == nil && !host.has(addr) {
			out = append(out, Path{addr, r})
		}
	}
	return out
}

// VRF returns the ifindex of the VRF that a device is in, its own if the device is a VRF, and 0 if
// there is none. It asks in the calling thread's namespace.
func VRF(device string) int {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return 0
	}
	if master, err := netlink.LinkByIndex(link.Attrs().MasterIndex); err == nil {
		link = master
	}
	if link.Type() != "vrf" {
		return 0
	}
	return link.Attrs().Index
}
