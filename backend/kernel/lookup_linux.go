package kernel

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A RouteQuery names packets whose route LookUpRoute asks for.
type RouteQuery struct {
	Dst netip.Addr
	Src netip.Addr // zero if the kernel selects it
	In  string     // device by which the packets arrive, "" if this host sends them
}

// A FoundRoute is the entry of a routing table that decides about packets.
type FoundRoute struct {
	Dst   netip.Prefix // of the entry; the zero prefix if the kernel does not say
	Link  string
	Via   netip.Addr // zero if the destination is a neighbour
	Own   bool       // leno made it
	Local bool       // the destination is an address of this host
	Table int
	Rule  *Rule // that leads to the table, or refuses the packets; nil for the kernel's own

	// Rejecting is the route of another program in the main table that refuses the packets; nil for none.
	Rejecting *RejectingRoute
}

// LookUpRoute asks the kernel for the route of packets, in the network namespace of a handle. If the kernel refuses
// them, the error says why, and the route has the rule that does it, if a rule does.
func LookUpRoute(handle *netlink.Handle, q RouteQuery) (FoundRoute, error) {
	f := detourFinder{nl: handle}
	fl := flow{dst: q.Dst, src: q.Src, name: "lo"}
	if q.In != "" {
		link, err := handle.LinkByName(q.In)
		if err != nil {
			return FoundRoute{}, fmt.Errorf("find link %s: %w", q.In, err)
		}
		fl.link, fl.name = link.Attrs().Index, q.In
	}
	r, err := f.route(fl)
	var d *Detour
	if err != nil {
		d, _ = f.refused(Detour{}, fl, 1, err) // without it, the error alone says less
	} else {
		d, _ = f.explain(Detour{}, fl, r.Table)
	}
	var out FoundRoute
	if d != nil {
		out.Rule, out.Table, out.Rejecting = d.Rule, d.Table, d.Route
	}
	if err != nil {
		return out, err
	}
	out.Table, out.Link, out.Via = r.Table, f.linkName(r.LinkIndex), ToAddr(r.Gw)
	out.Own, out.Local = r.Protocol == Protocol, r.Type == unix.RTN_LOCAL
	if r.Dst != nil {
		out.Dst = ToPrefix(r.Dst)
	} else if r.Flags&unix.RTM_F_CLONED == 0 {
		out.Dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if q.Dst.Is6() {
			out.Dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
	}
	return out, nil
}
