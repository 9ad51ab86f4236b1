package probe

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/lenonet/leno/api"
)

// tellsDirections says whether there is a direction to be told: the tunnel is
// silent in some family, and what carries it is not.
func (p planner) tellsDirections(o api.PeerProbe) bool {
	if p.plain() || p.Backend == "alloc" || o.Skipped != "" {
		return false
	}
	silent, carried := false, false
	for _, w := range o.Ways {
		silent = silent || w.Path == api.PathOverlay && w.NotProbed == "" && w.Small.Answered == 0
		carried = carried || w.Path == api.PathUnderlay && w.Small.Answered > 0
	}
	return silent && carried
}

// detour is a way to probe one direction of the tunnel alone; unknown is why
// there is none.
type detour struct {
	echo    echo
	how     string
	unknown string
}

// directions sends packets through the tunnel that are answered past it, and
// packets past it that are answered through it. An answer proves that the tunnel
// carries the one direction, so that the other one loses; that none comes proves
// less.
func (p planner) directions(ctx context.Context, l line, peer api.Peer, r api.ProbeRequest) (there, back *api.ProbedDirection) {
	var passes [2]bool
	detours := [2]detour{p.there(peer), p.back(peer)}
	var wg sync.WaitGroup
	for i, d := range detours {
		if d.unknown == "" {
			wg.Go(func() { passes[i] = answered(ctx, l, d.echo, r) })
		}
	}
	wg.Wait()
	told := [2]*api.ProbedDirection{}
	for i, d := range detours {
		switch {
		case passes[i]:
			told[i] = &api.ProbedDirection{State: api.DirectionPasses, Reason: d.how}
		case passes[1-i]:
			told[i] = &api.ProbedDirection{State: api.DirectionLost, Reason: "the other direction passes, and there and back together do not"}
		case d.unknown != "":
			told[i] = &api.ProbedDirection{State: api.DirectionUnknown, Reason: d.unknown}
		default:
			told[i] = &api.ProbedDirection{State: api.DirectionUnknown, Reason: "no answer to packets of this direction alone: they are lost, or the peer's host drops them by its reverse-path filter"}
		}
	}
	return told[0], told[1]
}

// answered says whether any of a few packets is.
func answered(ctx context.Context, l line, e echo, r api.ProbeRequest) bool {
	for range max(2, min(r.Count, 3)) {
		if l.exchange(ctx, e, min(milliseconds(r.TimeoutMS), time.Second)).kind == replied {
			return true
		}
	}
	return false
}

// there is the direction to the peer: an echo request through the tunnel from
// this host's underlay address, which is answered over the underlay.
func (p planner) there(peer api.Peer) detour {
	if p.Backend == "udp" {
		return detour{unknown: "udp sends nothing from an address that is not of this host's subnet"}
	}
	d := detour{unknown: "this host has no underlay address of the family of its subnets"}
	for _, s := range peer.Subnets {
		from, ok := p.own(s.Addr())
		switch {
		case !ok:
			continue
		case !p.tunnelled(s.Addr()):
			d.unknown = "its packets are routed plainly"
		case s.Addr().Is4() && p.here.strict(p.Underlay.Interface):
			d.unknown = fmt.Sprintf("rp_filter of %s is 1: this host would drop the answer, which comes in over the underlay", p.Underlay.Interface)
		default:
			to := s.Masked().Addr()
			return detour{echo: echo{from: from, to: to, size: least},
				how: fmt.Sprintf("a packet through the tunnel from %s was answered over the underlay", from)}
		}
	}
	return d
}

// back is the direction from the peer: an echo request over the underlay to the
// peer's address in the overlay, from ours, which is answered through the tunnel.
// Both addresses are the network's, so that neither masquerading nor the source
// checks of udp are in the way. Over a router it goes to the peer's underlay
// address instead.
func (p planner) back(peer api.Peer) detour {
	d := detour{unknown: "the network has no IPv4, which can be sent past its routes"}
	for _, s := range peer.Subnets {
		own := p.subnet(s.Addr())
		if !own.IsValid() {
			continue
		}
		from, to := own.Masked().Addr(), s.Masked().Addr()
		index, neighbour := 0, false
		for _, outer := range p.outer(peer) {
			if outer.Is4() == to.Is4() {
				index, neighbour = p.here.device(outer)
				d = p.beyond(from, outer, d)
			}
		}
		switch {
		case !p.tunnelled(to):
			d.unknown = "its packets are routed plainly"
		case to.Is4() && neighbour:
			return detour{echo: echo{from: from, to: to, size: least, link: index},
				how: fmt.Sprintf("a packet over the underlay from %s to %s was answered through the tunnel", from, to)}
		case d.unknown == "":
			return d
		}
	}
	return d
}

// beyond is the direction back of a peer that is no neighbour.
func (p planner) beyond(from, outer netip.Addr, d detour) detour {
	switch {
	case p.Backend == "udp":
		d.unknown = "udp takes nothing from an address that is not of the peer's subnet, and the peer is no neighbour over IPv4"
	case p.Masquerade:
		d.unknown = fmt.Sprintf("a packet from %s to %s would be masqueraded, and the peer is no neighbour over IPv4", from, outer)
	default:
		return detour{echo: echo{from: from, to: outer, size: least},
			how: fmt.Sprintf("a packet over the underlay from %s was answered through the tunnel", from)}
	}
	return d
}

// tunnelled says whether packets to an address leave by the network's device.
func (p planner) tunnelled(a netip.Addr) bool {
	if !p.options().DirectRouting {
		return true
	}
	index, _ := p.here.device(a)
	return index == p.here.link
}
