package doctor

import (
	"fmt"

	"github.com/lenonet/leno/api"
)

// What was not tried, and what did not leave this host, is evidence of nothing: it is
// Unknown wherever it is asked for.

// answers says whether packets came back by all ways of a kind that any left by.
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

// untried is why no packet left by a way, "" where one did.
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

// crossed says whether the overlay carries packets to a peer and back: what it says
// to echo requests, or what its kernel says of packets for others behind it, which it
// does also where rules keep echo requests from it.
func crossed(p *api.PeerProbe) Answer {
	passes := func(d *api.ProbedDirection) bool { return d != nil && d.State == api.DirectionPasses }
	if passes(p.There) && passes(p.Back) {
		return Yes
	}
	return answers(p, api.PathOverlay)
}

// refused is who said that the carrier's port is closed, and how.
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

// unasked is why nothing is known of the ways to a peer.
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
