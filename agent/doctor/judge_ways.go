package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/api"
)

// JudgePaths returns what is wrong with the paths to the probed peers: faults and warnings, as in Judge.
func JudgePaths(n Network) []api.Finding {
	v := &verdict{facts: Facts{Active: true}}
	v.ways(n)
	v.sort()
	return slices.DeleteFunc(v.list,
		func(f api.Finding) bool { return f.Status != api.FindingFault && f.Status != api.FindingWarning })
}

// ways judges the paths between this host and its peers.
func (v *verdict) ways(n Network) {
	w := &ways{verdict: v, n: n, filtered: map[string]bool{}, named: map[string]bool{}}
	w.reversePath()
	if v.found(n.Name, CheckModule, CheckDevice, CheckRights) {
		return // nothing can pass, and a finding gives the reason
	}
	w.publicIP()
	for _, p := range n.Peers {
		w.peer(p)
	}
	w.sizes()
	w.losses()
	w.checksums()
	w.ports()
	w.blockades()
	w.answersOnly()
	w.summary()
}

// ways is the judgement of one network's paths.
type ways struct {
	*verdict
	n        Network
	reached  []Peer
	closed   []Peer          // their hosts answer, but not their end of the overlay
	silent   []Peer          // they do not answer at all
	unasked  []Peer          // no packets were sent to them, or not on all paths that matter
	filtered map[string]bool // nodes that the reverse path filter blocks
	named    map[string]bool // rules that a finding has named
}

// extent tells how many peers a fault concerns.
type extent struct {
	peers  []Peer // peers with the fault
	others int    // number of other peers that would show it
}

// own reports whether the fault is this host's own: all of several peers show it.
func (e extent) own() bool { return e.others == 0 && len(e.peers) > 1 }

// where describes on whose side the fault is, for the end of a sentence; "" when that is not known. mine is this
// host's part, "this host's own link, eth0".
func (e extent) where(mine string) string {
	switch {
	case e.own():
		return fmt.Sprintf("; it is so with all %d hosts that answer: the fault is on %s", len(e.peers), mine)
	case e.others == 0:
		return ""
	case len(e.peers) == 1:
		return fmt.Sprintf("; it is not so with the other hosts that answer (%d): the fault is on the side of %s", e.others,
			e.names())
	}
	return fmt.Sprintf("; it is not so with the other hosts that answer (%d): the fault is on the way to these", e.others)
}

// link describes this host's own link, for extent.where.
func (w *ways) link() string { return "this host's own link, " + w.n.Underlay.Interface }

// peer returns the node that a finding is about, "" for several.
func (e extent) peer() string {
	if len(e.peers) == 1 {
		return e.peers[0].Node
	}
	return ""
}

// mostNamed is how many peers one finding names.
const mostNamed = 5

// names lists the peers' nodes.
func (e extent) names() string {
	return listed(e.peers, func(p Peer) string { return p.Node })
}

// addresses lists the addresses that packets to the peers go to.
func (e extent) addresses() string {
	return listed(e.peers, func(p Peer) string { return p.Public.String() })
}

func listed(peers []Peer, what func(Peer) string) string {
	var words []string
	for _, p := range peers[:min(len(peers), mostNamed)] {
		words = append(words, what(p))
	}
	if more := len(peers) - mostNamed; more > 0 {
		words = append(words, fmt.Sprintf("%d more", more))
	}
	return and(words)
}

// each begins a sentence about a peer ("its host ...") that holds for all of them.
func (e extent) each() string {
	if len(e.peers) == 1 {
		return ""
	}
	return "of " + e.names() + " each: "
}

// reversePath judges packets of peers that the kernel takes for forged.
func (w *ways) reversePath() {
	const tried = "ask the kernel whether it takes packets of each peer from the device they come by"
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
			if r.Perhaps && (p.Probe == nil || crossed(p.Probe) != No || answers(p.Probe, api.PathUnderlay) != Yes) {
				continue
			}
			if r.Elsewhere && (w.n.Filtered == 0 || p.Probe == nil || crossed(p.Probe) != No ||
				answers(p.Probe, api.PathUnderlay) == Yes) {
				continue
			}
			at := way{r.Link, r.Mode, r.By, r.Elsewhere}
			if peers[at] == nil {
				order = append(order, at)
			}
			sources[at], peers[at] = append(sources[at], r.Source.String()), append(peers[at], p)
			w.filtered[p.Node] = true
		}
	}
	for _, at := range order {
		from := sources[at]
		if more := len(from) - mostNamed; more > 0 {
			from = append(from[:mostNamed:mostNamed], fmt.Sprintf("%d more", more))
		}
		how, mode := "no route leads back to it", "rp_filter is "+at.mode+" there"
		if at.by != "" {
			how = "the way back to it is over " + at.by
		}
		do := fmt.Sprintf("sysctl -w net.ipv4.conf.%s.rp_filter=2 net.ipv4.conf.all.rp_filter=2 (loose), and put both into "+
			"/etc/sysctl.d", at.link)
		if at.elsewhere {
			do = "sysctl -w net.ipv4.conf.all.rp_filter=2 (loose), and put it into /etc/sysctl.d"
		}
		if at.mode == "2" {
			do = fmt.Sprintf("give the host a route to %s, or set net.ipv4.conf.%s.rp_filter and that of all to 0", and(from),
				at.link)
		} else if at.by != "" {
			do += fmt.Sprintf("; or route packets to %s over %s", and(from), at.link)
		}
		e := extent{peers: peers[at]}
		if slices.IndexFunc(e.peers, func(p Peer) bool { return p.Node != e.peers[0].Node }) < 0 {
			e.peers = e.peers[:1]
		}
		w.add(fault(CheckReversePath, w.n.Name, e.peer(), tried,
			fmt.Sprintf("what comes from %s by %s is dropped: %s, and %s", and(from), at.link, mode, how), do))
	}
	if len(order) == 0 && len(w.n.Peers) > 0 {
		w.add(well(CheckReversePath, w.n.Name, tried, "it does"))
	}
}

// back reports whether packets from peers to this host's public address arrive: Yes if from one peer, No if from none
// of those that were asked.
func (w *ways) back() (answer Answer, peer string) {
	for _, p := range w.n.Peers {
		switch {
		case p.Probe == nil || p.Near:
		case crossed(p.Probe) == Yes, p.Probe.Back != nil && p.Probe.Back.State == api.DirectionPasses:
			return Yes, ""
		case p.Probe.Back != nil && p.Probe.Back.State == api.DirectionLost:
			answer, peer = No, p.Node
		}
	}
	return answer, peer
}

// publicIP judges whether the address that others send to leads here.
func (w *ways) publicIP() {
	const tried = "compare the public address with this host's own, and have peers send to it"
	u := w.n.Underlay
	if len(u.Public) == 0 || w.found(w.n.Name, CheckPublicIP) {
		return
	}
	public, own := u.Public[0], netip.Addr{}
	if len(u.Own) > 0 {
		own = u.Own[0]
	}
	back, peer := w.back()
	net, near := inAny(u.OnLink, public)
	switch {
	case !u.translated():
		w.add(well(CheckPublicIP, w.n.Name, tried, "%s is %s's", public, u.Interface))
	case back == Yes:
		w.add(well(CheckPublicIP, w.n.Name, tried, "what peers send to %s arrives at %s", public, own))
	case near:
		saw := fmt.Sprintf("%s is no address of this host, though %s of %s has it: "+
			"what others send there goes to another host or to none", public, net, u.Interface)
		w.add(fault(CheckPublicIP, w.n.Name, "", tried, saw,
			fmt.Sprintf("set underlay.public_ip (or public_ipv6) to this host's address, %s, or take it out of the "+
				"configuration", own)))
	case back == No:
		w.add(fault(CheckPublicIP, w.n.Name, "", tried,
			fmt.Sprintf("%s is no address of this host (%s), and what %s sends there does not arrive, though it gets what this "+
				"host sends", public, own, peer),
			fmt.Sprintf("have the NAT pass UDP port %d of %s on to port %d of %s, or correct underlay.public_ip and "+
				"public_ports",
				u.publicPort(w.n.Port), public, w.n.Port, own)))
	default:
		w.add(unknown(CheckPublicIP, w.n.Name, tried,
			fmt.Sprintf("%s is translated to %s somewhere, and no peer was there to show it", public, own), ""))
	}
}

// peer sorts a peer by its answers.
func (w *ways) peer(p Peer) {
	if p.Probe == nil || p.Skipped != "" {
		return
	}
	over, under := crossed(p.Probe), answers(p.Probe, api.PathUnderlay)
	if w.n.Backend == "alloc" {
		over = under // other paths carry the packets of containers
	}
	switch {
	case over == Yes:
		w.reached = append(w.reached, p)
	case refused(p.Probe, w.n.Port) != "", over == No && under == Yes:
		w.closed = append(w.closed, p)
	case over == No && under == No:
		w.silent = append(w.silent, p)
	default:
		w.unasked = append(w.unasked, p)
	}
}

// here returns the address by which others see this host.
func (w *ways) here() string {
	if len(w.n.Underlay.Public) == 0 {
		return "this host"
	}
	return w.n.Underlay.Public[0].String()
}

// blocked reports whether rules of this host block a peer, and names them.
func (w *ways) blocked(p Peer) bool {
	any := false
	for _, b := range w.n.Blockades {
		if leadsTo(b.Path, p) && !b.ExceptAnswers {
			any = true
			w.blockade(b, p.Node)
		}
	}
	return any
}

// leadsTo reports whether a path is the one to the peer. Two peers behind one NAT have the same address.
func leadsTo(path foreign.UnderlayPath, p Peer) bool {
	return path.Peer == p.Public && path.PeerPort == p.Port
}

func (w *ways) blockade(b foreign.Blockade, peer string) {
	key := fmt.Sprint(b.Inbound, b)
	if w.named[key] {
		return
	}
	w.named[key] = true
	what := fmt.Sprintf("what this host sends to UDP port %d of %s", b.Path.PeerPort, b.Path.Peer)
	from := fmt.Sprintf("UDP port %d to %s", b.Path.PeerPort, b.Path.Peer)
	if b.Inbound {
		what = fmt.Sprintf("what %s sends to UDP port %d", b.Path.Peer, b.Path.Port)
		from = fmt.Sprintf("UDP port %d from %s", b.Path.Port, b.Path.Peer)
	}
	if n := w.others(b); n > 0 {
		peer = "" // the rule belongs to this host
		what, from = fmt.Sprintf("%s, and %d others,", what, n), from+" and the other hosts"
	}
	do := "accept " + from + " there, before that rule"
	if b.Command != "" {
		do = "accept " + from + ": `" + b.Command + "`"
	}
	const tried = "read this host's firewall rules, and send packets"
	saw := fmt.Sprintf("%s is dropped here by %s", what, b)
	if b.ExceptAnswers {
		w.add(warning(CheckPort, w.n.Name, peer, tried, saw+", unless it answers what this host has sent shortly before: "+
			"connections from there fail while this host sends nothing", do))
		return
	}
	w.add(fault(CheckPort, w.n.Name, peer, tried, saw, do))
}

// answersOnly judges rules of this host that let datagrams pass only as answers, for as long as the kernel remembers
// what was sent. Probes do not show it, because they are sent from here.
func (w *ways) answersOnly() {
	for _, b := range w.n.Blockades {
		i := slices.IndexFunc(w.n.Peers, func(p Peer) bool { return leadsTo(b.Path, p) && p.Skipped == "" })
		if b.ExceptAnswers && b.Inbound && i >= 0 && !w.found(w.n.Name, CheckPublicIP) {
			w.blockade(b, w.n.Peers[i].Node)
		}
	}
}

// others returns how many more peers have the same rule.
func (w *ways) others(b foreign.Blockade) int {
	count := -1
	for _, o := range w.n.Blockades {
		if o.Inbound == b.Inbound && o.String() == b.String() {
			count++
		}
	}
	return max(count, 0)
}

// blockades judges rules of this host that block peers that do not answer in any way, or all peers if none was
// probed. It leaves out peers that were reached in spite of a rule: such a rule does not do what it seems to.
func (w *ways) blockades() {
	if w.found(w.n.Name, CheckPublicIP) {
		return
	}
	w.silent = slices.DeleteFunc(w.silent, func(p Peer) bool { return w.blocked(p) })
	if w.n.Asked > 0 {
		return
	}
	for _, p := range w.n.Peers {
		if p.Skipped == "" {
			w.blocked(p)
		}
	}
}

// summary reports which peers answer and which do not.
func (w *ways) summary() {
	const tried = "send packets to the other hosts"
	w.silence(tried)
	if n := len(w.unasked); n > 0 {
		saw := fmt.Sprintf("nothing is known of %s: %s", w.unasked[0].Node, unasked(w.unasked[0].Probe))
		if n > 1 {
			saw = fmt.Sprintf("nothing is known of %d hosts, the first %s: %s", n, w.unasked[0].Node,
				unasked(w.unasked[0].Probe))
		}
		w.add(unknown(CheckPeers, w.n.Name, tried, saw, ""))
	}
	others := len(w.n.Peers)
	switch {
	case w.facts.Alone != nil: // it does not know the peers
	case others == 0:
		w.add(well(CheckPeers, w.n.Name, "read the leases", "there are no other hosts"))
	case w.n.Asked == 0:
		if w.n.RulesErr == nil && w.n.Port > 0 && len(w.named) == 0 {
			w.add(well(CheckPort, w.n.Name, "read this host's firewall rules", "none closes UDP port %d", w.n.Port))
		}
		if !w.facts.Active {
			w.add(unknown(CheckPeers, w.n.Name, tried,
				fmt.Sprintf("none were sent (-passive): the paths to the other hosts (%d) are not tested", others),
				"`leno doctor -network "+w.n.Name+"` tests them"))
		}
	case len(w.reached) == w.n.Asked: // else other findings name the peers that do not answer
		asked := ""
		if w.n.Asked < others {
			asked = fmt.Sprintf(" asked, of %d,", others)
		}
		w.add(well(CheckPeers, w.n.Name, tried, "%d of %d hosts%s answer%s", len(w.reached), w.n.Asked, asked,
			spread(w.reached)))
	}
}

// revoke returns the command that revokes a peer's lease.
func revoke(network string, p Peer) string {
	subnet := "SUBNET"
	if len(p.Subnets) > 0 {
		subnet = p.Subnets[0].String()
	}
	return fmt.Sprintf("`leno lease revoke %s %s`", network, subnet)
}

// silence judges hosts that do not answer at all.
func (w *ways) silence(tried string) {
	var held []Peer
	for _, p := range w.silent {
		switch {
		case w.filtered[p.Node]:
		case !p.Held:
			w.add(warning(CheckPeers, w.n.Name, p.Node, tried, fmt.Sprintf("%s does not answer, and its lease has lapsed: it is down, or its agent has been for long", p.Node), "nothing here: start its agent, or, if it is gone for good, leave its lease to lease.hold or take it with "+revoke(w.n.Name, p)))
		default:
			held = append(held, p)
		}
	}
	if len(held) > 1 && len(w.reached)+len(w.closed)+len(w.unasked) == 0 {
		w.add(fault(CheckPeers, w.n.Name, "", tried,
			fmt.Sprintf("none of the %d hosts that hold a lease answers, neither plainly nor through the overlay: %s; the "+
				"fault is on %s",
				len(held), extent{peers: held}.names(), w.link()), fmt.Sprintf("see that %s is connected, and by which device "+
				"packets leave: `ip route get %s`", w.n.Underlay.Interface, held[0].Public)))
		return
	}
	for _, p := range held {
		if p.Flannel {
			w.add(warning(CheckPeers, w.n.Name, p.Node, tried,
				fmt.Sprintf("%s answers neither at %s nor through the overlay: it is down or cut off. It runs flannel, whose "+
					"record stays for a day after flanneld has ended", p.Node, p.Public),
				"see that the host and flanneld there run; if it is gone for good, leave its record to end, or take it with "+revoke(w.n.Name, p)))
			continue
		}
		w.add(warning(CheckPeers, w.n.Name, p.Node, tried,
			fmt.Sprintf("%s answers neither at %s nor through the overlay: it is down (its lease is held until its session "+
				"ends), cut off, or publishes a wrong address", p.Node, p.Public),
			fmt.Sprintf("if it runs, ask `leno doctor` there, and whether %s leads to it", p.Public)))
	}
}

// spread describes how long small packets take.
func spread(list []Peer) string {
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
