package probe

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/lenonet/leno/api"
)

// tellsDirections reports whether testing each direction makes sense: the tunnel is silent in some family, although
// its underlay path is not.
func (p planner) tellsDirections(o api.PeerProbe) bool {
	if p.plain() || p.Backend == "alloc" || o.Skipped != "" {
		return false
	}
	silent, carried := false, false
	for _, w := range o.Ways {
		silent = silent || w.Path == api.PathOverlay && w.NotProbed == "" && w.Largest == 0
		carried = carried || w.Path == api.PathUnderlay && w.Largest > 0
	}
	return silent && carried
}

// detour is a way to probe one direction of the tunnel alone; unknown is why there is none.
type detour struct {
	echo    echo
	how     string
	unknown string
}

// directions sends packets through the tunnel that are answered outside it, and packets outside it that are answered
// through it. An answer proves that the tunnel carries this direction, so that the other one loses packets; a missing
// answer proves less.
func (p planner) directions(ctx context.Context, l line, peer api.Peer,
	r api.ProbeRequest) (there, back *api.ProbedDirection) {
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
			told[i] = &api.ProbedDirection{State: api.DirectionLost,
				Reason: "the other direction passes, and there and back together do not"}
		case d.unknown != "":
			told[i] = &api.ProbedDirection{State: api.DirectionUnknown, Reason: d.unknown}
		default:
			told[i] = &api.ProbedDirection{State: api.DirectionUnknown,
				Reason: "no answer to packets of this direction alone: they are lost, or the peer's host drops them by its " +
					"reverse-path filter"}
		}
	}
	return told[0], told[1]
}

// answered reports whether any of a few packets is answered.
func answered(ctx context.Context, l line, e echo, r api.ProbeRequest) bool {
	answers := together(min(max(r.Count, 2), 5), func() func() answer { return l.send(ctx, e, milliseconds(r.TimeoutMS)) })
	return slices.ContainsFunc(answers, func(a answer) bool { return a.kind == replied })
}

// checksSources reports whether a packet through the tunnel arrives only if its source is of the sender's subnet.
func (p planner) checksSources() bool { return p.Backend == "udp" || p.Backend == "wireguard" }

// there probes the direction to the peer: an echo request through the tunnel from this host's underlay address, which
// is answered over the underlay.
func (p planner) there(peer api.Peer) detour {
	if p.checksSources() {
		return detour{unknown: p.Backend + " sends nothing from an address that is not of this host's subnet"}
	}
	d := detour{unknown: "this host has no underlay address of the family of its subnets"}
	for _, s := range peer.Subnets {
		from, ok := p.own(s.Addr())
		switch {
		case !ok:
			continue
		case !p.tunnelled(s.Addr()):
			d.unknown = "its packets are routed plainly"
		case s.Addr().Is4() && p.here.strict:
			d.unknown = fmt.Sprintf("rp_filter of %s is 1: this host would drop the answer, which comes in over the underlay",
				p.Underlay.Interface)
		default:
			to := s.Masked().Addr()
			return detour{echo: echo{from: from, to: to, size: least},
				how: fmt.Sprintf("a packet through the tunnel from %s was answered over the underlay", from)}
		}
	}
	return d
}

// back probes the direction from the peer: an echo request outside the tunnel, which is answered through it.
func (p planner) back(peer api.Peer) detour {
	var unknown []string
	for _, s := range peer.Subnets {
		own, to := p.subnet(s.Addr()), s.Masked().Addr()
		switch {
		case !own.IsValid():
		case !p.tunnelled(to):
			unknown = append(unknown, "its packets are routed plainly")
		default:
			d := p.past(own.Masked().Addr(), to, peer)
			if d.unknown == "" {
				return d
			}
			unknown = append(unknown, d.unknown)
		}
	}
	return detour{unknown: append(unknown, "this host has no subnet of the peer's families")[0]}
}

// past sends to a neighbour by its overlay address, from ours, as if it had that address on the underlay: kernels
// answer for all their addresses on all devices. Both addresses belong to the network, so that neither masquerading
// nor the source checks of udp and wireguard interfere. If the peer is no neighbour, or has no IPv4, the packet goes to
// its underlay address.
func (p planner) past(from, to netip.Addr, peer api.Peer) detour {
	d := detour{unknown: "the peer has no underlay address of the family of its subnets"}
	for _, outer := range p.outer(peer) {
		index, neighbour := p.here.device(outer, p.VRF)
		switch {
		case neighbour && to.Is4():
			return detour{echo: echo{from: from, to: to, size: least, link: index},
				how: fmt.Sprintf("a packet over the underlay from %s to %s was answered through the tunnel", from, to)}
		case outer.Is4() != to.Is4():
		case p.checksSources():
			d.unknown = p.Backend +
				" takes nothing from an address that is not of the peer's subnet, and the peer is no neighbour over IPv4"
		case p.Masquerade:
			d.unknown = fmt.Sprintf("a packet from %s to %s would be masqueraded, and the peer is no neighbour over IPv4", from,
				outer)
		default:
			return detour{echo: echo{from: from, to: outer, vrf: p.VRF, size: least},
				how: fmt.Sprintf("a packet over the underlay from %s was answered through the tunnel", from)}
		}
	}
	return d
}

// tunnelled reports whether packets to an address leave by one of the network's devices.
func (p planner) tunnelled(a netip.Addr) bool {
	if !p.options().DirectRouting {
		return true
	}
	index, _ := p.here.device(a, 0)
	return index == p.here.link || p.bySecond(a)
}
