package doctor

import (
	"fmt"

	"github.com/lenonet/leno/api"
)

// loss is how the tunnel's packets to a peer, or from it, get lost.
type loss int

const (
	lostUnwrapped loss = iota // of host-gw, which has no port
	refusedThere
	lostThere
	lostBack
	lostBothWays
	lostByFlannel // whose host cannot tell more
)

// ports judges the peers whose hosts answer although their end of the overlay does not. Peers with the same fault
// share a finding.
func (w *ways) ports() {
	if w.misled || w.found(w.n.Name, CheckPublicIP) {
		return // which explains these peers
	}
	var order []loss
	by := map[loss][]Peer{}
	for _, p := range w.closed {
		if w.filtered[p.Node] || w.blocked(p) {
			continue
		}
		kind := w.loss(p)
		if by[kind] == nil {
			order = append(order, kind)
		}
		by[kind] = append(by[kind], p)
	}
	for _, kind := range order {
		w.add(w.port(kind, extent{by[kind], len(w.reached) + len(w.closed) - len(by[kind])}))
	}
}

func (w *ways) loss(p Peer) loss {
	lost := func(d *api.ProbedDirection) bool { return d != nil && d.State == api.DirectionLost }
	switch {
	case p.Flannel:
		return lostByFlannel
	case w.n.Port == 0:
		return lostUnwrapped
	case refused(p.Probe, w.n.Port) != "":
		return refusedThere
	case lost(p.Probe.There):
		return lostThere
	case lost(p.Probe.Back):
		return lostBack
	}
	return lostBothWays
}

// port returns the finding about peers with which packets get lost in the same way.
func (w *ways) port(kind loss, e extent) api.Finding {
	tried := fmt.Sprintf("send packets through the overlay to %s and plainly to %s", e.names(), e.addresses())
	port, here, theirs := fmt.Sprintf("UDP port %d", w.n.Port), w.here(), e.addresses()
	ask := fmt.Sprintf("; ask `leno doctor` on %s too, which reads that host's rules", e.names())
	if len(e.peers) > 1 {
		ask = "; ask `leno doctor` on one of them too, which reads that host's rules"
	}
	check, saw, do := CheckPort, "", ""
	where := e.where("this host's own side, its firewall or one before " + w.n.Underlay.Interface)
	switch kind {
	case lostByFlannel:
		check = CheckPeers
		saw = "its host answers, its address in the network does not. It runs flannel, so there is no `leno doctor` to ask"
		do = "see that flanneld runs on " + e.names() + "; " + w.flannelsDevice(e) +
			"then see that rules there and between the hosts accept " + w.what()
	case lostUnwrapped:
		check = CheckPeers
		saw = "its host answers, its address in the network does not"
		do = "look for rules and routes there and between the hosts that drop packets of " + joined(w.n.Pools) + ask
	case refusedThere:
		where = "" // nothing on the path refuses in the name of many hosts
		saw = fmt.Sprintf("its host answers, and what goes to its %s is refused: %s", port,
			refused(e.peers[0].Probe, w.n.Port))
		do = fmt.Sprintf("accept %s from %s at %s and at firewalls between, "+
			"and see that its agent runs: without it nothing may listen there", port, here, e.names()) + ask
	case lostThere:
		saw = fmt.Sprintf("its host answers, what it sends to %s arrives here, and what this host sends to its %s is lost",
			port, port)
		do = fmt.Sprintf("accept %s from %s to %s: at its firewall, or one between (a cloud's security group)", port, here,
			theirs) + ask
		if e.own() {
			do = fmt.Sprintf("let %s of all hosts be reached from %s: by this host's own firewall and by one before it (the "+
				"outgoing rules of a cloud's security group)", port, here)
		}
	case lostBack:
		saw = fmt.Sprintf("its host answers, what this host sends to its %s arrives there, and what it sends here is lost",
			port)
		do = fmt.Sprintf("accept %s from %s to %s: at this host's firewall, one between (a cloud's security group), or what "+
			"%s lets out", port, theirs, here, e.names()) + ask
		if e.own() {
			do = fmt.Sprintf("accept %s from all hosts to %s: at this host's own firewall and at one before it (the incoming "+
				"rules of a cloud's security group)", port, here)
		}
	case lostBothWays:
		saw = fmt.Sprintf("its host answers, and nothing passes through the overlay, by %s, neither there nor back", port)
		do = fmt.Sprintf("accept %s between %s and %s, both ways: at both hosts and at firewalls between (a cloud's "+
			"security group)", port, here, theirs) + ask
		if e.own() {
			do = fmt.Sprintf("accept %s between %s and all hosts, both ways: at this host's own firewall and at one before it "+
				"(a cloud's security group)", port, here)
		}
	}
	return fault(check, w.n.Name, e.peer(), tried, e.each()+saw+where, do)
}

// flannelsDevice says how to find out whether flannel hosts have the MAC addresses in their records, "" without any.
func (w *ways) flannelsDevice(e extent) string {
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

// what names the network's packets between hosts.
func (w *ways) what() string {
	if w.n.Port == 0 {
		return "packets of " + joined(w.n.Pools)
	}
	return fmt.Sprintf("UDP port %d, both ways", w.n.Port)
}
