// Package kernel reads and writes what backends keep in the Linux kernel: routes, neighbours,
// forwarding entries, links, addresses and sysctls, as keyed tables for package reconcile. It also
// watches all of them for changes. It owns the wire formats and recognises leno's entries by
// protocol number, link and pool. It does not know which entries are wanted.
//
// Open and OpenWatch open their sockets on the calling thread, and the sockets stay in its network
// namespace. Sysctls are read and written in the namespace of the calling thread.
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

	"github.com/lenonet/leno/backend"
)

// Protocol marks every route of ours (rtm_protocol, see rtnetlink(7)). 108 is unassigned in the
// kernel's list and in iproute2's rt_protos.
const Protocol = 108

// UnreachableMetric is the metric of the route that covers the part of a pool that is not leased.
// It is high, so that an operator's own route for the whole pool wins.
const UnreachableMetric = 1 << 24

// GuardMetric is the metric of the routes that Guard makes, which every other route for the whole pool wins over.
const GuardMetric = UnreachableMetric + 1

// ErrInterrupted: the kernel's table changed while it was listed, so entries may be missing.
var ErrInterrupted = errors.New("listing interrupted")

// RouteKey identifies one route of the main table.
type RouteKey struct {
	Dst    netip.Prefix
	Metric uint32 // 0 is the family's default (0 for IPv4, 1024 for IPv6)
	Nth    int    // distinguishes routes that the kernel holds under the same key; 0 in wanted ones
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

// Route is the target of a route.
type Route struct {
	Unreachable bool       // then nothing else is set
	Link        int        // ifindex, never 0 otherwise
	Via         netip.Addr // zero: the destination is on the link itself
	Onlink      bool       // Via is on the link even though no address of the link covers it
	Src         netip.Addr // preferred source, may be zero
	MTU         int        // of packets over the route, in bytes; 0: that of the link
	Extra       string     // other properties the kernel reports; never wanted
	Protocol    int        // of a route in the place of one of ours; 0 for our own
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
	if r.MTU != 0 {
		fmt.Fprintf(&b, " mtu %d", r.MTU)
	}
	if r.Extra != "" {
		b.WriteString(" " + r.Extra)
	}
	if r.Protocol != 0 {
		fmt.Fprintf(&b, " proto %d", r.Protocol)
	}
	return b.String()
}

// Owner determines which routes with our protocol belong to one network: those over its links and
// those to destinations inside its pools.
type Owner struct {
	Links  []int // ifindexes
	Pools  []netip.Prefix
	Except []netip.Prefix // destinations inside these are not the owner's
	Guards bool           // the routes that Guard has made in the pools, and no others

	// Elsewhere lists destinations whose routes belong to another backend of the network; see backend.State.
	Elsewhere backend.Elsewhere

	// Stood and Wanted, when not nil, extend ownership to routes that a person put in the place of
	// ours, as `ip route replace` does. They apply to keys where our route stood after the last
	// Apply and the same route is wanted now.
	Stood, Wanted map[RouteKey]Route
}

// taken returns the keys where a route of ours stood that is missing from the entries although the
// same route is still wanted.
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

// Owns reports whether a route with our protocol belongs to the network.
func (o Owner) Owns(k RouteKey, r Route) bool {
	if o.Elsewhere.Has(k.Dst) || isWithin(k.Dst, o.Except) {
		return false
	}
	return r.Link != 0 && slices.Contains(o.Links, r.Link) || isWithin(k.Dst, o.Pools)
}

// Parts returns the parts of the pools that lie outside Except.
func (o Owner) Parts() (parts []netip.Prefix) {
	for _, pool := range o.Pools {
		parts = append(parts, subtract(pool, o.Except)...)
	}
	return parts
}

// subtract returns the parts of a prefix that lie in none of the others.
func subtract(p netip.Prefix, others []netip.Prefix) []netip.Prefix {
	i := slices.IndexFunc(others, p.Overlaps)
	switch {
	case i < 0:
		return []netip.Prefix{p}
	case others[i].Bits() <= p.Bits():
		return nil
	}
	bytes := p.Addr().AsSlice()
	bytes[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	upper, _ := netip.AddrFromSlice(bytes)
	return append(subtract(netip.PrefixFrom(p.Addr(), p.Bits()+1), others),
		subtract(netip.PrefixFrom(upper, p.Bits()+1), others)...)
}

// isWithin reports whether a prefix is part of one of the pools.
func isWithin(dst netip.Prefix, pools []netip.Prefix) bool {
	return slices.ContainsFunc(pools,
		func(p netip.Prefix) bool { return p.Bits() <= dst.Bits() && p.Contains(dst.Addr()) })
}

// Unreachable returns one unreachable route for each whole pool; longer routes hide it where a
// subnet is leased. These routes also make the kernel accept IPv6 onlink gateways from a pool that
// a shorter route of the host covers: they sort before the peers' routes and so are added first.
func Unreachable(pools []netip.Prefix) map[RouteKey]Route {
	routes := make(map[RouteKey]Route, len(pools))
	for _, p := range pools {
		routes[RouteKey{Dst: p, Metric: UnreachableMetric}] = Route{Unreachable: true}
	}
	return routes
}

// MAC is an Ethernet address. The zero MAC is no address.
type MAC [6]byte

// ParseMAC parses the form "0a:58:0a:05:01:00". Longer addresses are an error.
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

// Unicast reports whether the address may belong to one device.
func (m MAC) Unicast() bool { return m != MAC{} && m[0]&1 == 0 }

// NeighbourKey identifies one entry of a link's neighbour table.
type NeighbourKey struct{ Addr netip.Addr }

func (k NeighbourKey) String() string { return k.Addr.String() }

// CompareNeighbours orders neighbours by address.
func CompareNeighbours(a, b NeighbourKey) int { return a.Addr.Compare(b.Addr) }

// FDBKey identifies one entry of a VXLAN link's forwarding database.
type FDBKey struct {
	MAC MAC
	Nth int // distinguishes the destinations of one address; 0 in wanted ones
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

// FDB is the destination of packets to one address.
type FDB struct {
	Dst   netip.Addr // underlay address, of the device's own family
	Extra string     // other properties the kernel reports; never wanted
}

func (f FDB) String() string { return strings.TrimSpace("dst " + f.Dst.String() + " " + f.Extra) }

// Address is the value of an entry in an address table. It is empty, because an address has no
// other properties here.
type Address struct{}

func (Address) String() string { return "" }

// CompareAddresses orders the addresses of a link.
func CompareAddresses(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
