package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/reconcile"
)

// ipv6DefaultMetric replaces metric 0 in the kernel (IP6_RT_PRIO_USER).
const ipv6DefaultMetric = 1024

// Routes returns the table of a network's routes: those with protocol 108 in the main table, of
// both families, that owner owns. A route of another protocol or another network under the same key
// makes an addition fail with EEXIST. It is not touched, unless it took the place of one of ours
// (see Owner).
func (h *Handle) Routes(owner Owner) reconcile.Table[RouteKey, Route] {
	return &routes{h, owner}
}

type routes struct {
	h     *Handle
	owner Owner
}

func (t *routes) List(ctx context.Context) (map[RouteKey]Route, error) {
	entries, err := listing(ctx, t.list)
	if err != nil {
		return entries, err
	}
	return entries, t.addTaken(ctx, t.owner.taken(entries), entries)
}

func (t *routes) list() (map[RouteKey]Route, error) {
	entries := make(map[RouteKey]Route, t.h.routes)
	err := t.each(Protocol, func(key RouteKey, route Route) {
		guards := route.Unreachable && key.Metric == GuardMetric
		if guards == t.owner.Guards && t.owner.Owns(key, route) {
			entries[unused(entries, key, func(k *RouteKey) { k.Nth++ })] = route
		}
	})
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	t.h.routes = len(entries)
	return entries, err
}

// each calls f for each route of a protocol in the main table, of both families. After an interrupted listing, it
// may have left out some.
func (t *routes) each(protocol netlink.RouteProtocol, f func(RouteKey, Route)) error {
	filter := &netlink.Route{Protocol: protocol, Table: unix.RT_TABLE_MAIN}
	var interrupted error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		err := t.h.strict.RouteListFilteredIter(family, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE,
			func(r netlink.Route) bool {
				if key, route, ok := fromKernel(r); ok {
					f(key, route)
				}
				return true
			})
		switch {
		case errors.Is(err, netlink.ErrDumpInterrupted):
			interrupted = err
		// The family is disabled, or its main table was never used.
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
		case err != nil:
			return err
		}
	}
	return interrupted
}

// fromKernel converts a listed route. ok is false for a route that cannot be one of ours.
func fromKernel(r netlink.Route) (RouteKey, Route, bool) {
	key := RouteKey{Dst: ToPrefix(r.Dst), Metric: uint32(r.Priority)}
	if !key.Dst.IsValid() {
		return RouteKey{}, Route{}, false
	}
	if key.Dst.Addr().Is6() && key.Metric == ipv6DefaultMetric {
		key.Metric = 0
	}
	route := Route{Extra: extra(r)}
	if r.Type == unix.RTN_UNREACHABLE {
		route.Unreachable = true // for IPv6 the kernel reports the loopback device with it
		return key, route, true
	}
	route.Link = r.LinkIndex
	route.Via = ToAddr(r.Gw)
	route.Src = ToAddr(r.Src)
	route.MTU = r.MTU
	route.Onlink = r.Flags&int(netlink.FLAG_ONLINK) != 0
	return key, route, true
}

// extra describes properties that our routes never have, so that a route changed by another program
// differs from the wanted one.
func extra(r netlink.Route) string {
	var p phrase
	p.add(r.Type != unix.RTN_UNICAST && r.Type != unix.RTN_UNREACHABLE, "type %d", r.Type)
	p.add(len(r.MultiPath) > 0, "nexthops %d", len(r.MultiPath))
	p.add(r.Tos != 0, "tos %d", r.Tos)
	p.add(r.MTULock, "locked mtu")
	p.add(r.AdvMSS != 0, "advmss %d", r.AdvMSS)
	p.add(r.Encap != nil, "encap")
	p.add(r.Via != nil, "via another family")
	return p.String()
}

// phrase is a text of parts that are only there if they apply.
type phrase []string

func (p *phrase) add(applies bool, format string, args ...any) {
	if applies {
		*p = append(*p, fmt.Sprintf(format, args...))
	}
}

func (p phrase) String() string { return strings.Join(p, " ") }

func (t *routes) Write(ctx context.Context, changes []reconcile.Change[RouteKey, Route]) []error {
	var requests []*nl.NetlinkRequest
	var of []int // the index of the change that a request belongs to, or helper
	const helper = -1
	for i, c := range changes {
		add := func(kind, flags int, r Route) {
			requests = append(requests, routeRequest(kind, flags, c.Key, r))
			of = append(of, i)
		}
		help := func(kind, flags int) {
			key := RouteKey{Dst: netip.PrefixFrom(c.New.Via, c.New.Via.BitLen())}
			requests = append(requests, routeRequest(kind, flags, key, Route{Link: c.New.Link}))
			of = append(of, helper)
		}
		switch {
		case c.New == nil:
			add(unix.RTM_DELROUTE, 0, *c.Old)
		case c.Old == nil:
			// EXCL, because REPLACE would remove a foreign route with the same key.
			add(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, *c.New)
		case c.Key.Dst.Addr().Is6() && c.New.Onlink && c.Old.Link != c.New.Link:
			// The kernel refuses an IPv6 onlink gateway that its routes reach over another link,
			// even if that is the very route to be replaced. A temporary route to the gateway alone
			// solves this. Deleting the old route first would leave the peer without a route.
			help(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
			add(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, *c.New)
			help(unix.RTM_DELROUTE, 0)
		default:
			add(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, *c.New)
		}
	}
	results := t.h.batch.write(ctx, requests)
	if results == nil {
		return nil
	}
	errs := make([]error, len(changes))
	for j, err := range results {
		if of[j] == helper {
			continue // without it the kernel refuses the route itself; a leftover one is deleted by the next Apply
		}
		goneAlready := requests[j].Type == unix.RTM_DELROUTE && errors.Is(err, unix.ESRCH)
		if errors.Is(err, unix.EEXIST) {
			err = fmt.Errorf("%w: %w", err, backend.ErrForeignRoute)
		}
		if err != nil && !goneAlready && errs[of[j]] == nil {
			errs[of[j]] = err
		}
	}
	return errs
}

func routeRequest(kind, flags int, key RouteKey, r Route) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	msg := nl.NewRtMsg()
	msg.Protocol = Protocol
	msg.Family = unix.AF_INET6
	msg.Dst_len = uint8(key.Dst.Bits())
	switch {
	case r.Unreachable:
		msg.Type = unix.RTN_UNREACHABLE
	case key.Dst.Addr().Is4() && !r.Via.IsValid():
		msg.Scope = unix.RT_SCOPE_LINK // IPv4 requires it for a route without a gateway; IPv6 has no scopes
	}
	if r.Protocol != 0 {
		msg.Protocol = uint8(r.Protocol)
	}
	if kind == unix.RTM_DELROUTE {
		msg.Scope = unix.RT_SCOPE_NOWHERE // matches any
		msg.Type = unix.RTN_UNSPEC
	}
	if key.Dst.Addr().Is4() {
		msg.Family = unix.AF_INET
	}
	if r.Onlink {
		msg.Flags |= uint32(netlink.FLAG_ONLINK)
	}
	req.AddData(msg)
	attr := func(kind int, value []byte) { req.AddData(nl.NewRtAttr(kind, value)) }
	attr(unix.RTA_DST, key.Dst.Addr().AsSlice())
	if r.Link != 0 {
		attr(unix.RTA_OIF, nl.Uint32Attr(uint32(r.Link)))
	}
	if r.Via.IsValid() {
		attr(unix.RTA_GATEWAY, r.Via.AsSlice())
	}
	if r.Src.IsValid() {
		attr(unix.RTA_PREFSRC, r.Src.AsSlice())
	}
	if r.MTU != 0 {
		metrics := nl.NewRtAttr(unix.RTA_METRICS, nil)
		metrics.AddRtAttr(unix.RTAX_MTU, nl.Uint32Attr(uint32(r.MTU)))
		req.AddData(metrics)
	}
	if key.Metric != 0 {
		attr(unix.RTA_PRIORITY, nl.Uint32Attr(key.Metric))
	}
	return req
}

// ToAddr returns an address of the kernel as a netip.Addr, the zero Addr for nil.
func ToAddr(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

// ToPrefix returns a prefix of the kernel as a netip.Prefix, the zero Prefix for nil.
func ToPrefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(ToAddr(n.IP), bits(n))
}
