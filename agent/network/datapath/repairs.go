package datapath

import (
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/flapping"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/registry"
)

// forwardingPart is the part that repairs of the kernel's forwarding switches are about. It is not a part of any
// backend.
const forwardingPart backend.Part = "forwarding"

// OtherFault is the fault label of repairs that are not among backend.Faults.
const OtherFault = "other"

// record counts and logs repairs, and adds events for them.
func (c *checks) record(now time.Time, repaired []backend.Repair) {
	for _, repair := range repaired {
		fault := repair.Fault
		if !slices.Contains(backend.Faults(), fault) {
			fault = OtherFault
		}
		c.report.Count(telemetry.DriftRepairs, 1, fault)
	}
	log := c.report.Log()
	for _, name := range c.flapping.Settle(now) {
		log.Info("datapath is no longer being changed by another program", "repaired", name)
	}
	single, repeated := c.flapping.Record(now, repaired)
	if len(single) > 0 {
		log.Warn("datapath was changed by another program, repaired", "repaired", flapping.Sentence(single))
		c.report.Event(api.EventDrift, api.Warning, "changed by another program, repaired: "+flapping.Sentence(single),
			map[string]string{"fault": single[0].Fault})
	}
	for _, q := range repeated {
		log.Warn("datapath is being changed by another program again and again, logged once a minute", "repaired", q)
		c.report.Event(api.EventDrift, api.Warning, "changed by another program again and again: "+q, nil)
	}
}

// flappingIn describes what another program keeps changing in a part. It returns "" if there is nothing.
func (c *checks) flappingIn(part backend.Part) string {
	if all := c.flapping.Describe(part); all != "" {
		return "is being changed by another program again and again: " + all
	}
	return ""
}

// ensureForwarding returns what is wrong with the kernel's forwarding of the packets of this host's subnets. It
// switches on what is off if this host's block asks for that, and returns as repaired what another program had switched
// off.
func (c *checks) ensureForwarding(n registry.Network, s backend.State) (wrong []string, repaired []backend.Repair) {
	var set []string
	on := true
	links := kernel.Arrivals(c.network, s.Underlay.Interface, n.Carriage().Objects()...)
	for _, subnet := range s.Subnets {
		found, err := c.host.EnsureForwarding(subnet, links, c.forward)
		if err != nil {
			wrong, on = append(wrong, advice.Reason(advice.Forwarding, err)), false
			continue
		}
		set, on = append(set, found.Set...), on && len(found.Off) == 0
		if reason := found.Reason(c.forward); reason != "" {
			wrong = append(wrong, reason)
		}
	}
	if saw, do := forwarding.ReadConnections().Problem(); saw != "" {
		wrong = append(wrong, saw+"; "+do)
	}
	switch {
	case len(set) > 0 && c.forwards:
		repaired = []backend.Repair{{Part: forwardingPart, Fault: "forwarding was off", Detail: strings.Join(set, ", ")}}
	case len(set) > 0:
		c.report.Log().Info("forwarding switched on", "sysctl", strings.Join(set, ", "))
	}
	c.forwards = on
	return wrong, repaired
}
