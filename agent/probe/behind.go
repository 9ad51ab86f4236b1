package probe

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/lenonet/leno/api"
)

// apart tells of a peer that is silent what does pass: each direction alone, and
// packets for others behind it.
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

// silent are echo requests beyond the peer by the ways through the overlay that
// nothing came back by: to the last but one address of its subnet, with no hop to
// make there. An echo request for the peer's own address meets its rules about
// itself, which may take none from the overlay; this one its kernel throws away and
// says so before any rule about containers is asked.
func (p planner) silent(peer api.Peer, o api.PeerProbe) (out []echo) {
	for _, w := range o.Ways {
		i := slices.IndexFunc(peer.Subnets, func(s netip.Prefix) bool { return s.Contains(w.To) })
		if w.Path == api.PathOverlay && w.NotProbed == "" && w.Largest == 0 && i >= 0 {
			out = append(out, echo{from: w.From, to: Behind(peer.Subnets[i]), size: least, hops: 1})
		}
	}
	return out
}

// passesOn says whether the peer's kernel speaks of all of the packets. Errors of
// routers and of this host show nothing.
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

// Behind is an address of a peer's subnet that no host's device has: the last but one.
func Behind(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last.Prev()
}
