package agent

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Forwarding is what was found of the kernel's switches for one family.
type Forwarding struct {
	Set        []string // that were off and are on now: "net.ipv4.ip_forward"
	Off        []string // that are off
	Advertised []string // interfaces for whose sake they stay off
}

// forwardingPart is what drift calls the switches: no backend's.
const forwardingPart backend.Part = "forwarding"

// forwarding says what keeps the kernel from forwarding the packets of this host's
// subnets, and switches that on where this host's block asks. It also returns what
// somebody had switched off.
func (r *runner) forwarding(n registry.Network, s backend.State) (wrong []string, healed []backend.Repair) {
	var set []string
	r.env.switching.Lock()
	defer r.env.switching.Unlock()
	links := backend.Arrivals(r.local.Name, n.Backend.Type, n.Backend.Object, s.Underlay.Interface)
	for _, subnet := range s.Subnets {
		found, err := r.env.ensureForwarding(subnet.Addr(), links, r.local.Forward)
		if err != nil {
			wrong = append(wrong, advice.Reason(advice.Forwarding, err))
			continue
		}
		set = append(set, found.Set...)
		if reason := found.wrong(r.local.Forward); reason != "" {
			wrong = append(wrong, reason)
		}
	}
	switch {
	case len(set) > 0 && r.forwards:
		healed = []backend.Repair{{Part: forwardingPart, Fault: "forwarding was off", Detail: strings.Join(set, ", ")}}
	case len(set) > 0:
		r.log.Info("forwarding switched on", "sysctl", strings.Join(set, ", "))
	}
	r.forwards = len(wrong) == 0
	return wrong, healed
}

// checkForwarding writes the check of what forwarding said.
func (r *runner) checkForwarding(wrong []string) {
	if len(wrong) == 0 {
		r.checkUndisturbed(checkForwarding, forwardingPart, "the kernel forwards packets")
	} else if reason := strings.Join(wrong, "; "); r.env.health.set(r.local.Name, checkForwarding, api.Warning, reason) {
		r.log.Warn("the kernel does not forward packets", "error", reason)
	}
}

// wrong is what does not work and what to do about it, "" when all is on.
func (f Forwarding) wrong(asked bool) string {
	switch {
	case len(f.Off) == 0:
		return ""
	case len(f.Advertised) > 0:
		var accept []string
		for _, link := range f.Advertised {
			accept = append(accept, "net.ipv6.conf."+link+".accept_ra")
		}
		return fmt.Sprintf("%s is 0, and switching it on would take away the routes that routers advertise on %s: set %s to 2, and leno switches it on",
			strings.Join(f.Off, ", "), strings.Join(f.Advertised, ", "), strings.Join(accept, ", "))
	case asked:
		return strings.Join(f.Off, ", ") + " is 0: containers cannot reach other hosts until it is 1"
	}
	return strings.Join(f.Off, ", ") + ` is 0: containers cannot reach other hosts until it is 1 (leno leaves it alone under "forward = false")`
}

// forwardingSwitches are the sysctls below net that make the kernel forward the
// family of a: that of the host, then, in IPv4, where each device has a say of its
// own (IN_DEV_FORWARD), those of the devices by which packets come in.
func forwardingSwitches(a netip.Addr, links []string) [][]string {
	if a.Is6() {
		return [][]string{{"ipv6", "conf", "all", "forwarding"}}
	}
	switches := [][]string{{"ipv4", "ip_forward"}}
	for _, link := range links {
		switches = append(switches, []string{"ipv4", "conf", link, "forwarding"})
	}
	return switches
}
