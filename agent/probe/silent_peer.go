package probe

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
)

// probeDirections finds out in which direction packets to a silent peer are lost, and whether its kernel receives
// packets for addresses behind it. It adds the result to o.
func (p planner) probeDirections(ctx context.Context, l pinger, peer api.Peer, r api.ProbeRequest, o *api.PeerProbe) {
	forwards, echoes := false, p.expiringEchoes(peer, *o)
	var wg sync.WaitGroup
	wg.Go(func() { forwards = len(echoes) > 0 && hasErrorForEach(ctx, l, peer, r, echoes) })
	if !p.NoDetours && p.canProbeDirections(*o) {
		o.ToPeer, o.FromPeer = p.probeDetours(ctx, l, peer, r)
	}
	wg.Wait()
	if forwards {
		const how = "the peer's kernel reported a packet for a container behind it whose hop limit was used up"
		o.ToPeer = &api.ProbedDirection{State: api.DirectionPasses, Reason: how}
		o.FromPeer = &api.ProbedDirection{State: api.DirectionPasses, Reason: how}
		o.Reached = true
	}
}

// expiringEchoes returns echo requests to addresses behind the peer, one for each overlay path on which nothing came
// back. Each goes to the last but one address of the peer's subnet and may make no hop there. An echo request for the
// peer's own address is subject to its rules about itself, which may accept none from the overlay. The peer's kernel
// drops this one instead, and reports that before any rule about containers applies. The result is empty if packets for
// the two addresses leave by different devices: a route of another program takes a part of the subnet, and the answer
// of one address says nothing about the other.
func (p planner) expiringEchoes(peer api.Peer, o api.PeerProbe) (out []echo) {
	for _, w := range o.Ways {
		i := slices.IndexFunc(peer.Subnets, func(s netip.Prefix) bool { return s.Contains(w.To) })
		if w.Path != api.PathOverlay || w.NotProbed != "" || w.Largest != 0 || i < 0 {
			continue
		}
		behind := backend.AddrBehind(peer.Subnets[i])
		ownLink, _ := p.kernel.route(w.To, 0)
		if link, _ := p.kernel.route(behind, 0); link != ownLink {
			return nil
		}
		out = append(out, echo{from: w.From, to: behind, size: minSize, hops: 1})
	}
	return out
}

// hasErrorForEach reports whether the peer's kernel sends an error about each of the packets. Errors of routers and of
// this host prove nothing.
func hasErrorForEach(ctx context.Context, l pinger, peer api.Peer, r api.ProbeRequest, all []echo) bool {
	returned := make([]bool, len(all))
	var wg sync.WaitGroup
	for i, e := range all {
		wg.Go(func() {
			answers := sendAll(2, func() func() answer { return l.send(ctx, e, milliseconds(r.TimeoutMS)) })
			returned[i] = slices.ContainsFunc(answers, func(a answer) bool {
				return a.outcome == gotError && a.reason != fragmentationNeeded && (slices.Contains(peer.PublicIPs, a.from) ||
					slices.ContainsFunc(peer.Subnets, func(s netip.Prefix) bool { return s.Contains(a.from) }))
			})
		})
	}
	wg.Wait()
	return !slices.Contains(returned, false)
}
