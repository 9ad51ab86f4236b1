package doctor

import (
	"fmt"

	"github.com/lenonet/leno/api"
)

// loss is where packets between this host and a peer are lost.
type loss int

const (
	lossRouted loss = iota // of host-gw, which has no port
	lossRefused
	lossToPeer
	lossFromPeer
	lossBothWays
	lossFlannel // host that runs flannel: no doctor to ask there
)

// judgePorts judges the peers whose hosts answer although their end of the overlay does not. Peers with the same fault
// share a finding.
func (w *pathVerdict) judgePorts() {
	if w.staleRecord || w.hasFault(w.n.Name, CheckPublicIP) {
		return // which explains these peers
	}
	var order []loss
	by := map[loss][]Peer{}
	for _, p := range w.closedPeers {
		if w.explainedNodes[p.Node] || w.isBlocked(p) {
			continue
		}
		kind := w.lossOf(p)
		if by[kind] == nil {
			order = append(order, kind)
		}
		by[kind] = append(by[kind], p)
	}
	for _, kind := range order {
		w.add(w.portFinding(kind, extent{by[kind], len(w.reachedPeers) + len(w.closedPeers) - len(by[kind])}))
	}
}

func (w *pathVerdict) lossOf(p Peer) loss {
	lost := func(d *api.ProbedDirection) bool { return d != nil && d.State == api.DirectionLost }
	switch {
	case p.Flannel:
		return lossFlannel
	case w.n.Port == 0:
		return lossRouted
	case portRefusal(p.Probe, w.n.Port) != "":
		return lossRefused
	case lost(p.Probe.ToPeer):
		return lossToPeer
	case lost(p.Probe.FromPeer):
		return lossFromPeer
	}
	return lossBothWays
}

// portFinding returns the finding about peers with which packets get lost in the same way.
func (w *pathVerdict) portFinding(kind loss, e extent) api.Finding {
	tried := fmt.Sprintf("send packets through the overlay to %s and over the underlay to %s", e.names(), e.addresses())
	port, here, theirs := fmt.Sprintf("UDP port %d", w.n.Port), w.publicAddress(), e.addresses()
	ask := fmt.Sprintf("; run `leno doctor` on %s too, which reads that host's rules", e.names())
	if len(e.peers) > 1 {
		ask = "; run `leno doctor` on one of them too, which reads that host's rules"
	}
	check, saw, do := CheckPort, "", ""
	where := e.location("this host's own side, its firewall or one before " + w.n.Underlay.Interface)
	switch kind {
	case lossFlannel:
		check = CheckPeers
		saw = "its host answers, its address in the network does not. It runs flannel, so there is no `leno doctor` to ask"
		do = "check that flanneld runs on " + e.names() + "; " + w.flannelAdvice(e) +
			"then check that rules there and between the hosts accept " + w.packets()
	case lossRouted:
		check = CheckPeers
		saw = "its host answers, its address in the network does not"
		do = "look for rules and routes there and between the hosts that drop packets of " + joinStrings(w.n.Pools) + ask
	case lossRefused:
		where = "" // nothing on the path refuses in the name of many hosts
		saw = fmt.Sprintf("its host answers, and its %s refuses packets: %s", port,
			portRefusal(e.peers[0].Probe, w.n.Port))
		do = fmt.Sprintf("accept %s from %s at %s and at firewalls between, "+
			"and check that its agent runs: without it nothing may listen there", port, here, e.names()) + ask
	case lossToPeer:
		saw = fmt.Sprintf("its host answers, packets from it to %s arrive, and packets to its %s are lost", port, port)
		do = fmt.Sprintf("accept %s from %s to %s: at its firewall, or one between (a cloud's security group)", port, here,
			theirs) + ask
		if e.isLocal() {
			do = fmt.Sprintf("allow packets from %s to %s of all hosts: at this host's own firewall and at one before it (the "+
				"outgoing rules of a cloud's security group)", here, port)
		}
	case lossFromPeer:
		saw = fmt.Sprintf("its host answers, packets to its %s arrive there, and packets from it are lost", port)
		do = fmt.Sprintf("accept %s from %s to %s: at this host's firewall, one between (a cloud's security group), or in "+
			"the outgoing rules of %s", port, theirs, here, e.names()) + ask
		if e.isLocal() {
			do = fmt.Sprintf("accept %s from all hosts to %s: at this host's own firewall and at one before it (the incoming "+
				"rules of a cloud's security group)", port, here)
		}
	case lossBothWays:
		saw = fmt.Sprintf("its host answers, but nothing passes through the overlay (%s) in either direction", port)
		do = fmt.Sprintf("accept %s between %s and %s, both ways: at both hosts and at firewalls between (a cloud's "+
			"security group)", port, here, theirs) + ask
		if e.isLocal() {
			do = fmt.Sprintf("accept %s between %s and all hosts, both ways: at this host's own firewall and at one before it "+
				"(a cloud's security group)", port, here)
		}
	}
	return newFault(check, w.n.Name, e.node(), tried, e.subject()+saw+where, do)
}

// flannelAdvice returns how to find out whether flannel hosts have the MAC addresses in their records, "" without any.
func (w *pathVerdict) flannelAdvice(e extent) string {
	if w.n.Backend != "vxlan" {
		return ""
	}
	subnet := "SUBNET"
	if len(e.peers[0].Subnets) > 0 {
		subnet = e.peers[0].Subnets[0].String()
	}
	return fmt.Sprintf("restart it if the MAC address of its device (`ip link show flannel.1`) is not that in its record "+
		"(`leno lease show %s %s`); ",
		w.n.Name, subnet)
}

// packets names the network's packets between hosts.
func (w *pathVerdict) packets() string {
	if w.n.Port == 0 {
		return "packets of " + joinStrings(w.n.Pools)
	}
	return fmt.Sprintf("UDP port %d, both ways", w.n.Port)
}
