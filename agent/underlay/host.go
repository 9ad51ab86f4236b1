package underlay

import (
	"net/netip"
	"slices"
	"strconv"
)

// Host holds the facts that the choice is based on.
type Host struct {
	Links    []Link         // by index
	Defaults []DefaultRoute // in any order
	Reach    Route          // to the requested address, unless ReachErr is set
	ReachErr error
}

// Link is one interface.
type Link struct {
	Name     string
	Index    int
	MTU      int // bytes
	Up       bool
	Carrier  bool // packets can leave: a cable is plugged in, for example
	Loopback bool
	// Ends is true for devices that have addresses but carry nothing between hosts: loopback, dummy, and a VRF's own
	// device.
	Ends     bool
	VRF      int       // ifindex of the VRF it is in, its own for a VRF's device, 0 for none
	Port     int       // ifindex of the bond, bridge or team that it is a port of and whose addresses count, 0 for none
	Parent   int       // ifindex of the device its packets leave through; 0 if it reports none
	Overhead int       // bytes it adds to a packet on its parent
	Addrs    []Address // oldest first, IPv4's primary before its secondary
}

// Address is one address of an interface.
type Address struct {
	Addr       netip.Addr
	Tentative  bool // not found to be unique, or not yet: must not be used
	Deprecated bool // not for new connections
	Temporary  bool // replaced every few hours (RFC 8981)
	Narrow     bool // its scope is the link or the host
}

// passing reports whether an address is given to others only when there is no better one.
func (a Address) passing() bool { return a.Deprecated || a.Temporary || a.Narrow }

// passes reports whether addr is an address of the link and passing.
func (l Link) passes(addr netip.Addr) bool {
	return slices.ContainsFunc(l.Addrs, func(a Address) bool { return a.Addr == addr && a.passing() })
}

// Route describes where packets leave.
type Route struct {
	Hops   []int      // ifindexes; several share the load
	Source netip.Addr // the address the kernel would send from, may be zero
	MTU    int        // the route's own, bytes; 0 when it has none
}

// DefaultRoute is one default route.
type DefaultRoute struct {
	Route
	Table  int // 0 is the main one
	Metric int
	IPv6   bool
}

// String returns "IPv4 default route", with the table's number unless it is the main one.
func (r DefaultRoute) String() string {
	s := "IPv4 default route"
	if r.IPv6 {
		s = "IPv6 default route"
	}
	if r.Table != 0 {
		s += " of table " + strconv.Itoa(r.Table)
	}
	return s
}

// Path is the route to one address of another host.
type Path struct {
	To netip.Addr
	Route
}

func (h Host) link(index int) (Link, bool) {
	i := slices.IndexFunc(h.Links, func(l Link) bool { return l.Index == index })
	if i < 0 {
		return Link{}, false
	}
	return h.Links[i], true
}

func (h Host) has(addr netip.Addr) bool {
	return slices.ContainsFunc(h.Links, func(l Link) bool {
		return slices.ContainsFunc(l.Addrs, func(a Address) bool { return a.Addr == addr })
	})
}
