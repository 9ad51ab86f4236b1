package doctor

import (
	"fmt"

	"github.com/lenonet/leno/api"
)

// A packet that was not sent, or did not leave this host, is no evidence: the answer is then Unknown.

// answers reports whether packets came back on all paths of a kind that any packet left by.
func answers(p *api.PeerProbe, path string) Answer {
	out := Unknown
	for _, way := range p.Ways {
		switch {
		case way.Path != path || untried(way) != "":
		case way.Small.Answered+way.Full.Answered == 0:
			return No
		default:
			out = Yes
		}
	}
	return out
}

// untried returns why no packet left on a path, "" if one did.
func untried(way api.ProbedWay) string {
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

// crossed reports whether the overlay carries packets to a peer and back. The evidence is its answers to echo
// requests, or its kernel's errors about packets for addresses behind it. The kernel sends these errors even where
// rules block echo requests.
func crossed(p *api.PeerProbe) Answer {
	passes := func(d *api.ProbedDirection) bool { return d != nil && d.State == api.DirectionPasses }
	if passes(p.There) && passes(p.Back) {
		return Yes
	}
	return answers(p, api.PathOverlay)
}

// refused tells which host reported that the tunnel's port is closed, and how.
func refused(p *api.PeerProbe, port int) string {
	for _, way := range p.Ways {
		for _, e := range way.Errors {
			if e.About == fmt.Sprintf("udp port %d", port) && port > 0 {
				return fmt.Sprintf("%s says of UDP port %d: %s", e.From, port, e.Reason)
			}
		}
	}
	return ""
}

// unasked returns why nothing is known of the paths to a peer.
func unasked(p *api.PeerProbe) string {
	for _, path := range []string{api.PathOverlay, api.PathUnderlay} {
		for _, way := range p.Ways {
			if why := untried(way); way.Path == path && why != "" {
				return why
			}
		}
	}
	return "it has no address that this host could send to"
}
