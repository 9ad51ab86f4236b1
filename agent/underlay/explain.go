package underlay

import (
	"fmt"
	"strings"
)

// settings names the settings in effect.
func (s selector) settings() string {
	var out []string
	if len(s.u.Interfaces) > 0 {
		out = append(out, fmt.Sprintf("underlay.interfaces %q", s.u.Interfaces))
	}
	if len(s.u.InterfaceRegex) > 0 {
		out = append(out, fmt.Sprintf("underlay.interface_regex %q", s.u.InterfaceRegex))
	}
	if s.u.CanReach.IsValid() {
		reach := "underlay.can_reach " + s.u.CanReach.String()
		if s.host.ReachErr != nil {
			reach += fmt.Sprintf(" (%v)", s.host.ReachErr)
		}
		out = append(out, reach)
	}
	if len(out) == 0 {
		return "the default (the default route's interface)"
	}
	return strings.Join(out, ", ")
}

// candidates lists every interface with its addresses and the reason why it does not fit.
func (s selector) candidates() string {
	if len(s.host.Links) == 0 {
		return "no interface"
	}
	var out []string
	for _, l := range s.host.Links {
		addrs := make([]string, len(l.Addrs))
		for i, a := range l.Addrs {
			addrs[i] = a.Addr.String()
		}
		list := strings.Join(addrs, ", ")
		if list == "" {
			list = "no address"
		}
		out = append(out, fmt.Sprintf("%s (%s): %s", l.Name, list, s.why(l)))
	}
	return strings.Join(out, "; ")
}

// why returns the reason a link was left out, the one that is easiest to fix first.
func (s selector) why(l Link) string {
	if odd := s.oddities(l); len(odd) > 0 {
		return "is " + strings.Join(odd, " and ")
	}
	if _, ok := s.take(l, s.host.Reach.Source, ""); !ok {
		return s.unusable(l)
	}
	if len(s.u.Interfaces) == 0 && len(s.u.InterfaceRegex) == 0 && !s.u.CanReach.IsValid() {
		return "has no default route"
	}
	return "does not match"
}

// unusable returns why a link has no address to give to others.
func (s selector) unusable(l Link) string {
	if len(l.Addrs) == 0 {
		return "has no address" + s.above(l)
	}
	var out []string
	for _, a := range l.Addrs {
		if flaw := s.flaw(a); flaw != "" {
			out = append(out, fmt.Sprintf("%s is %s", a.Addr, flaw))
		}
	}
	if len(out) < len(l.Addrs) {
		return "has an address that is not usable: " + strings.Join(out, ", ")
	}
	return "has no usable address: " + strings.Join(out, ", ") + s.above(l)
}

// above names the device whose addresses count instead of those of a port, "" for none.
func (s selector) above(l Link) string {
	master, ok := s.host.link(l.Port)
	if !ok {
		return ""
	}
	return fmt.Sprintf(" (it is a port of %[1]s: name %[1]s instead)", master.Name)
}
