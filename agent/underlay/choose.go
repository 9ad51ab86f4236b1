package underlay

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/config"
)

// ownPrefix begins the names of leno's devices.
const ownPrefix = "leno-"

// defaultMTU stands in where no device tells: Ethernet's.
const defaultMTU = 1500

// Host is what the choice is made from.
type Host struct {
	Links    []Link         // by index
	Defaults []DefaultRoute // in any order
	Reach    Route          // to the address asked for, unless ReachErr
	ReachErr error
}

// Link is one interface.
type Link struct {
	Name     string
	Index    int
	MTU      int // bytes
	Up       bool
	Loopback bool
	Addrs    []Address // in the kernel's order: primary before secondary
}

// Address is one address of an interface.
type Address struct {
	Addr       netip.Addr
	Tentative  bool // not yet, or never, found to be unique: must not be used
	Deprecated bool // not for new connections
	Temporary  bool // replaced every few hours (RFC 8981)
}

// DefaultRoute is one default route of the main table.
type DefaultRoute struct {
	Link   int // ifindex
	Metric int
	IPv6   bool
}

// Route is where packets to an address leave.
type Route struct {
	Link   int        // ifindex
	Source netip.Addr // the address the kernel would send from
}

// selector is one choice under way.
type selector struct {
	host   Host
	u      config.Underlay
	need   Need
	public Public
}

// choose is pure: the same host and settings give the same choice.
func choose(host Host, u config.Underlay, need Need, public Public) (Choice, error) {
	s := selector{host, u, need, public}
	if !need.IPv4 && !need.IPv6 {
		return Choice{}, fmt.Errorf("%w: neither IPv4 nor IPv6 is wanted", ErrNone)
	}
	steps := []func() (Choice, bool, error){s.byInterfaces, s.byRegex, s.byReach}
	if len(u.Interfaces) == 0 && len(u.InterfaceRegex) == 0 && !u.CanReach.IsValid() {
		steps = []func() (Choice, bool, error){s.byDefaultRoute}
	}
	for _, step := range steps {
		if choice, ok, err := step(); ok || err != nil {
			return choice, err
		}
	}
	return Choice{}, fmt.Errorf("%w %s; this host has %s", ErrNone, s.settings(), s.candidates())
}

// byInterfaces takes the first that exists, whatever its state: who names an
// interface means it, and another one in its stead would be a surprise.
func (s selector) byInterfaces() (Choice, bool, error) {
	for _, want := range s.u.Interfaces {
		for _, l := range s.host.Links {
			named := l.Name == want
			addr, _ := netip.ParseAddr(want)
			owns := slices.ContainsFunc(l.Addrs, func(a Address) bool { return a.Addr == addr })
			if !named && !owns {
				continue
			}
			reason := "first of underlay.interfaces that exists: " + want
			if owns {
				reason += " on " + l.Name
			}
			for _, is := range s.oddities(l) {
				reason += ", although it is " + is
			}
			choice, ok := s.take(l, addr, reason)
			if !ok {
				return Choice{}, false, fmt.Errorf("%w: %s, the first of underlay.interfaces that exists, %s; this host has %s",
					ErrNone, want, s.unusable(l), s.candidates())
			}
			return choice, true, nil
		}
	}
	return Choice{}, false, nil
}

// byRegex goes through the expressions, then the interfaces: the order of the
// expressions is the operator's, that of the interfaces the kernel's.
func (s selector) byRegex() (Choice, bool, error) {
	for _, expr := range s.u.InterfaceRegex {
		re, err := regexp.Compile(expr)
		if err != nil {
			return Choice{}, false, fmt.Errorf("underlay.interface_regex: %w", err)
		}
		for _, l := range s.host.Links {
			if len(s.oddities(l)) > 0 {
				continue
			}
			var prefer netip.Addr
			reason := fmt.Sprintf("underlay.interface_regex %q matches the name %s", expr, l.Name)
			if !re.MatchString(l.Name) {
				i := slices.IndexFunc(l.Addrs, func(a Address) bool { return s.usable(a) && re.MatchString(a.Addr.String()) })
				if i < 0 {
					continue
				}
				prefer = l.Addrs[i].Addr
				reason = fmt.Sprintf("underlay.interface_regex %q matches the address %s on %s", expr, prefer, l.Name)
			}
			if choice, ok := s.take(l, prefer, reason); ok {
				return choice, true, nil
			}
		}
	}
	return Choice{}, false, nil
}

func (s selector) byReach() (Choice, bool, error) {
	if !s.u.CanReach.IsValid() || s.host.ReachErr != nil {
		return Choice{}, false, nil
	}
	for _, l := range s.host.Links {
		// The route to an address of this host itself goes over loopback; the
		// interface that owns it is meant.
		if s.host.Reach.Link != l.Index && !slices.ContainsFunc(l.Addrs, func(a Address) bool { return a.Addr == s.u.CanReach }) {
			continue
		}
		if len(s.oddities(l)) > 0 {
			continue
		}
		if choice, ok := s.take(l, s.host.Reach.Source, fmt.Sprintf("the route to underlay.can_reach %s leaves through it", s.u.CanReach)); ok {
			return choice, true, nil
		}
	}
	return Choice{}, false, nil
}

// byDefaultRoute tries IPv4's routes first, each family's by metric, as the
// kernel does.
func (s selector) byDefaultRoute() (Choice, bool, error) {
	routes := slices.Clone(s.host.Defaults)
	slices.SortStableFunc(routes, func(a, b DefaultRoute) int {
		if a.IPv6 != b.IPv6 {
			if b.IPv6 {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Metric, b.Metric)
	})
	for _, r := range routes {
		if r.IPv6 && !s.need.IPv6 || !r.IPv6 && !s.need.IPv4 {
			continue
		}
		for _, l := range s.host.Links {
			if l.Index != r.Link || len(s.oddities(l)) > 0 {
				continue
			}
			family := map[bool]string{false: "IPv4", true: "IPv6"}[r.IPv6]
			if choice, ok := s.take(l, netip.Addr{}, fmt.Sprintf("the %s default route leaves through it", family)); ok {
				return choice, true, nil
			}
		}
	}
	return Choice{}, false, nil
}

// take makes the link the choice, unless it leaves no address.
func (s selector) take(l Link, prefer netip.Addr, reason string) (Choice, bool) {
	c := Choice{Interface: l.Name, Index: l.Index, MTU: l.MTU, Reason: reason}
	for _, family := range []struct {
		wanted bool
		public netip.Addr
		v6     bool
		from   string
	}{
		{s.need.IPv4, s.public.IPv4, false, "underlay.public_ip"},
		{s.need.IPv6, s.public.IPv6, true, "underlay.public_ipv6"},
	} {
		if !family.wanted {
			continue
		}
		if family.public.IsValid() {
			c.Addrs = append(c.Addrs, family.public)
			c.Reason += fmt.Sprintf("; address %s from %s", family.public, family.from)
		} else if a, ok := s.address(l, prefer, family.v6); ok {
			c.Addrs = append(c.Addrs, a)
		}
	}
	if l.Loopback {
		// Packets from an address on loopback leave through another device.
		c.MTU = s.egressMTU()
		c.Reason += fmt.Sprintf("; MTU %d of the default route's interface", c.MTU)
	}
	return c, len(c.Addrs) > 0
}

// address is the link's best one of a family: the one asked for, else the first
// that stays, else the first of all.
func (s selector) address(l Link, prefer netip.Addr, v6 bool) (netip.Addr, bool) {
	best, rank := netip.Addr{}, 0
	for _, a := range l.Addrs {
		if a.Addr.Is6() != v6 || !s.usable(a) {
			continue
		}
		r := 2
		if a.Addr == prefer {
			r = 3
		} else if a.Deprecated || a.Temporary {
			r = 1
		}
		if r > rank {
			best, rank = a.Addr, r
		}
	}
	return best, rank > 0
}

func (s selector) usable(a Address) bool { return s.flaw(a) == "" }

// flaw is why other hosts cannot be given the address.
func (s selector) flaw(a Address) string {
	switch {
	case a.Addr.Is6() && !s.need.IPv6, !a.Addr.Is6() && !s.need.IPv4:
		return "not of a wanted family"
	case a.Addr.IsLinkLocalUnicast():
		return "link-local"
	case !a.Addr.IsGlobalUnicast():
		return "not global"
	case a.Tentative:
		return "tentative"
	case slices.ContainsFunc(s.need.Overlay, func(p netip.Prefix) bool { return p.Contains(a.Addr) }):
		return "of the overlay"
	}
	return ""
}

// oddities is why an interface is not taken unless it is named.
func (s selector) oddities(l Link) []string {
	var out []string
	if l.Loopback {
		out = append(out, "loopback")
	}
	if !l.Up {
		out = append(out, "down")
	}
	if strings.HasPrefix(l.Name, ownPrefix) {
		out = append(out, "leno's own")
	}
	return out
}

func (s selector) egressMTU() int {
	mtu := 0
	for _, r := range s.host.Defaults {
		for _, l := range s.host.Links {
			if l.Index == r.Link && (mtu == 0 || l.MTU < mtu) {
				mtu = l.MTU
			}
		}
	}
	return cmp.Or(mtu, defaultMTU)
}
