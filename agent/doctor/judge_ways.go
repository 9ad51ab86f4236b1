package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/api"
)

// ways are those between this host and its peers.
func (v *verdict) ways(n Network) {
	w := &ways{verdict: v, n: n, before: len(v.list)}
	w.reversePath()
	if v.found(n.Name, CheckModule, CheckDevice, CheckRights) {
		return // nothing can pass, and why has been said
	}
	w.publicIP()
	for _, p := range n.Peers {
		w.peer(p)
	}
	w.blockades()
	w.summary()
}

// ways is the judgement of one network's.
type ways struct {
	*verdict
	n       Network
	before  int // findings
	reached []api.PeerProbe
	named   map[string]bool // rules that were named
	silent  []Peer          // that do not answer at all
	unasked []Peer          // that packets were not sent to, or not by all ways that would tell
}

// reversePath is packets of peers that the kernel takes for forged.
func (w *ways) reversePath() {
	const tried = "ask the kernel whether it takes packets of each peer from the device they come by"
	any := false
	for _, p := range w.n.Peers {
		if p.Skipped != "" {
			continue // no route leads to it, and nothing of it is expected
		}
		for _, r := range p.Refusals {
			if r.Perhaps && (p.Probe == nil || crossed(p.Probe) != No || answers(p.Probe, api.PathUnderlay) != Yes) {
				continue
			}
			any = true
			how, mode := "no route leads back to it", "rp_filter is "+r.Mode+" there"
			if r.By != "" {
				how = "the way back to it is over " + r.By
			}
			do := fmt.Sprintf("sysctl -w net.ipv4.conf.%s.rp_filter=2 net.ipv4.conf.all.rp_filter=2 (loose), and put both into /etc/sysctl.d", r.Link)
			if r.Mode == "2" {
				do = fmt.Sprintf("give the host a route to %s, or set net.ipv4.conf.%s.rp_filter and that of all to 0", r.Source, r.Link)
			} else if r.By != "" {
				do += fmt.Sprintf("; or route packets to %s over %s", r.Source, r.Link)
			}
			w.add(fault(CheckReversePath, w.n.Name, p.Node, tried, fmt.Sprintf("what comes from %s by %s is dropped: %s, and %s", r.Source, r.Link, mode, how), do))
		}
	}
	if !any && len(w.n.Peers) > 0 {
		w.add(well(CheckReversePath, w.n.Name, tried, "it does"))
	}
}

// back is whether anything that a peer sends to this host's public address
// arrives: Yes of one, No of all that were asked.
func (w *ways) back() (answer Answer, peer string) {
	for _, p := range w.n.Peers {
		switch {
		case p.Probe == nil:
		case crossed(p.Probe) == Yes, p.Probe.Back != nil && p.Probe.Back.State == api.DirectionPasses:
			return Yes, ""
		case p.Probe.Back != nil && p.Probe.Back.State == api.DirectionLost:
			answer, peer = No, p.Node
		}
	}
	return answer, peer
}

// publicIP is whether the address that others send to leads here.
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
		w.add(fault(CheckPublicIP, w.n.Name, "", tried, fmt.Sprintf("%s is no address of this host, though %s of %s has it: what others send there goes to another host or to nobody", public, net, u.Interface),
			fmt.Sprintf("set underlay.public_ip (or public_ipv6) to this host's address, %s, or take it out of the configuration", own)))
	case back == No:
		w.add(fault(CheckPublicIP, w.n.Name, "", tried, fmt.Sprintf("%s is no address of this host (%s), and what %s sends there does not arrive, though it gets what this host sends", public, own, peer),
			fmt.Sprintf("have the NAT pass UDP port %d of %s on to %s, or correct underlay.public_ip", w.n.Port, public, own)))
	default:
		w.add(unknown(CheckPublicIP, w.n.Name, tried, fmt.Sprintf("%s is translated to %s somewhere, and no peer was there to show it", public, own), ""))
	}
}

// peer judges the ways to one.
func (w *ways) peer(p Peer) {
	if p.Probe == nil || p.Skipped != "" {
		return
	}
	over, under := crossed(p.Probe), answers(p.Probe, api.PathUnderlay)
	switch {
	case over == Yes:
		w.reached = append(w.reached, *p.Probe)
		w.sizes(p)
		if p.Datagrams == No {
			w.checksum(p)
		}
	case refused(p.Probe, w.n.Port) != "", over == No && under == Yes:
		w.closed(p)
	case over == No && under == No:
		w.silent = append(w.silent, p)
	default:
		w.unasked = append(w.unasked, p)
	}
}

// closed is a peer whose host answers, and whose end of the overlay does not.
func (w *ways) closed(p Peer) {
	if w.found(w.n.Name, CheckPublicIP) || w.filtered(p) {
		return // which explains it
	}
	if w.blocked(p) {
		return
	}
	tried := fmt.Sprintf("send packets through the overlay to %s and plainly to %s", p.Node, p.Public)
	port := fmt.Sprintf("UDP port %d", w.n.Port)
	if w.n.Port == 0 {
		w.add(fault(CheckPeers, w.n.Name, p.Node, tried, "its host answers, its address in the network does not",
			"look for rules and routes there and between the hosts that drop packets of "+joined(w.n.Pools)+": ask `leno doctor` on "+p.Node))
		return
	}
	there, back := Unknown, Unknown
	for _, d := range []struct {
		told *api.ProbedDirection
		into *Answer
	}{{p.Probe.There, &there}, {p.Probe.Back, &back}} {
		switch {
		case d.told == nil:
		case d.told.State == api.DirectionPasses:
			*d.into = Yes
		case d.told.State == api.DirectionLost:
			*d.into = No
		}
	}
	who := refused(p.Probe, w.n.Port)
	here, theirs := w.here(), p.Public
	const between = "; ask `leno doctor` on %s too, which reads that host's rules"
	switch {
	case who != "":
		w.add(fault(CheckPort, w.n.Name, p.Node, tried, fmt.Sprintf("its host answers, and what goes to its %s is refused: %s", port, who),
			fmt.Sprintf("accept %s from %s at %s and at firewalls between, and see that its agent runs: without it nobody may listen there", port, here, p.Node)+fmt.Sprintf(between, p.Node)))
	case there == No:
		w.add(fault(CheckPort, w.n.Name, p.Node, tried, fmt.Sprintf("its host answers, what it sends to %s arrives here, and what this host sends to its %s is lost", port, port),
			fmt.Sprintf("accept %s from %s to %s: at its firewall, or one between (a cloud's security group)", port, here, theirs)+fmt.Sprintf(between, p.Node)))
	case back == No:
		w.add(fault(CheckPort, w.n.Name, p.Node, tried, fmt.Sprintf("its host answers, what this host sends to its %s arrives there, and what it sends here is lost", port),
			fmt.Sprintf("accept %s from %s to %s: at this host's firewall, one between (a cloud's security group), or what %s lets out", port, theirs, here, p.Node)+fmt.Sprintf(between, p.Node)))
	default:
		w.add(fault(CheckPort, w.n.Name, p.Node, tried, fmt.Sprintf("its host answers, and nothing passes through the overlay, by %s, neither there nor back", port),
			fmt.Sprintf("accept %s between %s and %s, both ways: at both hosts and at firewalls between (a cloud's security group)", port, here, theirs)+fmt.Sprintf(between, p.Node)))
	}
}

// filtered says whether the reverse path filter has been named for what keeps the
// peer out.
func (w *ways) filtered(p Peer) bool {
	return slices.ContainsFunc(w.list[w.before:], func(f api.Finding) bool { return f.Check == CheckReversePath && f.Peer == p.Node })
}

// here is the address that others see of this host.
func (w *ways) here() string {
	if len(w.n.Underlay.Public) == 0 {
		return "this host"
	}
	return w.n.Underlay.Public[0].String()
}

// blocked says whether rules of this host are what keeps a peer out, and names
// them.
func (w *ways) blocked(p Peer) bool {
	any := false
	for _, b := range w.n.Blockades {
		if b.Lane.Peer == p.Public {
			any = true
			w.blockade(b, p.Node)
		}
	}
	return any
}

func (w *ways) blockade(b firewall.Blockade, peer string) {
	key := fmt.Sprint(b.Inbound, b)
	if w.named[key] {
		return
	}
	if w.named == nil {
		w.named = map[string]bool{}
	}
	w.named[key] = true
	what := fmt.Sprintf("what this host sends to UDP port %d of %s", b.Lane.Port, b.Lane.Peer)
	from := fmt.Sprintf("UDP port %d to %s", b.Lane.Port, b.Lane.Peer)
	if b.Inbound {
		what = fmt.Sprintf("what %s sends to UDP port %d", b.Lane.Peer, b.Lane.Port)
		from = fmt.Sprintf("UDP port %d from %s", b.Lane.Port, b.Lane.Peer)
	}
	if n := w.others(b); n > 0 {
		what, from = fmt.Sprintf("%s, and %d others,", what, n), from+" and the other hosts"
	}
	w.add(fault(CheckPort, w.n.Name, peer, "read this host's firewall rules, and send packets", fmt.Sprintf("%s is dropped here by %s", what, b), "accept "+from+" there, before that rule"))
}

// others is for how many more peers the same rule is.
func (w *ways) others(b firewall.Blockade) int {
	count := -1
	for _, o := range w.n.Blockades {
		if o.Inbound == b.Inbound && o.String() == b.String() {
			count++
		}
	}
	return max(count, 0)
}

// blockades are rules of this host in the way of peers that do not answer in any
// way, or of which none was asked. Rules that a peer was reached in spite of are
// other than they look.
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

// sizes is whether packets of the full size pass.
func (w *ways) sizes(p Peer) {
	tried := "send packets of the full size to " + p.Node + ", through the overlay and plainly"
	var under api.ProbedWay
	for _, way := range p.Probe.Ways {
		if way.Path == api.PathUnderlay && untried(way) == "" && way.Full.Sent > 0 {
			under = way
		}
	}
	narrow := under.Full.Sent > 0 && under.Full.Answered == 0 && under.Largest > 0
	do := "let the way carry what " + w.n.Underlay.Interface + " says, or tell the host what it carries"
	if narrow {
		do = fmt.Sprintf("let the way carry %d bytes, or give %s or the route to %s an MTU of %d (`ip route change … mtu %[4]d`): leno takes the overlay's from it", under.MTU, w.n.Underlay.Interface, p.Public, under.Largest)
	}
	said := ""
	for _, e := range under.Errors {
		if e.MTU > 0 {
			said = fmt.Sprintf("; %s says so (%s, %d)", e.From, e.Reason, e.MTU)
		}
	}
	between := ""
	if narrow {
		between = fmt.Sprintf("; of %d bytes that %s can send, %d reach it plainly%s", under.MTU, w.n.Underlay.Interface, under.Largest, said)
	}
	for _, way := range p.Probe.Ways {
		// Of errors, with which a host without a device answers, kernels send few.
		if way.Path == api.PathOverlay && way.Answer == echoReply && way.Full.Sent > 0 && way.Full.Answered == 0 {
			w.add(fault(CheckPathMTU, w.n.Name, p.Node, tried, fmt.Sprintf("packets of %d bytes pass through the overlay, those of %d, its MTU, do not%s", way.Largest, way.MTU, between), do))
			return
		}
	}
	if narrow {
		w.add(warning(CheckPathMTU, w.n.Name, p.Node, tried, fmt.Sprintf("the overlay carries %d bytes in pieces%s", w.n.MTU, between), do))
	}
}

// echoReply is what a packet that came to its address is answered with.
const echoReply = "echo reply"

func (w *ways) checksum(p Peer) {
	do := `set checksum_offload = "off" in the network's backend block (` + "`leno network apply`" + `); it is for network cards and kernels that write wrong checksums into packets within packets`
	if w.n.Backend != "vxlan" {
		do = "look for rules between the hosts that let pings pass and nothing else"
	}
	w.add(fault(CheckChecksum, w.n.Name, p.Node, "send pings, UDP and TCP through the overlay, with one hop to live, so that no firewall of containers matters",
		p.Node+" gets pings, and of UDP and TCP nothing: that is what becomes of packets whose checksums are left to the network card and come out wrong", do))
}

// summary is who answers and who does not.
func (w *ways) summary() {
	tried := "send packets to the other hosts"
	for _, p := range w.silent {
		switch {
		case w.filtered(p):
		case !p.Held:
			w.add(warning(CheckPeers, w.n.Name, p.Node, tried, fmt.Sprintf("%s does not answer, and its lease has lapsed: it is down, or its agent has been for long", p.Node), "nothing here: start its agent, or, if it is gone for good, leave its lease to lease.hold or take it with `leno lease revoke`"))
		default:
			w.add(warning(CheckPeers, w.n.Name, p.Node, tried, fmt.Sprintf("%s answers neither at %s nor through the overlay: it is down (its lease is held until its session ends), cut off, or publishes a wrong address", p.Node, p.Public),
				fmt.Sprintf("if it runs, ask `leno doctor` there, and whether %s leads to it", p.Public)))
		}
	}
	if n := len(w.unasked); n > 0 {
		saw := fmt.Sprintf("nothing is known of %s: %s", w.unasked[0].Node, unasked(w.unasked[0].Probe))
		if n > 1 {
			saw = fmt.Sprintf("nothing is known of %d hosts, the first %s: %s", n, w.unasked[0].Node, unasked(w.unasked[0].Probe))
		}
		w.add(unknown(CheckPeers, w.n.Name, tried, saw, ""))
	}
	others := len(w.n.Peers)
	switch {
	case others == 0:
		w.add(well(CheckPeers, w.n.Name, "read the leases", "there are no other hosts"))
	case w.n.Asked == 0:
		if w.n.RulesErr == nil && w.n.Port > 0 && len(w.named) == 0 {
			w.add(well(CheckPort, w.n.Name, "read this host's firewall rules", "none closes UDP port %d", w.n.Port))
		}
	case len(w.reached) > 0:
		asked := ""
		if w.n.Asked < others {
			asked = fmt.Sprintf(" asked, of %d,", others)
		}
		w.add(well(CheckPeers, w.n.Name, tried, "%d of %d hosts%s answer%s", len(w.reached), w.n.Asked, asked, spread(w.reached)))
	}
}

// spread is how long small packets take.
func spread(list []api.PeerProbe) string {
	low, high := 0.0, 0.0
	for _, p := range list {
		for _, way := range p.Ways {
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
