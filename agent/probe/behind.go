package probe

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
)

// apart tests a silent peer further: each direction alone, and packets for addresses behind it. It adds to o what
// passes.
func (p planner) apart(ctx context.Context, l line, peer api.Peer, r api.ProbeRequest, o *api.PeerProbe) {
	passes, silent := false, p.silent(peer, *o)
	var wg sync.WaitGroup
	wg.Go(func() { passes = len(silent) > 0 && passesOn(ctx, l, peer, r, silent) })
	if p.tellsDirections(*o) {
		o.There, o.Back = p.directions(ctx, l, peer, r)
	}
	wg.Wait()
	if passes {
		const how = "the peer's kernel said that a packet for a container behind it may make no more hops"
		o.There = &api.ProbedDirection{State: api.DirectionPasses, Reason: how}
		o.Back = &api.ProbedDirection{State: api.DirectionPasses, Reason: how}
		o.Reached = true
	}
}

// silent returns echo requests to addresses behind the peer, one for each overlay path on which nothing came back.
// Each goes to the last but one address of the peer's subnet and may make no hop there. An echo request for the
// peer's own address is subject to its rules about itself, which may accept none from the overlay. The peer's kernel
// drops this one instead, and reports that before any rule about containers applies.
func (p planner) silent(peer api.Peer, o api.PeerProbe) (out []echo) {
	for _, w := range o.Ways {
		i := slices.IndexFunc(peer.Subnets, func(s netip.Prefix) bool { return s.Contains(w.To) })
		if w.Path == api.PathOverlay && w.NotProbed == "" && w.Largest == 0 && i >= 0 {
			out = append(out, echo{from: w.From, to: backend.AddrBehind(peer.Subnets[i]), size: least, hops: 1})
		}
	}
	return out
}

// passesOn reports whether the peer's kernel sends an error about each of the packets. Errors of routers and of this
// host prove nothing.
func passesOn(ctx context.Context, l line, peer api.Peer, r api.ProbeRequest, all []echo) bool {
	said := make([]bool, len(all))
	var wg sync.WaitGroup
	for i, e := range all {
		wg.Go(func() {
			answers := together(2, func() func() answer { return l.send(ctx, e, milliseconds(r.TimeoutMS)) })
			said[i] = slices.ContainsFunc(answers, func(a answer) bool {
				return a.kind == errored && a.reason != tooBig && (slices.Contains(peer.PublicIPs, a.from) ||
					slices.ContainsFunc(peer.Subnets, func(s netip.Prefix) bool { return s.Contains(a.from) }))
			})
		})
	}
	wg.Wait()
	return !slices.Contains(said, false)
}
