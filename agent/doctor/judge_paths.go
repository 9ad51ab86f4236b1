package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/plural"
)

// JudgePaths returns what is wrong with the paths to the probed peers: faults and warnings, as in Judge.
func JudgePaths(n Network, c forwarding.Connections) []api.Finding {
	v := &verdict{facts: Facts{Active: true, Connections: c}}
	addConnections(v)
	own := n
	own.Obstacles = slices.DeleteFunc(slices.Clone(n.Obstacles), func(o foreign.Obstacle) bool { return !o.Own })
	v.judgeRules(own)
	v.judgePaths(n)
	v.sort()
	return slices.DeleteFunc(v.list,
		func(f api.Finding) bool { return f.Status != api.FindingFault && f.Status != api.FindingWarning })
}

// judgePaths judges the paths between this host and its peers.
func (v *verdict) judgePaths(n Network) {
	w := &pathVerdict{verdict: v, n: n, explainedNodes: map[string]bool{}, namedRules: map[string]bool{}}
	w.n.Blockades = slices.DeleteFunc(slices.Clone(n.Blockades), func(b foreign.Blockade) bool { return b.Echoes })
	w.judgeReversePath()
	if v.hasFault(n.Name, CheckModule, CheckConnections, CheckDevice, CheckRights) {
		return // nothing can pass, and a finding gives the reason
	}
	w.judgePublicIP()
	for _, p := range n.Peers {
		w.addPeer(p)
	}
	explainSilence(w, n.Blockades)
	w.judgeSizes()
	w.judgeLosses()
	w.judgeChecksums()
	w.judgePorts()
	w.judgeBlockades()
	w.judgeAnswerRules()
	w.addSummary()
}

// pathVerdict is the judgement of one network's paths.
type pathVerdict struct {
	*verdict
	n              Network
	reachedPeers   []Peer
	closedPeers    []Peer          // their hosts answer, but not their end of the overlay
	silentPeers    []Peer          // they do not answer at all
	untestedPeers  []Peer          // no packets were sent to them, or not on all paths that matter
	explainedNodes map[string]bool // nodes whose silence another finding explains
	namedRules     map[string]bool // rules that a finding has named
}

// extent is how many peers a fault concerns.
type extent struct {
	peers  []Peer // peers with the fault
	others int    // number of other peers that would show it
}

// isLocal reports whether the fault is this host's own: all of several peers show it.
func (e extent) isLocal() bool { return e.others == 0 && len(e.peers) > 1 }

// location describes on whose side the fault is, for the end of a sentence; "" when that is not known. mine is this
// host's part, "this host's own link, eth0".
func (e extent) location(mine string) string {
	switch {
	case e.isLocal():
		return fmt.Sprintf("; all %d hosts that answer show it: the fault is on %s", len(e.peers), mine)
	case e.others == 0:
		return ""
	case len(e.peers) == 1:
		return fmt.Sprintf("; the other hosts that answer (%d) do not show it: the fault is on the side of %s", e.others,
			e.names())
	}
	return fmt.Sprintf("; the other hosts that answer (%d) do not show it: the fault is between this host and them",
		e.others)
}

// ownLink describes this host's own link, for extent.where.
func (w *pathVerdict) ownLink() string { return "this host's own link, " + w.n.Underlay.Interface }

// node returns the node that a finding is about, "" for several.
func (e extent) node() string {
	if len(e.peers) == 1 {
		return e.peers[0].Node
	}
	return ""
}

// maxNamed is how many peers one finding names.
const maxNamed = 5

// names lists the peers' nodes.
func (e extent) names() string {
	return listPeers(e.peers, func(p Peer) string { return p.Node })
}

// addresses lists the addresses that packets to the peers go to.
func (e extent) addresses() string {
	return listPeers(e.peers, func(p Peer) string { return p.Public.String() })
}

func listPeers(peers []Peer, what func(Peer) string) string {
	var words []string
	for _, p := range peers[:min(len(peers), maxNamed)] {
		words = append(words, what(p))
	}
	if more := len(peers) - maxNamed; more > 0 {
		words = append(words, fmt.Sprintf("%d more", more))
	}
	return joinWords(words)
}

// subject begins a sentence about a peer ("its host ...") that holds for all of them.
func (e extent) subject() string {
	if len(e.peers) == 1 {
		return ""
	}
	return "for each of " + e.names() + ": "
}

// judgeReversePath judges packets of peers that the kernel's reverse path filter drops.
func (w *pathVerdict) judgeReversePath() {
	const tried = "ask the kernel whether its reverse path filter accepts each peer's packets"
	type way struct { // the same for many peers
		link, mode, by string
		elsewhere      bool
	}
	sources, peers := map[way][]string{}, map[way][]Peer{}
	var order []way
	for _, p := range w.n.Peers {
		if p.Skipped != "" {
			continue // no route leads to it, and none of its packets is expected
		}
		for _, r := range p.Refusals {
			if p.Detour != nil && p.Detour.Link == r.ReturnLink {
				continue // the detour is why the route back is another one
			}
			if r.IfAsymmetric && (p.Probe == nil || overlayAnswer(p.Probe) != No || pathAnswer(p.Probe,
				api.PathUnderlay) != Yes) {
				continue
			}
			if r.OtherLinks && (w.n.Filtered == 0 || p.Probe == nil || overlayAnswer(p.Probe) != No ||
				pathAnswer(p.Probe, api.PathUnderlay) == Yes) {
				continue
			}
			at := way{r.Link, r.Mode, r.ReturnLink, r.OtherLinks}
			if peers[at] == nil {
				order = append(order, at)
			}
			sources[at], peers[at] = append(sources[at], r.Source.String()), append(peers[at], p)
			w.explainedNodes[p.Node] = true
		}
	}
	for _, at := range order {
		from := sources[at]
		if more := len(from) - maxNamed; more > 0 {
			from = append(from[:maxNamed:maxNamed], fmt.Sprintf("%d more", more))
		}
		how, mode := "no route leads back", "rp_filter is "+at.mode+" there"
		if at.by != "" {
			how = "the route back is over " + at.by
		}
		own := kernel.SysctlName("ipv4", "conf", at.link, "rp_filter")
		do := fmt.Sprintf("`sysctl -w %s=2 net.ipv4.conf.all.rp_filter=2` (loose), and put both into /etc/sysctl.d", own)
		if at.elsewhere {
			do = "`sysctl -w net.ipv4.conf.all.rp_filter=2` (loose), and put it into /etc/sysctl.d"
		}
		if at.mode == "2" {
			do = fmt.Sprintf("give the host a route to %s, or `sysctl -w %s=0 net.ipv4.conf.all.rp_filter=0`",
				joinWords(from), own)
		} else if at.by != "" {
			do += fmt.Sprintf("; or route packets to %s over %s", joinWords(from), at.link)
		}
		e := extent{peers: peers[at]}
		if slices.IndexFunc(e.peers, func(p Peer) bool { return p.Node != e.peers[0].Node }) < 0 {
			e.peers = e.peers[:1]
		}
		w.add(newFault(CheckReversePath, w.n.Name, e.node(), tried,
			fmt.Sprintf("packets from %s that arrive on %s are dropped: %s, and %s", joinWords(from), at.link, mode, how), do))
	}
	if len(order) == 0 && len(w.n.Peers) > 0 {
		w.add(newOK(CheckReversePath, w.n.Name, tried, "does not drop overlay packets"))
	}
}

// arrivalAtPublicIP returns whether packets from peers to this host's public address arrive: Yes if from any peer,
// No if from none of those that were probed, and then one of them.
func (w *pathVerdict) arrivalAtPublicIP() (answer Answer, peer string) {
	for _, p := range w.n.Peers {
		switch {
		case p.Probe == nil || p.BehindNAT:
		case overlayAnswer(p.Probe) == Yes, p.Probe.FromPeer != nil && p.Probe.FromPeer.State == api.DirectionPasses:
			return Yes, ""
		case p.Probe.FromPeer != nil && p.Probe.FromPeer.State == api.DirectionLost:
			answer, peer = No, p.Node
		}
	}
	return answer, peer
}

// judgePublicIP judges whether the address that others send to leads to this host.
func (w *pathVerdict) judgePublicIP() {
	const tried = "compare the public address with this host's own, and have peers send to it"
	u := w.n.Underlay
	if len(u.Public) == 0 || w.hasFault(w.n.Name, CheckPublicIP) {
		return
	}
	public, own := u.Public[0], netip.Addr{}
	if len(u.Own) > 0 {
		own = u.Own[0]
	}
	arrives, peer := w.arrivalAtPublicIP()
	net, near := findPrefix(u.OnLink, public)
	switch {
	case !u.isTranslated():
		w.add(newOK(CheckPublicIP, w.n.Name, tried, "%s is an address of %s", public, u.Interface))
	case arrives == Yes:
		w.add(newOK(CheckPublicIP, w.n.Name, tried, "what peers send to %s arrives at %s", public, own))
	case near:
		saw := fmt.Sprintf("%s is not an address of this host, although it is in %s of %s: "+
			"packets to it go to another host or are lost", public, net, u.Interface)
		w.add(newFault(CheckPublicIP, w.n.Name, "", tried, saw,
			fmt.Sprintf("set underlay.public_ip (or public_ipv6) to this host's address, %s, or take it out of the "+
				"configuration", own)))
	case arrives == No:
		w.add(newFault(CheckPublicIP, w.n.Name, "", tried,
			fmt.Sprintf("%s is not an address of this host (%s), and what %s sends there does not arrive, although it receives "+
				"what this host sends", public, own, peer),
			fmt.Sprintf("forward UDP port %d of %s at the NAT to port %d of %s, or correct underlay.public_ip and "+
				"public_ports",
				u.publicPort(w.n.Port), public, w.n.Port, own)))
	default:
		w.add(newUnknown(CheckPublicIP, w.n.Name, tried,
			fmt.Sprintf("a NAT translates %s to %s: not verified, because no peer answered", public, own), ""))
	}
}

// addPeer adds a peer to one of the lists, by its answers.
func (w *pathVerdict) addPeer(p Peer) {
	if p.Probe == nil || p.Skipped != "" {
		return
	}
	over, under := overlayAnswer(p.Probe), pathAnswer(p.Probe, api.PathUnderlay)
	if w.n.Backend == "alloc" {
		over = under // other paths carry the packets of containers
	}
	switch {
	case over == Yes:
		w.reachedPeers = append(w.reachedPeers, p)
	case portRefusal(p.Probe, w.n.Port) != "", over == No && under == Yes, p.isRefused() && under == Yes:
		w.closedPeers = append(w.closedPeers, p)
	case over == No && under == No:
		w.silentPeers = append(w.silentPeers, p)
	default:
		w.untestedPeers = append(w.untestedPeers, p)
	}
}

// isRefused reports whether the kernel of this host refuses packets to the peer's subnet.
func (p Peer) isRefused() bool { return p.Detour != nil && p.Detour.Link == "" && !p.Detour.Outer }

// publicAddress returns the address by which others see this host.
func (w *pathVerdict) publicAddress() string {
	if len(w.n.Underlay.Public) == 0 {
		return "this host"
	}
	return w.n.Underlay.Public[0].String()
}

// isBlocked reports whether rules of this host block a peer, and adds findings about them.
func (w *pathVerdict) isBlocked(p Peer) bool {
	any := false
	for _, b := range w.n.Blockades {
		if isPathTo(b.Path, p) && !b.ExceptAnswers {
			any = true
			w.addBlockade(b, p.Node)
		}
	}
	return any
}

// isPathTo reports whether a path is the one to the peer. Two peers behind one NAT have the same address.
func isPathTo(path foreign.UnderlayPath, p Peer) bool {
	return path.Peer == p.Public && path.PeerPort == p.Port
}

func (w *pathVerdict) addBlockade(b foreign.Blockade, peer string) {
	key := fmt.Sprint(b.Inbound, b)
	if w.namedRules[key] {
		return
	}
	w.namedRules[key] = true
	what := fmt.Sprintf("what this host sends to UDP port %d of %s", b.Path.PeerPort, b.Path.Peer)
	from := fmt.Sprintf("UDP port %d to %s", b.Path.PeerPort, b.Path.Peer)
	if b.Inbound {
		what = fmt.Sprintf("what %s sends to UDP port %d", b.Path.Peer, b.Path.Port)
		from = fmt.Sprintf("UDP port %d from %s", b.Path.Port, b.Path.Peer)
	}
	if n := w.countOthers(b); n > 0 {
		peer = "" // the rule belongs to this host
		what, from = fmt.Sprintf("%s, and %d others,", what, n), from+" and the other hosts"
	}
	do := "accept " + from + " there, before that rule"
	switch {
	case b.Command != "":
		do = "accept " + from + ": `" + b.Command + "`"
	case b.Removal != "":
		do += ", or remove it: `" + b.Removal + "`"
	}
	const tried = "read this host's firewall rules, and send packets"
	saw := fmt.Sprintf("%s is dropped here by %s", what, b)
	if b.ExceptAnswers {
		w.add(newWarning(CheckPort, w.n.Name, peer, tried, saw+", unless it answers what this host has sent shortly before: "+
			"connections from there fail while this host sends nothing", do))
		return
	}
	w.add(newFault(CheckPort, w.n.Name, peer, tried, saw, do))
}

// judgeAnswerRules judges rules of this host that let datagrams pass only as answers, for as long as the kernel
// remembers what was sent. Probes do not show it, because they are sent from here.
func (w *pathVerdict) judgeAnswerRules() {
	for _, b := range w.n.Blockades {
		i := slices.IndexFunc(w.n.Peers, func(p Peer) bool { return isPathTo(b.Path, p) && p.Skipped == "" })
		if b.ExceptAnswers && b.Inbound && i >= 0 && !w.hasFault(w.n.Name, CheckPublicIP) {
			w.addBlockade(b, w.n.Peers[i].Node)
		}
	}
}

// countOthers returns how many more peers have the same rule.
func (w *pathVerdict) countOthers(b foreign.Blockade) int {
	count := -1
	for _, o := range w.n.Blockades {
		if o.Inbound == b.Inbound && o.String() == b.String() {
			count++
		}
	}
	return max(count, 0)
}

// judgeBlockades judges rules of this host that block peers that do not answer in any way, or all peers if none was
// probed. It leaves out peers that were reached in spite of a rule: such a rule does not do what it seems to.
func (w *pathVerdict) judgeBlockades() {
	if w.hasFault(w.n.Name, CheckPublicIP) {
		return
	}
	w.silentPeers = slices.DeleteFunc(w.silentPeers, func(p Peer) bool { return w.isBlocked(p) })
	if w.n.Probed > 0 {
		return
	}
	for _, p := range w.n.Peers {
		if p.Skipped == "" {
			w.isBlocked(p)
		}
	}
}

// addSummary reports which peers answer and which do not.
func (w *pathVerdict) addSummary() {
	const tried = "send packets to the other hosts"
	w.judgeSilentPeers(tried)
	if n := len(w.untestedPeers); n > 0 {
		saw := fmt.Sprintf("the path to %s was not tested: %s", w.untestedPeers[0].Node,
			unknownReason(w.untestedPeers[0].Probe))
		if n > 1 {
			saw = fmt.Sprintf("the paths to %d hosts were not tested, the first is %s: %s", n, w.untestedPeers[0].Node,
				unknownReason(w.untestedPeers[0].Probe))
		}
		w.add(newUnknown(CheckPeers, w.n.Name, tried, saw, ""))
	}
	others := len(w.n.Peers)
	switch {
	case w.facts.Offline != nil: // it does not know the peers
	case others == 0:
		w.add(newOK(CheckPeers, w.n.Name, "read the leases", "there are no other hosts"))
	case w.n.Probed == 0:
		if w.n.RulesErr == nil && w.n.Port > 0 && len(w.namedRules) == 0 {
			w.add(newOK(CheckPort, w.n.Name, "read this host's firewall rules", "no rule closes UDP port %d", w.n.Port))
		}
		if !w.facts.Active {
			w.add(newUnknown(CheckPeers, w.n.Name, tried,
				fmt.Sprintf("no packets were sent (-passive): the paths to the other hosts (%d) are not tested", others),
				"`leno doctor -network "+w.n.Name+"` tests them"))
		}
	case len(w.reachedPeers) == w.n.Probed: // else other findings name the peers that do not answer
		asked := ""
		if w.n.Probed < others {
			asked = fmt.Sprintf(" asked, of %d,", others)
		}
		w.add(newOK(CheckPeers, w.n.Name, tried, "%d of %s%s %s%s", len(w.reachedPeers),
			plural.Count(w.n.Probed, "host"), asked, plural.Form(w.n.Probed, "answers", "answer"), latencyRange(w.reachedPeers)))
	}
}

// revokeCommand returns the command that revokes a peer's lease.
func revokeCommand(network string, p Peer) string {
	subnet := "SUBNET"
	if len(p.Subnets) > 0 {
		subnet = p.Subnets[0].String()
	}
	return fmt.Sprintf("`leno lease revoke %s %s`", network, subnet)
}

// judgeSilentPeers judges hosts that do not answer at all.
func (w *pathVerdict) judgeSilentPeers(tried string) {
	var held []Peer
	for _, p := range w.silentPeers {
		switch {
		case w.explainedNodes[p.Node]:
		case !p.Held:
			w.add(newWarning(CheckPeers, w.n.Name, p.Node, tried, fmt.Sprintf("%s does not answer, and its lease has "+
				"lapsed: the host is down, or its agent stopped long ago", p.Node),
				"start its agent. If the host will not come back, its lease expires after lease.hold; to remove it now: "+
					""+revokeCommand(w.n.Name, p)))
		default:
			held = append(held, p)
		}
	}
	if len(held) > 1 && len(w.reachedPeers)+len(w.closedPeers)+len(w.untestedPeers) == 0 {
		w.add(newFault(CheckPeers, w.n.Name, "", tried,
			fmt.Sprintf("none of the %d hosts that hold a lease answers, neither over the underlay nor through the overlay: "+
				"%s; the fault is on %s",
				len(held), extent{peers: held}.names(), w.ownLink()), fmt.Sprintf("check that %s is connected, and by which "+
				"device packets leave: `ip route get %s`", w.n.Underlay.Interface, held[0].Public)))
		return
	}
	for _, p := range held {
		if p.Flannel {
			w.add(newWarning(CheckPeers, w.n.Name, p.Node, tried,
				fmt.Sprintf("%s answers neither at %s nor through the overlay: the host is down or cut off. It runs flannel, "+
					"whose record stays for a day after flanneld has ended", p.Node, p.Public),
				"check that the host and flanneld run. If the host will not come back, its record ends after a day; to remove "+
					"it now: "+revokeCommand(w.n.Name, p)))
			continue
		}
		w.add(newWarning(CheckPeers, w.n.Name, p.Node, tried,
			fmt.Sprintf("%s answers neither at %s nor through the overlay: the host is down (its lease is held until its "+
				"session ends), cut off, or publishes a wrong address", p.Node, p.Public),
			fmt.Sprintf("if it runs, run `leno doctor` there and check that %s leads to it", p.Public)))
	}
}

// latencyRange describes how long small packets take.
func latencyRange(list []Peer) string {
	low, high := 0.0, 0.0
	for _, p := range list {
		for _, way := range p.Probe.Ways {
			if way.Path != api.PathOverlay || way.Small.Answered == 0 {
				continue
			}
			if low == 0 || way.Small.MinMS < low {
				low = way.Small.MinMS
			}
			high = max(high, way.Small.MaxMS)
		}
	}
	if high == 0 {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf(", in %.1f to %.1f ms", low, high))
}
