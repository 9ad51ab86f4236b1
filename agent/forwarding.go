package agent

import (
	"strings"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// forwardingPart is the part that repairs of the kernel's forwarding switches are about. It is not a part of any
// backend.
const forwardingPart backend.Part = "forwarding"

// forwarding returns what is wrong with the kernel's forwarding of the packets of this host's subnets. It switches on
// what is off if this host's block asks for that, and returns as healed what another program had switched off.
func (r *runner) forwarding(n registry.Network, s backend.State) (wrong []string, healed []backend.Repair) {
	var set []string
	on := true
	links := backend.Arrivals(r.local.Name, n.Backend.Type, n.Backend.Object, s.Underlay.Interface)
	for _, subnet := range s.Subnets {
		found, err := r.env.ensureForwarding(subnet.Addr(), links, r.local.Forward)
		if err != nil {
			wrong, on = append(wrong, advice.Reason(advice.Forwarding, err)), false
			continue
		}
		set, on = append(set, found.Set...), on && len(found.Off) == 0
		if reason := found.Reason(r.local.Forward); reason != "" {
			wrong = append(wrong, reason)
		}
	}
	switch {
	case len(set) > 0 && r.forwards:
		healed = []backend.Repair{{Part: forwardingPart, Fault: "forwarding was off", Detail: strings.Join(set, ", ")}}
	case len(set) > 0:
		r.log.Info("forwarding switched on", "sysctl", strings.Join(set, ", "))
	}
	r.forwards = on
	return wrong, healed
}

// checkForwarding sets the check of forwarding. wrong is what forwarding returned.
func (r *runner) checkForwarding(wrong []string) {
	if len(wrong) == 0 {
		r.checkUndisturbed(health.Forwarding, forwardingPart, "the kernel forwards packets")
	} else if reason := strings.Join(wrong, "; "); r.report.Check(health.Forwarding, api.Warning, reason) {
		r.log.Warn("forwarding is not as it should be", "error", reason)
	}
}
