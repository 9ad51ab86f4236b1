package handover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/registry/conns"
	"github.com/lenonet/leno/registry/flannel"
)

// host is what is handed over on this host.
type host struct {
	Options
	report Report
}

// flannelName returns flannel's name of a device that sends to and receives from an address.
func flannelName(local netip.Addr, vni int) string {
	if local.Is6() {
		return fmt.Sprintf("flannel-v6.%d", vni)
	}
	return fmt.Sprintf("flannel.%d", vni)
}

// tunnel is a VXLAN device.
type tunnel struct {
	*netlink.Vxlan
	local netip.Addr
}

// tunnels returns the network's VXLAN devices that is accepts, that over IPv4 first.
func (h *host) tunnels(is func(*netlink.LinkAttrs) bool) (out []tunnel, err error) {
	options, ok, err := vxlanOf(h.Network)
	if err != nil || !ok {
		return nil, err
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, link := range links {
		v, ok := link.(*netlink.Vxlan)
		if !ok || v.VxlanId != options.VNI || v.Port != options.Port || !is(v.Attrs()) {
			continue
		}
		local, _ := netip.AddrFromSlice(v.SrcAddr)
		out = append(out, tunnel{v, local.Unmap()})
	}
	slices.SortFunc(out, func(a, b tunnel) int { return a.local.Compare(b.local) })
	return out, nil
}

// adopt gives flannel's devices leno's aliases, by which leno's backend finds a device that was renamed.
func (h *host) adopt(ctx context.Context) error {
	own, err := conns.HostAddrs()
	if err == nil {
		err = h.checkPositions(ctx, own)
	}
	if err != nil {
		return err
	}
	_, first := carriage.Of(h.Network.Carriage()).Current.Link(h.Network.Name)
	aliases := []string{first, backend.OtherFamilyLinkAlias(h.Network.Name)}
	devices, err := h.tunnels(func(a *netlink.LinkAttrs) bool {
		return flannel.IsLink(a.Name) || slices.Contains(aliases, a.Alias)
	})
	if err != nil {
		return err
	}
	var on []int
	for i, t := range devices[:min(len(devices), len(aliases))] {
		on = append(on, t.Index)
		if t.Alias == aliases[i] {
			continue
		}
		err := h.change(Change{Kind: Device, Name: t.Name, Detail: "gets the alias " + aliases[i]}, func() error {
			return netlink.LinkSetAlias(t.Vxlan, aliases[i])
		})
		if err != nil {
			return err
		}
	}
	routes, err := h.routes(unix.RTPROT_BOOT)
	for _, r := range routes {
		if r.Type != unix.RTN_UNICAST || r.Gw == nil || !slices.Contains(on, r.LinkIndex) && !h.isToPeer(r) {
			continue
		}
		err = errors.Join(err, h.setProtocol(r, kernel.Protocol))
	}
	return err
}

// isToPeer reports whether a route goes to the subnet of another host through that host's public address, as those of
// flannel's host-gw do.
func (h *host) isToPeer(r netlink.Route) bool {
	dst, via := kernel.ToPrefix(r.Dst), kernel.ToAddr(r.Gw)
	for _, l := range h.Leases {
		if slices.Contains(l.Subnets, dst) && slices.Contains(l.PublicIPs, via) {
			return true
		}
	}
	return false
}

// giveBack gives leno's devices flannel's names. Some have them already if it was killed before.
func (h *host) giveBack(context.Context) error {
	name := h.Network.Name
	names := backend.LinkNames(name)
	aliases := []string{backend.LinkAlias(name), backend.LinkAliasB(name), backend.OtherFamilyLinkAlias(name)}
	devices, err := h.tunnels(func(a *netlink.LinkAttrs) bool {
		return slices.Contains(names, a.Name) || slices.Contains(aliases, a.Alias) || flannel.IsLink(a.Name)
	})
	if err != nil {
		return err
	}
	routes, err := h.routes(kernel.Protocol) // before the devices, which may have to be taken down
	overIPv4 := map[int]bool{}
	for _, t := range devices {
		overIPv4[t.Index] = t.local.Is4()
		to := flannelName(t.local, t.VxlanId)
		if t.Name == to && t.Alias == "" {
			continue
		}
		err = errors.Join(err, h.change(Change{Kind: Device, Name: t.Name, Detail: "gets the name " + to}, func() error {
			if err := rename(t, to); err != nil {
				return err
			}
			return netlink.LinkSetAlias(t.Vxlan, "")
		}))
	}
	for _, r := range routes {
		isIPv6 := r.Gw != nil && r.Gw.To4() == nil
		if r.Type == unix.RTN_UNREACHABLE || isIPv6 && overIPv4[r.LinkIndex] {
			err = errors.Join(err, h.change(Change{Kind: Route, Name: kernel.ToPrefix(r.Dst).String(), Removed: true},
				func() error {
					return netlink.RouteDel(&r)
				}))
			continue
		}
		err = errors.Join(err, h.setProtocol(r, unix.RTPROT_BOOT))
	}
	return err
}

// rename renames a device. Before Linux 6.2 it must be down for that, which removes its routes; they are added again by
// setProtocol.
func rename(t tunnel, name string) error {
	err := netlink.LinkSetName(t.Vxlan, name)
	if errors.Is(err, unix.EBUSY) {
		err = errors.Join(netlink.LinkSetDown(t.Vxlan), netlink.LinkSetName(t.Vxlan, name), netlink.LinkSetUp(t.Vxlan))
	}
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s exists already: remove that device, or give it another name", name)
	}
	return err
}

// routes returns the routes of a protocol to the network's addresses in the main table.
func (h *host) routes(protocol netlink.RouteProtocol) (out []netlink.Route, err error) {
	filter := &netlink.Route{Protocol: protocol, Table: unix.RT_TABLE_MAIN}
	for _, p := range h.Network.Plan {
		family := netlink.FAMILY_V6
		if p.Prefix.Addr().Is4() {
			family = netlink.FAMILY_V4
		}
		found, err := netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range found {
			dst := kernel.ToPrefix(r.Dst)
			if dst.IsValid() && dst.Bits() >= p.Prefix.Bits() && p.Prefix.Contains(dst.Addr()) {
				out = append(out, r)
			}
		}
	}
	return out, nil
}

// setProtocol changes the protocol of a route in place.
func (h *host) setProtocol(r netlink.Route, protocol netlink.RouteProtocol) error {
	c := Change{Kind: Route, Name: kernel.ToPrefix(r.Dst).String(), Detail: "without a gateway"}
	if r.Gw != nil {
		c.Detail = "via " + kernel.ToAddr(r.Gw).String()
	}
	return h.change(c, func() error {
		r.Protocol = protocol
		r.Flags &= int(netlink.FLAG_ONLINK) // the others are the kernel's answer
		return netlink.RouteReplace(&r)
	})
}

// change makes a change and reports it.
func (h *host) change(c Change, run func() error) error {
	if !h.DryRun {
		if err := run(); err != nil {
			return fmt.Errorf("%s %s: %w", c.Kind, c.Name, err)
		}
	}
	h.report.Changes = append(h.report.Changes, c)
	return nil
}
