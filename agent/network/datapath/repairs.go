package datapath

import (
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/flapping"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// forwardingPart is the part that repairs of the kernel's forwarding switches are about. It is not a part of any
// backend.
const forwardingPart backend.Part = "forwarding"

// OtherFault is the fault label of repairs that are not among backend.Faults.
const OtherFault = "other"

// repairs remembers what other programs changed.
type repairs struct {
	flapping flapping.Detector
	forwards bool // whether the kernel forwarded packets at the last look
}

// recordRepairs counts and logs repairs, and adds events for them.
func (r *Reconciler) recordRepairs(now time.Time, healed []backend.Repair) {
	for _, repair := range healed {
		fault := repair.Fault
		if !slices.Contains(backend.Faults(), fault) {
			fault = OtherFault
		}
		r.o.Report.Count(telemetry.DriftHealed, 1, fault)
	}
	log := r.o.Report.Log()
	for _, name := range r.repairs.flapping.Settle(now) {
		log.Info("datapath is not changed again and again any more", "healed", name)
	}
	single, repeated := r.repairs.flapping.Record(now, healed)
	if len(single) > 0 {
		log.Warn("datapath was changed by another program, healed", "healed", flapping.Sentence(single))
		r.o.Report.Event(api.EventDrift, api.Warning, "changed by another program, healed: "+flapping.Sentence(single),
			map[string]string{"fault": single[0].Fault})
	}
	for _, q := range repeated {
		log.Warn("datapath is being changed by another program again and again, reported once a minute", "healed", q)
		r.o.Report.Event(api.EventDrift, api.Warning, "changed by another program again and again: "+q, nil)
	}
}

// flappingIn describes what another program keeps changing in a part. It returns "" if there is nothing.
func (r *Reconciler) flappingIn(part backend.Part) string {
	if all := r.repairs.flapping.Describe(part); all != "" {
		return "is being changed by another program again and again: " + all
	}
	return ""
}

// pauseAfterPass returns the pause before the next look at the kernel. before is the pause before this pass, and healed
// reports whether this pass repaired something. leno does not race a program that changes something again and again.
func (r *Reconciler) pauseAfterPass(before time.Duration, healed bool) time.Duration {
	switch {
	case r.repairs.flapping.Describe() != "":
		return flapping.LongestPause
	case healed:
		return min(2*before, flapping.LongestPause)
	}
	return settle
}

// pauseAfterFailure returns the pause between a change in the kernel and the next pass, after a pass that failed and is
// retried after retryIn. Without an underlay the pause is short: the change may have brought the underlay, and the
// datapath writes nothing that would itself cause changes.
func (r *Reconciler) pauseAfterFailure(retryIn time.Duration) time.Duration {
	if !r.Status().Placed {
		return settle
	}
	return min(retryIn, flapping.LongestPause)
}

// ensureForwarding returns what is wrong with the kernel's forwarding of the packets of this host's subnets. It
// switches on what is off if this host's block asks for that, and returns as healed what another program had switched
// off.
func (r *Reconciler) ensureForwarding(n registry.Network, s backend.State) (wrong []string, healed []backend.Repair) {
	var set []string
	on := true
	links := backend.Arrivals(r.o.Network, n.Backend.Type, n.Backend.Object, s.Underlay.Interface)
	for _, subnet := range s.Subnets {
		found, err := r.o.Host.EnsureForwarding(subnet.Addr(), links, r.o.Forward)
		if err != nil {
			wrong, on = append(wrong, advice.Reason(advice.Forwarding, err)), false
			continue
		}
		set, on = append(set, found.Set...), on && len(found.Off) == 0
		if reason := found.Reason(r.o.Forward); reason != "" {
			wrong = append(wrong, reason)
		}
	}
	switch {
	case len(set) > 0 && r.repairs.forwards:
		healed = []backend.Repair{{Part: forwardingPart, Fault: "forwarding was off", Detail: strings.Join(set, ", ")}}
	case len(set) > 0:
		r.o.Report.Log().Info("forwarding switched on", "sysctl", strings.Join(set, ", "))
	}
	r.repairs.forwards = on
	return wrong, healed
}

// checkForwarding sets the check of forwarding. wrong is what ensureForwarding returned.
func (r *Reconciler) checkForwarding(wrong []string) {
	if len(wrong) == 0 {
		r.checkUndisturbed(health.Forwarding, forwardingPart, "the kernel forwards packets")
	} else if reason := strings.Join(wrong, "; "); r.o.Report.Check(health.Forwarding, api.Warning, reason) {
		r.o.Report.Log().Warn("forwarding is not as it should be", "error", reason)
	}
}
