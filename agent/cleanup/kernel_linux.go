package cleanup

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

	"github.com/lenonet/leno/agent/firewall/leftover"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/reconcile"
	"github.com/lenonet/leno/registry"
)

// A kernelFinder finds the devices, the routes and the routing rules of leno in the kernel.
type kernelFinder struct {
	host   *host
	list   *leftovers
	handle *kernel.Handle // nil before findAll, and if that could not open it

	// poolsInStore returns the pools of a network of which no file contains them.
	poolsInStore func(ctx context.Context, network string) ([]netip.Prefix, error)
}

// close ends what removing needs.
func (f *kernelFinder) close() error {
	if f.handle == nil {
		return nil
	}
	return f.handle.Close()
}

// findAll finds devices and then routes. Addresses, neighbours and forwarding entries are removed with their device.
// The routes that refuse packets are removed last, so that no packet of the overlay is sent elsewhere before.
func (f *kernelFinder) findAll(ctx context.Context) {
	handle, err := kernel.Open()
	if err != nil {
		f.list.addLeft(Leftover{Kind: Device, Name: "any"}, err)
		return
	}
	f.handle = handle
	f.findBridges(ctx)
	var owners []kernel.Owner
	for _, link := range f.findDevices(ctx) {
		owners = append(owners, kernel.Owner{Links: []int{link.Attrs().Index}})
	}
	everywhere := kernel.Owner{Pools: []netip.Prefix{
		netip.PrefixFrom(netip.IPv4Unspecified(), 0),
		netip.PrefixFrom(netip.IPv6Unspecified(), 0),
	}}
	if f.host.o.Network == "" {
		f.findRoutes(ctx, append(owners, everywhere))
		f.findRoutingRules(ctx, everywhere.Pools)
		return
	}
	only := slices.IndexFunc(f.host.networks, func(t networkTraces) bool { return t.name == f.host.o.Network })
	t := &f.host.networks[only]
	if len(t.pools) == 0 && !f.host.o.KeepLease {
		t.pools, err = f.poolsInStore(ctx, t.name)
	}
	if len(t.pools) == 0 && f.hasStrayRoutes(ctx, everywhere, owners) {
		f.list.addLeft(Leftover{Kind: Route, Name: "any", Network: t.name}, fmt.Errorf(
			"there are routes of no network that is known here, and nothing tells the pools of this one, "+
				"as its block in a -config-file would: %w",
			cmp.Or(err, registry.ErrNetworkNotFound)))
	}
	f.findRoutes(ctx, append(owners, kernel.Owner{Pools: t.pools}))
	f.findRoutingRules(ctx, t.pools)
}

// hasStrayRoutes reports whether there are routes of leno's that belong neither to an owner nor to a known network.
func (f *kernelFinder) hasStrayRoutes(
	ctx context.Context, all kernel.Owner, owners []kernel.Owner,
) bool {
	for _, table := range tablesOf(f.handle, all) {
		routes, err := table.List(ctx)
		for key, route := range routes {
			owned := slices.ContainsFunc(owners, func(o kernel.Owner) bool { return o.Owns(key, route) })
			if !owned && f.host.networkOf(key.Dst) == "" {
				return true
			}
		}
		if err != nil {
			return true
		}
	}
	return false
}

// tablesOf returns the tables with an owner's routes: those of its backend, and those of its guard.
func tablesOf(handle *kernel.Handle, owner kernel.Owner) []reconcile.Table[kernel.RouteKey, kernel.Route] {
	guards := kernel.Owner{Pools: owner.Pools, Guards: true}
	return []reconcile.Table[kernel.RouteKey, kernel.Route]{handle.Routes(owner), handle.Routes(guards)}
}

// findDevices adds the devices and returns them.
func (f *kernelFinder) findDevices(ctx context.Context) (out []netlink.Link) {
	addrs := map[int][]netip.Prefix{}
	candidates, err := f.handle.Links(ctx, func(link netlink.Link) bool {
		a := link.Attrs()
		_, hasAlias := backend.NetworkOfAlias(a.Alias)
		if hasAlias || strings.HasPrefix(a.Name, backend.LinkPrefix) {
			return true
		}
		_, may := overlayDevice(link)
		return may // it may have been renamed
	})
	if err != nil {
		f.list.addLeft(Leftover{Kind: Device, Name: "any"}, err)
		return nil
	}
	for _, link := range candidates {
		index := link.Attrs().Index
		found, err := f.handle.Addresses(index).List(ctx)
		if err != nil {
			continue // it has gone, or is known by its name
		}
		for addr := range found {
			addrs[index] = append(addrs[index], addr)
		}
	}
	for _, link := range candidates {
		r, ours := f.judgeDevice(link, addrs[link.Attrs().Index])
		switch {
		case !f.host.isWanted(r.Network):
		case ours && isAttached(link):
			f.list.addLeft(r, errors.New("a process reads it: end that first"))
		case ours:
			out = append(out, link)
			f.list.add(r, func(context.Context) error { return f.handle.DeleteLink(link) })
		case r.Reason != "":
			f.list.report.Foreign = append(f.list.report.Foreign, r)
		}
	}
	return out
}

// judgeDevice reports whether a device is leno's: by its kind, and by its alias, an address of this host on it, or its
// name. On a host that moves from flannel to leno and keeps its subnet, flannel's device has the same address, but
// another name. If a device has a name of leno's and is not leno's, r.Reason says why.
func (f *kernelFinder) judgeDevice(link netlink.Link, addrs []netip.Prefix) (r Leftover, ours bool) {
	a := link.Attrs()
	detail, like := overlayDevice(link)
	r = Leftover{Kind: Device, Name: a.Name, Detail: detail}
	if network, ok := backend.NetworkOfAlias(a.Alias); ok {
		r.Network = network
	}
	for _, t := range f.host.networks {
		isRenamed := like && !strings.HasPrefix(a.Name, "flannel") && hasBaseAddress(addrs, t.saved.Subnets)
		if isRenamed || slices.Contains(backend.LinkNames(t.name), a.Name) {
			r.Network = t.name
		}
	}
	named := strings.HasPrefix(a.Name, backend.LinkPrefix)
	switch {
	case like && (r.Network != "" || named && isLenosByName(link)):
		return r, true
	case named:
		r.Reason = "leno makes no such device"
		if like {
			r.Reason = "only its name suggests that it is leno's"
		}
	}
	return r, false
}

// isLenosByName reports whether a device with a name like leno's is leno's although nothing else shows it. A VXLAN
// device of leno's learns no forwarding entries unless an operator has switched it on, and users make WireGuard devices
// of any name.
func isLenosByName(link netlink.Link) bool {
	switch l := link.(type) {
	case *netlink.Vxlan:
		return !l.Learning
	case *netlink.Wireguard:
		return false
	}
	return true
}

// hasBaseAddress reports whether the first address of one of the subnets, as a single address, is among a device's
// addresses. Only the network's device has it.
func hasBaseAddress(addrs, subnets []netip.Prefix) bool {
	return slices.ContainsFunc(subnets, func(subnet netip.Prefix) bool {
		base := subnet.Masked().Addr()
		return slices.Contains(addrs, netip.PrefixFrom(base, base.BitLen()))
	})
}

// overlayDevice describes a device, and reports whether some version of leno creates such devices: a VXLAN device with
// a local address and without a default destination, a persistent TUN without packet information, or a WireGuard
// device.
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
	case *netlink.Wireguard:
		return "wireguard", true
	}
	return link.Type(), false
}

// isAttached reports whether a process has a TUN device open.
func isAttached(link netlink.Link) bool {
	tun, ok := link.(*netlink.Tuntap)
	return ok && tun.Queues > 0
}

// findRoutes adds the routes of leno's protocol that belong to an owner, each once.
func (f *kernelFinder) findRoutes(ctx context.Context, owners []kernel.Owner) {
	type found struct {
		key   kernel.RouteKey
		route kernel.Route
	}
	set := map[found]bool{}
	for _, owner := range owners {
		for _, table := range tablesOf(f.handle, owner) {
			routes, err := table.List(ctx)
			if err != nil {
				f.list.addLeft(Leftover{Kind: Route, Name: "any"}, err)
			}
			for key, route := range routes {
				set[found{key, route}] = true
			}
		}
	}
	rank := func(r kernel.Route) int {
		if r.Unreachable {
			return 1
		}
		return 0
	}
	all := slices.SortedFunc(maps.Keys(set), func(a, b found) int {
		return cmp.Or(cmp.Compare(rank(a.route), rank(b.route)), kernel.CompareRoutes(a.key, b.key))
	})
	table := f.handle.Routes(kernel.Owner{})
	for _, r := range all {
		l := Leftover{Kind: Route, Name: r.key.String(), Network: f.host.networkOf(r.key.Dst), Detail: routeText(r.route)}
		f.list.add(l, func(ctx context.Context) error {
			errs := table.Write(ctx, []reconcile.Change[kernel.RouteKey, kernel.Route]{{Key: r.key, Old: &r.route}})
			return errors.Join(errs...)
		})
	}
}

// findRoutingRules adds the routing rules of leno's protocol for packets to the pools.
func (f *kernelFinder) findRoutingRules(ctx context.Context, pools []netip.Prefix) {
	table := f.handle.Rules(pools)
	rules, err := table.List(ctx)
	if err != nil {
		f.list.addLeft(Leftover{Kind: Rule, Name: "any"}, err)
	}
	for _, rule := range slices.SortedFunc(maps.Keys(rules), kernel.ComparePoolRules) {
		name := fmt.Sprintf("%d: %s", rule.Priority, rule.Text)
		f.list.add(Leftover{Kind: Rule, Name: name, Network: f.host.networkOf(rule.Dst)}, func(ctx context.Context) error {
			change := reconcile.Change[kernel.PoolRule, struct{}]{Key: rule, Old: &struct{}{}}
			return errors.Join(table.Write(ctx, []reconcile.Change[kernel.PoolRule, struct{}]{change})...)
		})
	}
}

// routeText describes a route with the name of its device instead of the number.
func routeText(r kernel.Route) string {
	text := r.String()
	if link, err := net.InterfaceByIndex(r.Link); err == nil && r.Link != 0 {
		text = strings.Replace(text, fmt.Sprintf("link %d", r.Link), "dev "+link.Name, 1)
	}
	return text
}

// findRules adds the rules in every firewall, of one network or, if it is "", of all.
func findRules(ctx context.Context, network string, list *leftovers) {
	found, err := leftover.Find(ctx, network)
	if err != nil {
		list.addLeft(Leftover{Kind: Firewall, Name: "any"}, err)
	}
	for _, l := range found {
		list.add(Leftover{
			Kind:    Firewall,
			Name:    l.Program + " " + l.Table,
			Network: network,
			Detail:  strings.Join(l.Parts, ", "),
		}, l.Remove)
	}
}
