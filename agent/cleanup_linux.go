package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/reconcile"
	"github.com/lenonet/leno/registry"
)

// findKernel finds devices, with which addresses, neighbours and forwarding
// entries go, and then routes: the one that refuses packets goes last, so that
// none of the overlay's is sent elsewhere meanwhile.
func (s *sweep) findKernel(ctx context.Context) {
	handle, err := kernel.Open()
	if err != nil {
		s.left(Remnant{Kind: RemnantDevice, Name: "any"}, err)
		return
	}
	s.closers = append(s.closers, handle.Close)
	var owners []kernel.Owner
	for _, link := range s.findDevices(ctx, handle) {
		owners = append(owners, kernel.Owner{Link: link.Attrs().Index})
	}
	everywhere := kernel.Owner{Pools: []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}}
	if s.o.Network == "" {
		s.findRoutes(ctx, handle, append(owners, everywhere))
		return
	}
	t := s.network(s.o.Network)
	if len(t.pools) == 0 && !s.o.KeepLease {
		t.pools, err = s.poolsInStore(ctx, t.name)
	}
	if len(t.pools) == 0 && s.strayRoutes(ctx, handle, everywhere, owners) {
		s.left(Remnant{Kind: RemnantRoute, Name: "any", Network: t.name}, fmt.Errorf(
			"there are routes of no network that is known here, and nothing tells the pools of this one, as its block in a -config-file would: %w",
			cmp.Or(err, registry.ErrNetworkNotFound)))
	}
	s.findRoutes(ctx, handle, append(owners, kernel.Owner{Pools: t.pools}))
}

// network is what is known of it.
func (s *sweep) network(name string) *trace {
	return &s.networks[slices.IndexFunc(s.networks, func(t trace) bool { return t.name == name })]
}

// strayRoutes says whether there are routes of ours that neither an owner nor any
// of the known networks owns.
func (s *sweep) strayRoutes(ctx context.Context, handle *kernel.Handle, all kernel.Owner, owners []kernel.Owner) bool {
	routes, err := handle.Routes(all).List(ctx)
	for key, route := range routes {
		owned := slices.ContainsFunc(owners, func(o kernel.Owner) bool { return o.Owns(key, route) })
		if !owned && s.networkOf(key.Dst) == "" {
			return true
		}
	}
	return err != nil
}

// findDevices returns those that go.
func (s *sweep) findDevices(ctx context.Context, handle *kernel.Handle) (out []netlink.Link) {
	addrs := map[int][]netip.Prefix{}
	candidates, err := handle.Links(ctx, func(link netlink.Link) bool {
		a := link.Attrs()
		if strings.HasPrefix(a.Name, backend.LinkPrefix) || strings.HasPrefix(a.Alias, backend.LinkAlias("")) {
			return true
		}
		_, may := overlayDevice(link)
		return may // it may have been renamed
	})
	if err != nil {
		s.left(Remnant{Kind: RemnantDevice, Name: "any"}, err)
		return nil
	}
	for _, link := range candidates {
		index := link.Attrs().Index
		found, err := handle.Addresses(index).List(ctx)
		if err != nil {
			continue // it is gone, or known by its name
		}
		for addr := range found {
			addrs[index] = append(addrs[index], addr)
		}
	}
	for _, link := range candidates {
		r, ours := s.judgeDevice(link, addrs[link.Attrs().Index])
		switch {
		case !s.wants(r.Network):
		case ours && attached(link):
			s.left(r, errors.New("a process reads it: end that first"))
		case ours:
			out = append(out, link)
			s.add(r, func(context.Context) error { return handle.DeleteLink(link) })
		case r.Reason != "":
			s.report.Foreign = append(s.report.Foreign, r)
		}
	}
	return out
}

// judgeDevice says whether a device is ours: by its alias, by an address of this
// host's on it, or by its name, and always by its kind. flannel's has the same
// address while both are on a host that keeps its subnet, and a name of its own.
// Reason is why not of one that has our name.
func (s *sweep) judgeDevice(link netlink.Link, addrs []netip.Prefix) (r Remnant, ours bool) {
	a := link.Attrs()
	detail, like := overlayDevice(link)
	r = Remnant{Kind: RemnantDevice, Name: a.Name, Detail: detail}
	if network, ok := strings.CutPrefix(a.Alias, backend.LinkAlias("")); ok {
		r.Network = network
	}
	for _, t := range s.networks {
		if a.Name == backend.LinkName(t.name) || like && !strings.HasPrefix(a.Name, "flannel") && standsOn(addrs, t.saved.Subnets) {
			r.Network = t.name
		}
	}
	named := strings.HasPrefix(a.Name, backend.LinkPrefix)
	switch {
	case like && (r.Network != "" || named && !learns(link)):
		return r, true
	case named:
		r.Reason = "leno makes no such device"
	}
	return r, false
}

// learns says of a VXLAN device whether it learns who is where: of one of ours
// somebody has to have switched that on.
func learns(link netlink.Link) bool {
	vxlan, ok := link.(*netlink.Vxlan)
	return ok && vxlan.Learning
}

// standsOn says whether one of the subnets' own first addresses is among a
// device's: no device but the network's has it alone.
func standsOn(addrs, subnets []netip.Prefix) bool {
	return slices.ContainsFunc(subnets, func(subnet netip.Prefix) bool {
		base := subnet.Masked().Addr()
		return slices.Contains(addrs, netip.PrefixFrom(base, base.BitLen()))
	})
}

// overlayDevice describes a device, and says whether some version of leno makes
// such: a VXLAN device that sends from one address and to no default destination,
// a persistent TUN of bare packets with any number of queues.
func overlayDevice(link netlink.Link) (kind string, like bool) {
	switch l := link.(type) {
	case *netlink.Vxlan:
		switch {
		case l.FlowBased:
			return "vxlan, external", false
		case l.Group != nil:
			return "vxlan with a default destination", false
		case len(l.SrcAddr) == 0:
			return "vxlan without a local address", false
		}
		return fmt.Sprintf("vxlan, vni %d, port %d", l.VxlanId, l.Port), true
	case *netlink.Tuntap:
		switch {
		case l.Mode != netlink.TUNTAP_MODE_TUN:
			return "tap", false
		case l.NonPersist:
			return "tun that goes with its process", false
		case l.Flags&netlink.TUNTAP_NO_PI == 0:
			return "tun with packet information", false
		}
		return "tun", true
	}
	return link.Type(), false
}

// attached says whether a process has a TUN device open.
func attached(link netlink.Link) bool {
	tun, ok := link.(*netlink.Tuntap)
	return ok && tun.Queues > 0
}

// findRoutes finds the routes of our protocol that an owner owns, each once.
func (s *sweep) findRoutes(ctx context.Context, handle *kernel.Handle, owners []kernel.Owner) {
	type found struct {
		key   kernel.RouteKey
		route kernel.Route
	}
	set := map[found]bool{}
	for _, owner := range owners {
		routes, err := handle.Routes(owner).List(ctx)
		if err != nil {
			s.left(Remnant{Kind: RemnantRoute, Name: "any"}, err)
		}
		for key, route := range routes {
			set[found{key, route}] = true
		}
	}
	last := func(r kernel.Route) int {
		if r.Unreachable {
			return 1
		}
		return 0
	}
	all := slices.SortedFunc(maps.Keys(set), func(a, b found) int {
		return cmp.Or(cmp.Compare(last(a.route), last(b.route)), kernel.CompareRoutes(a.key, b.key))
	})
	table := handle.Routes(kernel.Owner{})
	for _, f := range all {
		r := Remnant{Kind: RemnantRoute, Name: f.key.String(), Network: s.networkOf(f.key.Dst), Detail: routeText(f.route)}
		s.add(r, func(ctx context.Context) error {
			errs := table.Write(ctx, []reconcile.Change[kernel.RouteKey, kernel.Route]{{Key: f.key, Old: &f.route}})
			return errors.Join(errs...)
		})
	}
}

// routeText names the device, which Route only has the number of.
func routeText(r kernel.Route) string {
	text := r.String()
	if link, err := net.InterfaceByIndex(r.Link); err == nil && r.Link != 0 {
		text = strings.Replace(text, fmt.Sprintf("link %d", r.Link), "dev "+link.Name, 1)
	}
	return text
}

// networkOf is the network whose pool it is in, "" when that is not known.
func (s *sweep) networkOf(dst netip.Prefix) string {
	for _, t := range s.networks {
		if (kernel.Owner{Pools: t.pools}).Owns(kernel.RouteKey{Dst: dst}, kernel.Route{}) {
			return t.name
		}
	}
	return ""
}

// findRules finds rules in every firewall there is.
func (s *sweep) findRules(ctx context.Context) {
	found, err := firewall.Leftovers(ctx, s.o.Network)
	if err != nil {
		s.left(Remnant{Kind: RemnantFirewall, Name: "any"}, err)
	}
	for _, l := range found {
		s.add(Remnant{Kind: RemnantFirewall, Name: l.Program + " " + l.Table, Network: s.o.Network, Detail: strings.Join(l.Parts, ", ")}, l.Remove)
	}
}
