package doctor

import (
	"fmt"

	"github.com/lenonet/leno/api"
)

// A packet that was not sent, or did not leave this host, is no evidence: the answer is then Unknown.

// pathAnswer reports whether packets came back on all paths of a kind that any packet left by.
func pathAnswer(p *api.PeerProbe, path string) Answer {
	out := Unknown
	for _, way := range p.Ways {
		switch {
		case way.Path != path || notSentReason(way) != "":
		case way.Small.Answered+way.Full.Answered == 0:
			return No
		default:
			out = Yes
		}
	}
	return out
}

// notSentReason returns why no packet left on a path, "" if one did.
func notSentReason(way api.ProbedWay) string {
	if way.NotProbed != "" {
		return way.NotProbed
	}
	unsent, why := 0, "no packet was sent"
	for _, e := range way.Errors {
		if !e.From.IsValid() {
			unsent += e.Count
			why = e.Reason
		}
	}
	if way.Small.Answered+way.Full.Answered == 0 && unsent >= way.Small.Sent+way.Full.Sent {
		return why
	}
	return ""
}

// overlayAnswer reports whether the overlay carries packets to a peer and back. The evidence is its answers to echo
// requests, or its kernel's errors about packets for addresses behind it. The kernel sends these errors even where
// rules block echo requests.
func overlayAnswer(p *api.PeerProbe) Answer {
	passes := func(d *api.ProbedDirection) bool { return d != nil && d.State == api.DirectionPasses }
	if passes(p.ToPeer) && passes(p.FromPeer) {
		return Yes
	}
	return pathAnswer(p, api.PathOverlay)
}

// portRefusal returns which host reported that the tunnel's port is closed, and how.
func portRefusal(p *api.PeerProbe, port int) string {
	for _, way := range p.Ways {
		for _, e := range way.Errors {
			if e.About == fmt.Sprintf("udp port %d", port) && port > 0 {
				return fmt.Sprintf("%s reports for UDP port %d: %s", e.From, port, e.Reason)
			}
		}
	}
	return ""
}

// unknownReason returns why the paths to a peer were not tested.
func unknownReason(p *api.PeerProbe) string {
	for _, path := range []string{api.PathOverlay, api.PathUnderlay} {
		for _, way := range p.Ways {
			if why := notSentReason(way); way.Path == path && why != "" {
				return why
			}
		}
	}
	return "it has no address that this host could send to"
}
