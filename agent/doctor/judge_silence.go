package doctor

import (
	"fmt"
	"slices"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend/kernel"
)

// addConnections adds a finding about the kernel's table of connections. While it is full, test packets are lost as
// well, and show nothing about paths.
func addConnections(v *verdict) {
	if saw, do := v.facts.Connections.Problem(); saw != "" {
		v.add(newFault(CheckConnections, "", "", "read how many connections the kernel tracks", saw, do))
	}
}

// explainSilence finds the peers whose silence has a cause on this host that is known: packets to them take another
// route, or rules of this host drop what comes back. No conclusion about the way to them is drawn.
func explainSilence(w *pathVerdict, rules []foreign.Blockade) {
	dropsOwn := slices.ContainsFunc(w.n.Obstacles, func(o foreign.Obstacle) bool { return o.Own })
	var detours []kernel.Detour
	for _, p := range slices.Concat(w.closedPeers, w.silentPeers) {
		switch {
		case p.Detour != nil:
			detours = append(detours, *p.Detour)
			w.explainedNodes[p.Node] = true
		case dropsOwn && pathAnswer(p.Probe, api.PathUnderlay) == Yes:
			w.explainedNodes[p.Node] = true
		}
	}
	if len(detours) > 0 {
		addDetours(w, detours)
	}
	for _, p := range w.silentPeers {
		i := slices.IndexFunc(rules, func(b foreign.Blockade) bool { return b.Echoes && isPathTo(b.Path, p) })
		if i < 0 || w.isBlocked(p) {
			continue
		}
		w.explainedNodes[p.Node] = true
		addEchoRule(w, rules[i])
	}
}

// addDetours adds a finding about packets that take another route, unless there is one already. That of the agent's
// check, which may be a warning, is about packets that are lost.
func addDetours(w *pathVerdict, found []kernel.Detour) {
	for i := range w.list {
		f := &w.list[i]
		if f.Network == w.n.Name && (f.Check == CheckRoutes || f.Check == CheckOverlap) &&
			(f.Status == api.FindingFault || f.Status == api.FindingWarning) {
			f.Status = api.FindingFault
			return
		}
	}
	scope := ""
	if w.n.Probed > 1 {
		scope = fmt.Sprintf(" (%d of %d peers)", len(found), w.n.Probed)
	}
	err := found[0].Err(scope, w.n.Pools)
	node := ""
	if len(found) == 1 {
		node = found[0].Node
	}
	w.add(newFault(CheckRoutes, w.n.Name, node, "ask the kernel for the routes of packets to the other hosts", err.Error(),
		advice.To(advice.Datapath, err)))
}

// addEchoRule adds a warning about a rule of this host that drops the answers of peers.
func addEchoRule(w *pathVerdict, b foreign.Blockade) {
	key := b.String()
	if w.namedRules[key] {
		return
	}
	w.namedRules[key] = true
	do := "accept ICMP there, before that rule: path MTU discovery needs it, too"
	if b.Removal != "" {
		do += "; or remove it: `" + b.Removal + "`"
	}
	w.add(newWarning(CheckRules, w.n.Name, "", "read this host's firewall rules, and send packets",
		b.String()+" drops the answers to echo requests of this host: its paths to other hosts cannot be tested with them",
		do))
}
