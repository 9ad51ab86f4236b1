// Package kernel reads and writes what backends keep in the Linux kernel:
// routes, neighbours, forwarding entries, links, addresses and sysctls, as keyed
// tables for package reconcile, and watches all of them for changes. It owns the
// wire formats and knows what is ours by protocol number, link and pool. It
// refuses to know what anybody wants in the tables.
//
// Sockets are opened by Open and OpenWatch on the calling thread and stay in
// its network namespace. Sysctls are read and written in the namespace of the
// thread that calls.
package kernel

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Protocol marks every route of ours (rtm_protocol, see rtnetlink(7)). 108 is
// given to nobody in the kernel's list nor in iproute2's rt_protos.
const Protocol = 108

// UnreachableMetric is the metric of the route that answers for the part of a
// pool nobody leases. It is high, so that a route of the operator's own for the
// whole pool wins.
const UnreachableMetric = 1 << 24

// ErrInterrupted: the kernel's list changed while it was read; it may lack
// entries.
var ErrInterrupted = errors.New("listing interrupted")

// RouteKey names one route of the main table.
type RouteKey struct {
	Dst    netip.Prefix
	Metric uint32 // 0 is the family's default (0 for IPv4, 1024 for IPv6)
	Nth    int    // tells apart routes the kernel holds under one name; wanted ones have 0
}

func (k RouteKey) String() string {
	s := k.Dst.String()
	if k.Metric != 0 {
		s += fmt.Sprintf(" metric %d", k.Metric)
	}
	if k.Nth != 0 {
		s += fmt.Sprintf(" (duplicate %d)", k.Nth)
	}
	return s
}

// CompareRoutes orders routes by destination, metric and number.
func CompareRoutes(a, b RouteKey) int {
	return cmp.Or(a.Dst.Addr().Compare(b.Dst.Addr()), cmp.Compare(a.Dst.Bits(), b.Dst.Bits()),
		cmp.Compare(a.Metric, b.Metric), cmp.Compare(a.Nth, b.Nth))
}

// Route is where a route of ours leads.
type Route struct {
	Unreachable bool       // then nothing else is set
	Link        int        // ifindex, never 0 otherwise
	Via         netip.Addr // zero: the destination is on the link itself
	Onlink      bool       // Via is on the link though no address says so
	Src         netip.Addr // preferred source, may be zero
	Extra       string     // what else the kernel shows of it; never wanted
	Protocol    int        // of a route in the place of ours; 0 for our own
}

func (r Route) String() string {
	if r.Unreachable {
		return strings.TrimSpace("unreachable " + r.Extra)
	}
	var b strings.Builder
	if r.Via.IsValid() {
		fmt.Fprintf(&b, "via %s ", r.Via)
	}
	fmt.Fprintf(&b, "link %d", r.Link)
	if r.Src.IsValid() {
		fmt.Fprintf(&b, " src %s", r.Src)
	}
	if r.Onlink {
		b.WriteString(" onlink")
	}
	if r.Extra != "" {
		b.WriteString(" " + r.Extra)
	}
	if r.Protocol != 0 {
		fmt.Fprintf(&b, " proto %d", r.Protocol)
	}
	return b.String()
}

// Owner says which routes of our protocol belong to one network: those over
// its link and those to destinations inside its pools.
type Owner struct {
	Link  int // ifindex, 0 when there is none
	Pools []netip.Prefix

	// Stood and Wanted, when not nil, make routes the network's that somebody put
	// by hand in the place of ours, as `ip route replace` does: where one stood
	// after the last look and the same is wanted now.
	Stood, Wanted map[RouteKey]Route
}

// taken are the places where a route of ours stood that is not among the
// entries, though the same is still wanted.
func (o Owner) taken(entries map[RouteKey]Route) (keys []RouteKey) {
	for k, r := range o.Stood {
		if _, there := entries[k]; !there {
			if want, ok := o.Wanted[k]; ok && want == r {
				keys = append(keys, k)
			}
		}
	}
	return keys
}

// Owns says whether a route of our protocol is the network's.
func (o Owner) Owns(k RouteKey, r Route) bool {
	if o.Link != 0 && r.Link == o.Link {
		return true
	}
	return slices.ContainsFunc(o.Pools, func(p netip.Prefix) bool {
		return p.Bits() <= k.Dst.Bits() && p.Contains(k.Dst.Addr())
	})
}

// Unreachable is the routes that answer for the whole of each pool; longer
// ones hide them where a subnet is leased. They are also what lets the kernel
// take IPv6 onlink gateways out of a pool that a shorter route of the host's
// covers: they sort, and so are put, before them.
func Unreachable(pools []netip.Prefix) map[RouteKey]Route {
	routes := make(map[RouteKey]Route, len(pools))
	for _, p := range pools {
		routes[RouteKey{Dst: p, Metric: UnreachableMetric}] = Route{Unreachable: true}
	}
	return routes
}

// MAC is an Ethernet address. The zero MAC is no address.
type MAC [6]byte

// ParseMAC reads the form "0a:58:0a:05:01:00" and nothing longer.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil {
		return MAC{}, err
	}
	if len(hw) != 6 {
		return MAC{}, fmt.Errorf("address %s is not an Ethernet address", hex.EncodeToString(hw))
	}
	return MAC(hw), nil
}

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Unicast says whether the address may belong to one device.
func (m MAC) Unicast() bool { return m != MAC{} && m[0]&1 == 0 }

// NeighbourKey names one entry of a link's neighbour table.
type NeighbourKey struct{ Addr netip.Addr }

func (k NeighbourKey) String() string { return k.Addr.String() }

// CompareNeighbours orders neighbours by address.
func CompareNeighbours(a, b NeighbourKey) int { return a.Addr.Compare(b.Addr) }

// FDBKey names one entry of a VXLAN link's forwarding database.
type FDBKey struct {
	MAC MAC
	Nth int // tells apart the destinations of one address; wanted ones have 0
}

func (k FDBKey) String() string {
	if k.Nth != 0 {
		return fmt.Sprintf("%s (duplicate %d)", k.MAC, k.Nth)
	}
	return k.MAC.String()
}

// CompareFDB orders forwarding entries by address and number.
func CompareFDB(a, b FDBKey) int {
	return cmp.Or(slices.Compare(a.MAC[:], b.MAC[:]), cmp.Compare(a.Nth, b.Nth))
}

// FDB is where packets to one address are sent.
type FDB struct {
	Dst   netip.Addr // underlay address, of the device's own family
	Extra string     // what else the kernel shows of it; never wanted
}

func (f FDB) String() string { return strings.TrimSpace("dst " + f.Dst.String() + " " + f.Extra) }

// Address is the value of an entry in an address table: there is nothing to
// say of an address but that it is there.
type Address struct{}

func (Address) String() string { return "" }

// CompareAddresses orders addresses of a link.
func CompareAddresses(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
