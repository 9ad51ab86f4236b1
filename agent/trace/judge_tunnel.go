package trace

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/api"
)

// judgeOuter judges the way of the tunnel's packets to the other host.
func (j *judgement) judgeOuter() {
	const stage = "underlay"
	if j.Outer == nil {
		return
	}
	l, peer, underlay := *j.Outer, j.peer(), j.Network.Local.Underlay
	to := End{TraceEnd: api.TraceEnd{Address: l.To, Node: peer.Node}}
	switch {
	case l.Err != nil && l.Rule != nil:
		j.lost(stage, tableName(l.Table), ruleRemedy(l, to, Network{}),
			"the routing rule %d (%s) refuses packets to %s, %s: %v", l.Rule.Priority, l.Rule.Text, peer.Node, to.Address, l.Err)
	case l.Err != nil:
		j.lost(stage, "the routing tables", fmt.Sprintf("give this host a route to %s (`ip route get %s`)", to.Address,
			to.Address), "this host has no route to %s, %s: %v", peer.Node, to.Address, l.Err)
	case l.Rule != nil && l.Link != underlay.Interface:
		j.lost(stage, tableName(l.Table), ruleRemedy(l, to, Network{}),
			"packets to %s, %s, leave by %s instead of %s: the routing rule %d (%s)", peer.Node, to.Address, l.Link,
			underlay.Interface, l.Rule.Priority, l.Rule.Text)
	case !l.Device.Up || !l.Device.Carrier:
		j.lost(stage, l.Link, fmt.Sprintf("`ip link set %s up`, and check its cable or switch port", l.Link),
			"%s is down or has no carrier", l.Link)
	case l.Neighbour.isSilent():
		what := "check that " + peer.Node + " is running and that its address is right"
		if l.Via.IsValid() {
			what = "check the router, or the route through it (`ip route get " + to.Address.String() + "`)"
		}
		j.lost(stage, l.Link, what, "nothing answers for %s on %s", l.Neighbour.Address, l.Link)
	default:
		via := ""
		if l.Via.IsValid() {
			via = " via " + l.Via.String()
		}
		j.ok(stage, l.Link, "%s of %s is reached by %s%s, MTU %d", to.Address, peer.Node, l.Link, via, l.Device.MTU)
	}
}

// judgeTunnel judges what became of packets that this host sent to the other one.
func (j *judgement) judgeTunnel() {
	const stage = "tunnel"
	peer := j.peer()
	where := j.Network.Backend
	if j.Network.Port > 0 {
		where += fmt.Sprintf(", UDP port %d", j.Network.Port)
	}
	find := func(status string) int {
		return slices.IndexFunc(j.Findings, func(f api.Finding) bool {
			return f.Status == status && (f.Peer == "" || f.Peer == peer.Node) && f.Check != doctor.CheckRules
		})
	}
	fault, warning := find(api.FindingFault), find(api.FindingWarning)
	switch {
	case peer.Skipped != "": // which judgeRoute says
	case j.ProbeErr != nil:
		j.add(stage, where, api.HopUnknown, "no packets were sent to "+peer.Node+": "+j.ProbeErr.Error(), "")
	case fault >= 0:
		f := j.Findings[fault]
		j.addFinding(stage, where, f, api.HopLost)
	case j.Probe == nil:
	case !j.Probe.Reached:
		j.lost(stage, where, "check that "+peer.Node+" is running, and run `leno doctor` there",
			"%s does not answer through the tunnel%s", peer.Node, pathText(peer.Path))
	case warning >= 0:
		j.addFinding(stage, where, j.Findings[warning], api.HopWarning)
	default:
		j.ok(stage, where, "%s answers through the tunnel%s", peer.Node, pathText(peer.Path))
	}
}

// addFinding adds a finding of the doctor. What was answered is not lost; a small MTU loses only large packets.
func (j *judgement) addFinding(stage, where string, f api.Finding, status string) {
	isLost := !j.isAnswered
	if f.Check == doctor.CheckPathMTU && j.Sent.Sent > 0 {
		isLost = j.Sent.Full > 0 && !j.Sent.FullAnswered
	}
	if status == api.HopLost && !isLost {
		status = api.HopWarning
	}
	j.stages = append(j.stages, api.TraceHop{Stage: stage, Node: j.Node, Where: where, Saw: f.Saw, Status: status,
		Do: f.Do})
}

// pathText returns what the continuous tests say of a path, for the end of a sentence.
func pathText(p *api.PeerPath) string {
	if p == nil || p.State == "" {
		return ""
	}
	out := "; the tests of the last minutes: " + p.Summary()
	if p.Reason != "" && !strings.Contains(out, p.Reason) {
		out += ", " + p.Reason
	}
	if p.MTU > 0 {
		out += fmt.Sprintf(", packets of %d bytes", p.MTU)
	}
	return out
}
