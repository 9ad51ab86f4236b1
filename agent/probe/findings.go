package probe

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/lenonet/leno/api"
)

// findings is what is wrong with a peer, each with what to do about it. Pure.
func (p planner) findings(o api.PeerProbe) []string {
	out := []string{}
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if o.Skipped != "" {
		add("it is left out of the datapath: %s", o.Skipped)
	}
	underlay, silent := p.underlay(o)
	overlay := deaf(o) // answers anywhere
	for _, w := range o.Ways {
		overlay = overlay || w.Path == api.PathOverlay && w.Largest > 0
	}
	for _, w := range o.Ways {
		switch {
		case w.NotProbed != "" || w.Path == api.PathUnderlay && (w.Largest > 0 || !overlay):
		case w.Path == api.PathUnderlay:
			add("%s answers no echo over the underlay, though the overlay works: let ICMP pass, path MTU discovery lives by it", w.To)
		case w.Largest == 0 && deaf(o):
			add("%s takes no echo requests through the overlay, though packets for containers behind it pass: let ICMP pass there, so that the network can be probed", w.To)
		case w.Largest == 0 && len(underlay) > 0:
			add("%s", p.blackout(o, w))
		}
	}
	if len(underlay) == 0 && len(silent) > 0 && !overlay {
		add("no answer at all from %s%s: see whether the host is up, and that packets to it leave by %s", joined(silent), said(o.Ways), p.Underlay.Interface)
	}
	for _, w := range o.Ways {
		if w.NotProbed == "" && w.Largest > 0 {
			out = append(out, p.defects(w)...)
		}
	}
	return out
}

// underlay is which underlay addresses of a peer answer, and which do not.
func (p planner) underlay(o api.PeerProbe) (answer, silent []netip.Addr) {
	for _, w := range o.Ways {
		switch {
		case w.Path != api.PathUnderlay || w.NotProbed != "":
		case w.Largest > 0:
			answer = append(answer, w.To)
		default:
			silent = append(silent, w.To)
		}
	}
	return answer, silent
}

// blackout is why the overlay may be silent when the underlay is not.
func (p planner) blackout(o api.PeerProbe, w api.ProbedWay) string {
	what := fmt.Sprintf("%s does not answer through the overlay, though the underlay works", w.To)
	for _, u := range o.Ways {
		for _, e := range u.Errors {
			if e.About != "" && blocked(e.Reason) {
				return fmt.Sprintf("%s: %s says %q about %s: see that the agent runs there, with this network, and that no firewall rejects it", what, e.From, e.Reason, e.About)
			}
		}
	}
	what += said([]api.ProbedWay{w})
	port := "the network's packets"
	if n := p.options().Port; n > 0 {
		port = fmt.Sprintf("UDP port %d", n)
	}
	switch {
	case p.plain():
		return what + ": see that the peer's host forwards, and that no firewall on the way drops addresses that are not its own"
	case o.There == nil || o.Back == nil:
		return what + ": let " + port + " pass both ways"
	case o.There.State == api.DirectionLost:
		return fmt.Sprintf("%s: packets are lost on the way there: let %s pass from this host to %s", what, port, o.Node)
	case o.Back.State == api.DirectionLost:
		return fmt.Sprintf("%s: packets are lost on the way back: let %s pass from %s to this host", what, port, o.Node)
	}
	return fmt.Sprintf("%s: let %s pass both ways between this host and %s", what, port, o.Node)
}

// defects is what is wrong with a way that does carry packets.
func (p planner) defects(w api.ProbedWay) (out []string) {
	for _, s := range []api.ProbedSize{w.Small, w.Full} {
		if s.Lost() > 0 && s.Bytes <= w.Largest {
			out = append(out, fmt.Sprintf("the %s to %s lost %d of %d packets of %d bytes", w.Path, w.To, s.Lost(), s.Sent, s.Bytes))
		}
	}
	if w.Full.Sent == 0 || w.Largest >= w.Full.Bytes {
		return out
	}
	who := "nobody says why: a device on the way drops what is longer"
	for _, e := range w.Errors {
		if e.MTU > 0 && e.From.IsValid() {
			who = fmt.Sprintf("%s says that no more than %d fit", e.From, e.MTU)
		} else if e.Reason == tooLong {
			who = "they are " + tooLong
		}
	}
	what := fmt.Sprintf("the %s carries no packet of %d bytes to %s, %d pass", w.Path, w.Full.Bytes, w.To, w.Largest)
	if w.Path == api.PathUnderlay {
		return append(out, fmt.Sprintf("%s (%s): make the path as wide as %s, or lower the MTU of %s on all hosts, which the overlay's follows", what, who, p.Underlay.Interface, p.Underlay.Interface))
	}
	return append(out, fmt.Sprintf("%s (%s): the path between the hosts is narrower than the MTU that the overlay's is made from", what, who))
}

// said is what was told about packets that did not arrive, for the end of a
// clause.
func said(ways []api.ProbedWay) string {
	var out []string
	for _, w := range ways {
		for _, e := range w.Errors {
			text := e.Reason
			if e.From.IsValid() {
				text += " from " + e.From.String()
			}
			out = append(out, text)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + strings.Join(out, "; ") + ")"
}

func joined(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, " and ")
}
