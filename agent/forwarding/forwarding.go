// Package forwarding owns the kernel's switches for forwarding packets: it finds out what
// is off and switches it on, unless that costs the host IPv6 routes that it has from router
// advertisements. It says what is wrong in words, for every part of leno that forwards.
package forwarding

import (
	"fmt"
	"net/netip"
	"strings"
)

// State is what was found of the switches for one family.
type State struct {
	Set []string // that were off and are on now: "net.ipv4.ip_forward"
	Off []string // that are off

	// Advertised are devices with routes or addresses from router advertisements, which the
	// host keeps only while it does not forward. If a switch is off, it stays off for their
	// sake. If none is off, routes and addresses are gone already or will be.
	Advertised []string
}

// Problem returns what is wrong and what to do about it, "" and "" when nothing is. asked
// says that the switches are to be switched on here.
func (s State) Problem(asked bool) (wrong, todo string) {
	off, links := strings.Join(s.Off, ", "), strings.Join(s.Advertised, ", ")
	var accept []string
	for _, link := range s.Advertised {
		accept = append(accept, "net.ipv6.conf."+link+".accept_ra")
	}
	todo = "set " + strings.Join(accept, ", ") + " to 2"
	const alone = ` (leno leaves it alone under "forward = false")`
	switch {
	case s.CostsRoutes():
		wrong = fmt.Sprintf("%s is 0, and switching it on would take away the routes that routers advertise on %s", off, links)
		if asked {
			return wrong, todo + ", and leno switches it on"
		}
		return wrong, fmt.Sprintf("%s, and only then %s to 1%s", todo, off, alone)
	case len(s.Advertised) > 0:
		return fmt.Sprintf("this host forwards IPv6 and therefore ignores the routers that advertise on %s: it has lost the routes that it had from them, or will lose them, and then its addresses", links),
			todo + ", and the next advertisement brings them back"
	case len(s.Off) == 0:
		return "", ""
	case asked:
		return off + " is 0", "containers cannot reach other hosts until it is 1"
	}
	return off + " is 0", "containers cannot reach other hosts until it is 1" + alone
}

// Reason returns the problem in one sentence, "" when there is none.
func (s State) Reason(asked bool) string {
	wrong, todo := s.Problem(asked)
	if wrong == "" {
		return ""
	}
	return wrong + ": " + todo
}

// CostsRoutes reports whether switching on what is off would cost the host routes.
func (s State) CostsRoutes() bool { return len(s.Off) > 0 && len(s.Advertised) > 0 }

// switches are the sysctls below net that make the kernel forward the family of a: that
// of the host, then, in IPv4, where each device has a say of its own (IN_DEV_FORWARD), those
// of the devices by which packets come in.
func switches(a netip.Addr, links []string) [][]string {
	if a.Is6() {
		return [][]string{{"ipv6", "conf", "all", "forwarding"}}
	}
	out := [][]string{{"ipv4", "ip_forward"}}
	for _, link := range links {
		out = append(out, []string{"ipv4", "conf", link, "forwarding"})
	}
	return out
}
