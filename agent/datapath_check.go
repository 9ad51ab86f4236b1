package agent

import (
	"fmt"
	"time"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// checkDatapath sets the checks of the device, the routes and forwarding after an Apply, and adds the repairs of
// forwarding to the report. While the device fails, the routes have no check: they need the device, and its check also
// says what became of them.
func (r *runner) checkDatapath(n registry.Network, s backend.State, report *backend.Report, err error) {
	if n.Backend.Type == "alloc" { // has no datapath, so there is nothing to forward
		r.healed(time.Now(), report.Healed)
	} else {
		off, healed := r.forwarding(n, s)
		report.Healed = append(report.Healed, healed...)
		r.healed(time.Now(), report.Healed)
		r.checkForwarding(off)
	}
	wrong := backend.ByPart(err)
	if wrong[backend.Device] != nil {
		r.report.Failing(health.Device, api.Critical, advice.Datapath, err)
		r.report.Forget(health.Routes)
		return
	}
	r.report.Mended(health.Device)
	r.checkDevice(n, s)
	if wrong[backend.Routes] != nil {
		r.report.Failing(health.Routes, api.Critical, advice.Datapath, err)
		return
	}
	r.report.Mended(health.Routes)
	r.checkPeers(*report)
}

// checkDevice sets the check of a device that is as it should be. Some backends have no device and no such check.
func (r *runner) checkDevice(n registry.Network, s backend.State) {
	if !r.env.backends[n.Backend.Type].Device {
		r.report.Clear(health.Device)
		return
	}
	r.checkUndisturbed(health.Device, backend.Device, fmt.Sprintf("%s is up with an MTU of %d", backend.LinkName(n.Name), s.MTU))
}

// checkPeers sets the check of routes that could be written. Its reason names the peers that were skipped and what
// another program keeps changing.
func (r *runner) checkPeers(report backend.Report) {
	reason := fmt.Sprintf("%d peers in place", report.Peers)
	if len(report.Skipped) == 0 {
		r.checkUndisturbed(health.Routes, backend.Routes, reason)
		return
	}
	first := report.Skipped[0]
	reason = fmt.Sprintf("%s, %d skipped, the first %q: %s", reason, len(report.Skipped), first.Node, first.Reason)
	if repeated := r.flappingIn(backend.Routes); repeated != "" {
		reason += "; " + repeated
	}
	if r.report.Check(health.Routes, api.Warning, reason) && r.shown().placed {
		for _, skip := range report.Skipped {
			r.log.Warn("peer skipped", "peer", skip.Node, "error", skip.Reason)
		}
	}
}

// checkUndisturbed sets a check to passing, or to warning if another program keeps changing the part that the check is
// about.
func (r *runner) checkUndisturbed(check string, part backend.Part, reason string) {
	status := api.Passing
	if repeated := r.flappingIn(part); repeated != "" {
		status, reason = api.Warning, reason+"; "+repeated
	}
	r.report.Check(check, status, reason)
}

// flappingIn describes what another program keeps changing in a part. It returns "" if there is nothing.
func (r *runner) flappingIn(part backend.Part) string {
	if all := r.flapping.Describe(part); all != "" {
		return "is being changed by another program again and again: " + all
	}
	return ""
}
