package datapath

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/flapping"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// checks sets the health checks of a datapath, and remembers what other programs change in it.
type checks struct {
	network string
	forward bool // whether to switch forwarding on
	host    *Host
	report  *report.Reporter

	flapping   flapping.Detector
	forwards   bool // whether the kernel forwarded packets at the last look
	handshakes handshakes
	late       []lateHandshake  // that the last look found
	again      <-chan time.Time // receives when another handshake can be late, nil if none is waited for
	detours    detours
}

// afterPass sets the checks of the device, the routes and forwarding after an Apply, and adds the repairs of
// forwarding to the report. While the device fails, the routes have no check: they need the device, and its check also
// says what became of them. hasUnderlay says whether there is a usable one.
func (c *checks) afterPass(n registry.Network, s backend.State, hasUnderlay bool, report *backend.Report, err error) {
	if n.Backend.Type == "alloc" { // has no datapath, so there is nothing to forward
		c.report.Forget(health.Forwarding)
		c.record(time.Now(), report.Repaired)
	} else {
		wrong, repaired := c.ensureForwarding(n, s)
		report.Repaired = append(report.Repaired, repaired...)
		c.record(time.Now(), report.Repaired)
		c.setForwarding(wrong)
	}
	wrong := backend.ByPart(err)
	if wrong[backend.Device] != nil {
		c.report.Failing(health.Device, api.Critical, advice.Datapath, err)
		c.report.Forget(health.Routes)
		return
	}
	c.setDevice(n, s, report.Uncarried)
	if wrong[backend.Routes] != nil {
		c.report.Failing(health.Routes, api.Critical, advice.Datapath, err)
		return
	}
	c.report.Recovered(health.Routes)
	c.setPeers(*report, hasUnderlay)
}

// setDevice sets the check of a device that is as it should be, or lacks only what some pools need. Some backends have
// no device; they have the check in the second case alone.
func (c *checks) setDevice(n registry.Network, s backend.State, uncarried []backend.Uncarried) {
	if err := errUncarried(uncarried); err != nil {
		c.report.Failing(health.Device, api.Warning, advice.Datapath, err)
		return
	}
	c.report.Recovered(health.Device)
	if !c.host.Backends[n.Backend.Type].Device {
		c.report.Clear(health.Device)
		return
	}
	c.setUndisturbed(health.Device, backend.Device, fmt.Sprintf("%s is up with an MTU of %d", Link(n), s.MTU))
}

// lookAtHandshakes finds late handshakes and logs new ones. encrypted is nil for a backend that does not encrypt.
func (c *checks) lookAtHandshakes(
	encrypted map[string]backend.Counters, report backend.Report, away func(node string) bool,
) {
	c.late, c.again = nil, nil
	if encrypted == nil {
		return
	}
	var next time.Duration
	c.late, next = c.handshakes.look(time.Now(), encrypted, report.Unproven, away)
	if next > 0 {
		c.again = time.After(next)
	}
	for _, l := range c.late {
		if l.new {
			c.report.Log().Warn("packets are sent to a peer without a handshake", "peer", l.node, "last_handshake", l.last)
		}
	}
}

// setPeers sets the check of routes that could be written. Its reason names the peers that were skipped, those without
// a handshake or with a detour, and what another program keeps changing. Without a usable underlay, the skipped peers
// are not logged.
func (c *checks) setPeers(report backend.Report, hasUnderlay bool) {
	reason := fmt.Sprintf("%d peers in place", report.Peers)
	wrong, fault := errors.Join(c.detours.err, errLate(c.late)), ""
	if s := report.Switch; s != nil {
		reason = fmt.Sprintf("%s, %d of them over %s, to which the network is being switched", reason, s.Moved, s.To)
		if fault = s.Fault; fault != "" {
			reason += "; this host cannot use it: " + fault
		}
	}
	if len(report.Skipped) == 0 && wrong == nil && fault == "" {
		c.setUndisturbed(health.Routes, backend.Routes, reason)
		return
	}
	if len(report.Skipped) > 0 {
		first := report.Skipped[0]
		reason = fmt.Sprintf("%s, %d skipped, the first %q: %s", reason, len(report.Skipped), first.Node, first.Reason)
	}
	if repeated := c.flappingIn(backend.Routes); repeated != "" {
		reason += "; " + repeated
	}
	if wrong != nil {
		reason += "; " + advice.Reason(advice.Datapath, wrong)
	}
	status := api.Warning
	if c.detours.all {
		status = api.Critical
	}
	if c.report.Check(health.Routes, status, reason) && hasUnderlay {
		for _, skip := range report.Skipped {
			c.report.Log().Warn("peer skipped", "peer", skip.Node, "error", skip.Reason)
		}
	}
}

// setUndisturbed sets a check to passing, or to warning if another program keeps changing the part that the check is
// about.
func (c *checks) setUndisturbed(check string, part backend.Part, reason string) {
	status := api.Passing
	if repeated := c.flappingIn(part); repeated != "" {
		status, reason = api.Warning, reason+"; "+repeated
	}
	c.report.Check(check, status, reason)
}

// setForwarding sets the check of forwarding. wrong is what ensureForwarding returned.
func (c *checks) setForwarding(wrong []string) {
	if len(wrong) == 0 {
		c.setUndisturbed(health.Forwarding, forwardingPart, "the kernel forwards packets")
	} else if reason := strings.Join(wrong, "; "); c.report.Check(health.Forwarding, api.Warning, reason) {
		c.report.Log().Warn("packets may not be forwarded", "error", reason)
	}
}
