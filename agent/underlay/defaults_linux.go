package underlay

import (
	"encoding/binary"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// defaultRoutes returns the default routes of all tables. The kernel cannot list only these: of all other routes,
// including thousands of leno's own, only the head of the message is read.
func defaultRoutes() ([]DefaultRoute, error) {
	var out []DefaultRoute
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family)}})
		err := req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE, func(m []byte) bool {
			if r, ok := defaultRoute(m); ok {
				out = append(out, r)
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// defaultRoute parses a message of the kernel; ok is false for any other route, and for a default route that
// currently leads nowhere.
func defaultRoute(m []byte) (out DefaultRoute, ok bool) {
	if len(m) < unix.SizeofRtMsg {
		return out, false
	}
	head := nl.DeserializeRtMsg(m)
	if head.Dst_len != 0 || head.Type != unix.RTN_UNICAST || head.Table == unix.RT_TABLE_LOCAL ||
		head.Flags&unix.RTM_F_CLONED != 0 {
		return out, false
	}
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofRtMsg:])
	if err != nil {
		return out, false
	}
	out = DefaultRoute{Table: int(head.Table), IPv6: head.Family == unix.AF_INET6}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.RTA_TABLE:
			out.Table = number(a.Value)
		case unix.RTA_PRIORITY:
			out.Metric = number(a.Value)
		case unix.RTA_PREFSRC:
			out.Source, _ = netip.AddrFromSlice(a.Value)
		case unix.RTA_METRICS:
			out.MTU = metricMTU(a.Value)
		case unix.RTA_OIF:
			if head.Flags&unix.RTNH_F_DEAD == 0 {
				out.Hops = append(out.Hops, number(a.Value))
			}
		case unix.RTA_MULTIPATH:
			out.Hops = append(out.Hops, nextHops(a.Value)...)
		}
	}
	if out.Table == unix.RT_TABLE_MAIN {
		out.Table = 0
	}
	return out, len(out.Hops) > 0
}

func metricMTU(b []byte) int {
	metrics, _ := nl.ParseRouteAttr(b)
	for _, m := range metrics {
		if m.Attr.Type == unix.RTAX_MTU {
			return number(m.Value)
		}
	}
	return 0
}

// nextHops returns the devices of a list of struct rtnexthop, without dead ones.
func nextHops(b []byte) (links []int) {
	for len(b) >= unix.SizeofRtNexthop {
		hop := nl.DeserializeRtNexthop(b)
		if hop.Flags&unix.RTNH_F_DEAD == 0 {
			links = append(links, int(hop.Ifindex))
		}
		length := (int(hop.RtNexthop.Len) + syscall.NLMSG_ALIGNTO - 1) &^ (syscall.NLMSG_ALIGNTO - 1)
		if length < unix.SizeofRtNexthop || length > len(b) {
			break
		}
		b = b[length:]
	}
	return links
}

func number(b []byte) int {
	if len(b) < 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(b))
}
