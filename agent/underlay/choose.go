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

func (l Link) ours() bool { return strings.HasPrefix(l.Name, ownPrefix) }

// selector holds the input of one choice.
type selector struct {
	host   Host
	u      config.Underlay
	need   Need
	public Public
}

// choose returns the choice without its MTU, which measure adds. It is pure: the same host and settings give the same
// choice.
func choose(host Host, u config.Underlay, need Need, public Public) (Choice, error) {
	s := selector{host, u, need, public}
	if !need.IPv4 && !need.IPv6 {
		return Choice{}, fmt.Errorf("%w: neither IPv4 nor IPv6 is wanted", ErrNone)
	}
	steps := []func() (Choice, bool, error){s.byInterfaces, s.byRegex, s.byReach}
	if FollowsDefaultRoute(u) {
		steps = []func() (Choice, bool, error){s.byDefaultRoute}
	}
	for _, step := range steps {
		if choice, ok, err := step(); ok || err != nil {
			return choice, err
		}
	}
	return Choice{}, fmt.Errorf("%w %s; this host has %s", ErrNone, s.settings(), s.candidates())
}

// byInterfaces takes the first interface that exists, whatever its state: an operator who names an interface means
// it, and another one in its place would be a surprise.
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
			if !ok || owns && !slices.Contains(choice.Own, addr) {
				return Choice{}, false, fmt.Errorf("%w: %s, the first of underlay.interfaces that exists, %s; this host has %s",
					ErrNone, want, s.unusable(l), s.candidates())
			}
			return choice, true, nil
		}
	}
	return Choice{}, false, nil
}

// byRegex tries the expressions in order, for each the interfaces in order: the operator ordered the expressions, the
// kernel the interfaces.
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
				prefer = s.best(l, func(a Address) bool { return re.MatchString(a.Addr.String()) })
				if !prefer.IsValid() {
					continue
				}
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
		// The route to an address of this host itself leads to loopback; the operator means the interface that has
		// the address.
		if !slices.Contains(s.host.Reach.Hops, l.Index) && !slices.ContainsFunc(l.Addrs,
			func(a Address) bool { return a.Addr == s.u.CanReach }) {
			continue
		}
		if len(s.oddities(l)) > 0 {
			continue
		}
		// The kernel may prefer an address that is replaced within hours.
		source := s.host.Reach.Source
		steady := s.best(l, func(a Address) bool {
			return a.Addr.Is6() == source.Is6() && (a.Addr == source || !a.passing())
		})
		if l.passes(source) && steady.IsValid() {
			source = steady
		}
		if choice, ok := s.take(l, source, fmt.Sprintf("the route to underlay.can_reach %s leaves through it",
			s.u.CanReach)); ok {
			return choice, true, nil
		}
	}
	return Choice{}, false, nil
}

// byDefaultRoute tries the main table's routes first, IPv4 before IPv6, and each family's routes by metric, as the
// kernel does.
func (s selector) byDefaultRoute() (Choice, bool, error) {
	routes := slices.Clone(s.host.Defaults)
	rank := map[bool]int{false: 0, true: 1}
	slices.SortStableFunc(routes, func(a, b DefaultRoute) int {
		return cmp.Or(rank[a.Table != 0]-rank[b.Table != 0], rank[a.IPv6]-rank[b.IPv6],
			cmp.Compare(a.Table, b.Table), cmp.Compare(a.Metric, b.Metric))
	})
	for _, r := range routes {
		if r.IPv6 && !s.need.IPv6 || !r.IPv6 && !s.need.IPv4 {
			continue
		}
		for _, hop := range r.Hops {
			l, ok := s.host.link(hop)
			if !ok || len(s.oddities(l)) > 0 {
				continue
			}
			if choice, ok := s.take(l, r.Source, fmt.Sprintf("the %s leaves through it", r)); ok {
				if choice.Addrs[0].Is6() { // without a setting, IPv4 is used where there is IPv4
					slices.Reverse(choice.Addrs)
					slices.Reverse(choice.Own)
				}
				return choice, true, nil
			}
		}
	}
	return Choice{}, false, nil
}

// take makes the link the choice, unless no address remains. The family of the preferred address comes first, because
// the settings asked for it.
func (s selector) take(l Link, prefer netip.Addr, reason string) (Choice, bool) {
	c := Choice{Interface: l.Name, Index: l.Index, VRF: l.VRF, Reason: reason, Down: !l.Up}
	if vrf, ok := s.host.link(l.VRF); ok {
		c.Reason += ", in VRF " + vrf.Name
	}
	families := []family{{s.need.IPv4, s.public.IPv4, false, "underlay.public_ip"},
		{s.need.IPv6, s.public.IPv6, true, "underlay.public_ipv6"}}
	if prefer.Is6() {
		slices.Reverse(families)
	}
	for _, f := range families {
		if !f.wanted {
			continue
		}
		own, ok := s.address(l, prefer, f.v6)
		if f.public.IsValid() {
			c.Addrs = append(c.Addrs, f.public)
			c.Reason += fmt.Sprintf("; address %s from %s", f.public, f.from)
			if s.host.has(f.public) {
				own = f.public
			}
			c.Own = append(c.Own, own)
		} else if ok {
			c.Addrs, c.Own = append(c.Addrs, own), append(c.Own, own)
		}
	}
	return c, len(c.Addrs) > 0
}

// family holds what is wanted of one address family.
type family struct {
	wanted bool
	public netip.Addr // from the setting from, if valid
	v6     bool
	from   string
}

// best returns the link's first usable address that fits; permanent addresses come before passing ones.
func (s selector) best(l Link, fits func(Address) bool) netip.Addr {
	for _, passing := range []bool{false, true} {
		for _, a := range l.Addrs {
			if a.passing() == passing && s.flaw(a) == "" && fits(a) {
				return a.Addr
			}
		}
	}
	return netip.Addr{}
}

// address returns the link's best address of a family: the preferred one, else the first permanent one, else the
// first one.
func (s selector) address(l Link, prefer netip.Addr, v6 bool) (netip.Addr, bool) {
	own := s.best(l, func(a Address) bool { return a.Addr == prefer && a.Addr.Is6() == v6 })
	if !own.IsValid() {
		own = s.best(l, func(a Address) bool { return a.Addr.Is6() == v6 })
	}
	return own, own.IsValid()
}

// flaw returns why the address cannot be given to other hosts.
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

// oddities returns why an interface is taken only if it is named.
func (s selector) oddities(l Link) []string {
	var out []string
	if l.Loopback {
		out = append(out, "loopback")
	}
	if !l.Up {
		out = append(out, "down")
	}
	if l.ours() {
		out = append(out, "leno's own")
	}
	return out
}
