package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Direct returns the addresses that are not neighbours on a link, each with the reason: those that
// the host's own routing does not reach over that link without a gateway. It returns an error if
// the kernel could not be queried.
//
// Routing rules of other programs that take packets to an address elsewhere do not count: a route
// by way of a neighbour does not follow them.
//
// All addresses are queried in a few exchanges: one by one, two thousand take 40 ms of processor
// time; together they take a quarter of that.
func (h *Handle) Direct(ctx context.Context, addrs []netip.Addr, link int) (reasons map[netip.Addr]string, err error) {
	reasons = map[netip.Addr]string{}
	ruled, err := h.batch.findIndirect(ctx, addrs, link, false, reasons)
	if len(ruled) > 0 {
		_, onLinkErr := h.batch.findIndirect(ctx, ruled, link, true, reasons)
		err = errors.Join(err, onLinkErr)
	}
	if err != nil {
		return nil, fmt.Errorf("look up routes: %w", err)
	}
	return reasons, nil
}

// findIndirect sets in reasons why addresses are not neighbours on a link, and removes the others from it. With onLink,
// it asks for a route over the link. ruled are those whose route was found in a table that only routing rules name.
func (b *batch) findIndirect(
	ctx context.Context, addrs []netip.Addr, link int, onLink bool, reasons map[netip.Addr]string,
) (ruled []netip.Addr, err error) {
	requests := make([]*nl.NetlinkRequest, len(addrs))
	for i, addr := range addrs {
		if !onLink {
			requests[i] = getRoute(addr, unix.RTM_F_LOOKUP_TABLE)
			continue
		}
		// Without RTM_F_FIB_MATCH, the kernel takes any address for a neighbour if it has no route.
		requests[i] = getRoute(addr, unix.RTM_F_FIB_MATCH)
		requests[i].AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(link))))
	}
	var errs []error
	err = b.ask(ctx, requests, func(i int, answer []byte, err error) {
		reason, table, err := indirect(addrs[i], link, answer, err)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("look up the route to %s: %w", addrs[i], err))
		case reason == "":
			delete(reasons, addrs[i])
		default:
			reasons[addrs[i]] = reason
			if table != 0 && (table < unix.RT_TABLE_DEFAULT || table > unix.RT_TABLE_LOCAL) {
				ruled = append(ruled, addrs[i])
			}
		}
	})
	return ruled, errors.Join(err, errors.Join(errs...))
}

func getRoute(addr netip.Addr, flags uint32) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0)
	msg := &nl.RtMsg{}
	msg.Family = unix.AF_INET6
	if addr.Is4() {
		msg.Family = unix.AF_INET
	}
	msg.Dst_len = uint8(addr.BitLen())
	msg.Flags = flags
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.RTA_DST, addr.AsSlice()))
	return req
}

// indirect decodes the kernel's answer to getRoute. The reason is "" for a neighbour. table is the one that has the
// route, 0 if that is not known.
func indirect(addr netip.Addr, link int, answer []byte, failed error) (reason string, table uint32, err error) {
	switch {
	case errors.Is(failed, unix.ENETUNREACH), errors.Is(failed, unix.EHOSTUNREACH),
		errors.Is(failed, unix.EOPNOTSUPP), errors.Is(failed, unix.EAFNOSUPPORT): // the kernel has no IPv6
		return "no route to " + addr.String(), 0, nil
	case errors.Is(failed, unix.EACCES), errors.Is(failed, unix.EINVAL): // a prohibit or a blackhole route
		return addr.String() + " is barred by a route", 0, nil
	case failed != nil:
		return "", 0, failed
	case len(answer) < unix.SizeofRtMsg:
		return "", 0, errors.New("short answer from the kernel")
	}
	const tableAt, kindAt = 4, 7 // in struct rtmsg
	table = uint32(answer[tableAt])
	out, gateway := 0, false
	// Decoded by hand: the library allocates a slice for each of thousands.
	for rest := answer[unix.SizeofRtMsg:]; len(rest) >= unix.SizeofRtAttr; {
		size, attr := int(binary.NativeEndian.Uint16(rest)), binary.NativeEndian.Uint16(rest[2:])
		if size < unix.SizeofRtAttr || size > len(rest) {
			return "", 0, errors.New("short attribute from the kernel")
		}
		switch {
		case attr == unix.RTA_OIF && size >= unix.SizeofRtAttr+4:
			out = int(binary.NativeEndian.Uint32(rest[unix.SizeofRtAttr:]))
		case attr == unix.RTA_TABLE && size >= unix.SizeofRtAttr+4:
			table = binary.NativeEndian.Uint32(rest[unix.SizeofRtAttr:])
		case attr == unix.RTA_GATEWAY, attr == unix.RTA_VIA:
			gateway = true
		}
		rest = rest[min((size+3)&^3, len(rest)):]
	}
	switch kind := answer[kindAt]; {
	case kind == unix.RTN_LOCAL:
		reason = addr.String() + " is an address of this host"
	case kind != unix.RTN_UNICAST:
		reason = addr.String() + " is not a unicast address of this host"
	case gateway:
		reason = addr.String() + " is behind a gateway"
	case out != link:
		reason = addr.String() + " is reached over another interface"
	}
	return reason, table, nil
}

// addTaken adds to entries the routes that people put in the place of ours. A route that a daemon
// or the kernel put there is left alone: it is not an entry, and it blocks ours.
func (t *routes) addTaken(ctx context.Context, places []RouteKey, entries map[RouteKey]Route) error {
	if len(places) == 0 {
		return nil
	}
	requests := make([]*nl.NetlinkRequest, len(places))
	for i, k := range places {
		requests[i] = getRoute(k.Dst.Addr(), unix.RTM_F_FIB_MATCH)
	}
	refusing := map[RouteKey]bool{}
	err := t.h.batch.ask(ctx, requests, func(i int, answer []byte, err error) {
		if err != nil { // there is no route, or one that refuses packets, which may be ours for the whole pool
			refusing[places[i]] = true
		} else if route, ok := inPlace(places[i], answer); ok {
			entries[places[i]] = route
		}
	})
	if err != nil {
		return fmt.Errorf("look up routes: %w", err)
	}
	return t.addRefusing(ctx, refusing, entries)
}

// addRefusing adds to entries the routes that people put in places for which the kernel names no route: one that
// refuses packets is shown only in a listing.
func (t *routes) addRefusing(ctx context.Context, places map[RouteKey]bool, entries map[RouteKey]Route) error {
	if len(places) == 0 {
		return nil
	}
	_, err := listing(ctx, func() (none struct{}, err error) {
		for _, protocol := range byHand {
			err = errors.Join(err, t.each(netlink.RouteProtocol(protocol), func(key RouteKey, route Route) {
				if places[key] {
					route.Protocol = protocol
					entries[key] = route
				}
			}))
		}
		return none, err
	})
	return err
}

// inPlace decodes the route that the kernel would use for the first address of a destination. ok is
// true if it is a route for exactly that destination, and put there by a person.
func inPlace(place RouteKey, answer []byte) (Route, bool) {
	if len(answer) < unix.SizeofRtMsg {
		return Route{}, false
	}
	msg := nl.DeserializeRtMsg(answer)
	attrs, err := nl.ParseRouteAttr(answer[unix.SizeofRtMsg:])
	if err != nil || !slices.Contains(byHand, int(msg.Protocol)) || int(msg.Dst_len) != place.Dst.Bits() {
		return Route{}, false
	}
	route, metric, table := Route{Protocol: int(msg.Protocol)}, uint32(0), uint32(msg.Table)
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.RTA_OIF:
			route.Link = int(binary.NativeEndian.Uint32(a.Value))
		case unix.RTA_GATEWAY:
			gateway, _ := netip.AddrFromSlice(a.Value)
			route.Via = gateway.Unmap()
		case unix.RTA_PRIORITY:
			metric = binary.NativeEndian.Uint32(a.Value)
		case unix.RTA_TABLE:
			table = binary.NativeEndian.Uint32(a.Value)
		}
	}
	if place.Dst.Addr().Is6() && metric == ipv6DefaultMetric {
		metric = 0
	}
	return route, metric == place.Metric && table == unix.RT_TABLE_MAIN
}
