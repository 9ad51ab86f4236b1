package datapath

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
func (r *Reconciler) checkDatapath(n registry.Network, s backend.State, report *backend.Report, err error) {
	if n.Backend.Type == "alloc" { // has no datapath, so there is nothing to forward
		r.recordRepairs(time.Now(), report.Healed)
	} else {
		wrong, healed := r.ensureForwarding(n, s)
		report.Healed = append(report.Healed, healed...)
		r.recordRepairs(time.Now(), report.Healed)
		r.checkForwarding(wrong)
	}
	wrong := backend.ByPart(err)
	if wrong[backend.Device] != nil {
		r.o.Report.Failing(health.Device, api.Critical, advice.Datapath, err)
		r.o.Report.Forget(health.Routes)
		return
	}
	r.o.Report.Mended(health.Device)
	r.checkDevice(n, s)
	if wrong[backend.Routes] != nil {
		r.o.Report.Failing(health.Routes, api.Critical, advice.Datapath, err)
		return
	}
	r.o.Report.Mended(health.Routes)
	r.checkPeers(*report)
}

// checkDevice sets the check of a device that is as it should be. Some backends have no device and no such check.
func (r *Reconciler) checkDevice(n registry.Network, s backend.State) {
	if !r.o.Host.Backends[n.Backend.Type].Device {
		r.o.Report.Clear(health.Device)
		return
	}
	r.checkUndisturbed(health.Device, backend.Device, fmt.Sprintf("%s is up with an MTU of %d", backend.LinkName(n.Name), s.MTU))
}

// checkPeers sets the check of routes that could be written. Its reason names the peers that were skipped and what
// another program keeps changing.
func (r *Reconciler) checkPeers(report backend.Report) {
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
	if r.o.Report.Check(health.Routes, api.Warning, reason) && r.Status().Placed {
		for _, skip := range report.Skipped {
			r.o.Report.Log().Warn("peer skipped", "peer", skip.Node, "error", skip.Reason)
		}
	}
}

// checkUndisturbed sets a check to passing, or to warning if another program keeps changing the part that the check is
// about.
func (r *Reconciler) checkUndisturbed(check string, part backend.Part, reason string) {
	status := api.Passing
	if repeated := r.flappingIn(part); repeated != "" {
		status, reason = api.Warning, reason+"; "+repeated
	}
	r.o.Report.Check(check, status, reason)
}
