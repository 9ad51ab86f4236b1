// Package forwarding owns the kernel's switches for forwarding packets. It finds out which are off and switches them
// on, unless that costs the host IPv6 routes from router advertisements. It describes problems in words, for every
// part of leno that forwards.
package forwarding

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/lenonet/leno/backend/kernel"
)

// State holds the state of the switches of one family.
type State struct {
	Set []string // were off and are on now: "net.ipv4.ip_forward"
	Off []string // are off

	// Advertised lists devices with routes or addresses from router advertisements, which the host keeps only while
	// it does not forward. If a switch is off, it stays off for their sake. If none is off, the routes and addresses
	// are already gone or will be.
	Advertised []string
}

// Problem returns what is wrong and what to do about it, "" and "" when nothing is. asked means that leno is
// configured to switch them on here.
func (s State) Problem(asked bool) (wrong, todo string) {
	off, links := strings.Join(s.Off, ", "), strings.Join(s.Advertised, ", ")
	var accept []string
	for _, link := range s.Advertised {
		accept = append(accept, kernel.SysctlName("ipv6", "conf", link, "accept_ra"))
	}
	todo = "set " + strings.Join(accept, ", ") + " to 2"
	const alone = ` (leno leaves it alone under "forward = false")`
	switch {
	case s.CostsRoutes():
		wrong = fmt.Sprintf("%s is 0, and switching it on would take away the routes that routers advertise on %s", off,
			links)
		if asked {
			return wrong, todo + ", and leno switches it on"
		}
		return wrong, fmt.Sprintf("%s, and only then %s to 1%s", todo, off, alone)
	case len(s.Advertised) > 0:
		return fmt.Sprintf("this host forwards IPv6 and therefore ignores the routers that advertise on %s: it has lost the "+
				"routes that it had from them, or will lose them, and then its addresses", links),
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

// switches returns the sysctls below net that make the kernel forward the family of a: that of the host and, in IPv4,
// where each device has its own switch (IN_DEV_FORWARD), those of the devices by which packets arrive.
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
