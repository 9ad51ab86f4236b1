package probe

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/lenonet/leno/api"
)

// canProbeDirections reports whether testing each direction makes sense: the tunnel is silent in some family, although
// its underlay path is not.
func (p planner) canProbeDirections(o api.PeerProbe) bool {
	if p.isRouted() || p.Backend == "alloc" || o.Skipped != "" {
		return false
	}
	isTunnelSilent, isUnderlayFine := false, false
	for _, w := range o.Ways {
		isTunnelSilent = isTunnelSilent || w.Path == api.PathOverlay && w.NotProbed == "" && w.Largest == 0
		isUnderlayFine = isUnderlayFine || w.Path == api.PathUnderlay && w.Largest > 0
	}
	return isTunnelSilent && isUnderlayFine
}

// detour is a way to probe one direction of the tunnel alone; whyNone is why there is none.
type detour struct {
	echo     echo
	evidence string
	whyNone  string
}

// probeDetours probes each direction alone. It sends packets through the tunnel that are answered outside it, and
// packets outside it that are answered through it. An answer proves that the tunnel carries this direction, so that the
// other one loses packets; a missing answer proves less.
func (p planner) probeDetours(ctx context.Context, l pinger, peer api.Peer,
	r api.ProbeRequest) (there, back *api.ProbedDirection) {
	var passes [2]bool
	detours := [2]detour{p.detourToPeer(peer), p.detourFromPeer(peer)}
	var wg sync.WaitGroup
	for i, d := range detours {
		if d.whyNone == "" {
			wg.Go(func() { passes[i] = isAnswered(ctx, l, d.echo, r) })
		}
	}
	wg.Wait()
	results := [2]*api.ProbedDirection{}
	for i, d := range detours {
		switch {
		case passes[i]:
			results[i] = &api.ProbedDirection{State: api.DirectionPasses, Reason: d.evidence}
		case passes[1-i]:
			results[i] = &api.ProbedDirection{State: api.DirectionLost,
				Reason: "the other direction passes, and both together do not"}
		case d.whyNone != "":
			results[i] = &api.ProbedDirection{State: api.DirectionUnknown, Reason: d.whyNone}
		default:
			results[i] = &api.ProbedDirection{State: api.DirectionUnknown,
				Reason: "no answer to packets of this direction alone: they are lost, or the peer's host drops them by its " +
					"reverse-path filter"}
		}
	}
	return results[0], results[1]
}

// isAnswered reports whether any of a few packets is answered.
func isAnswered(ctx context.Context, l pinger, e echo, r api.ProbeRequest) bool {
	answers := sendAll(min(max(r.Count, 2), 5), func() func() answer { return l.send(ctx, e, milliseconds(r.TimeoutMS)) })
	return slices.ContainsFunc(answers, func(a answer) bool { return a.outcome == gotReply })
}

// hasSourceCheck reports whether a packet through the tunnel arrives only if its source is of the sender's subnet.
func (p planner) hasSourceCheck() bool { return p.Backend == "udp" || p.Backend == "wireguard" }

// detourToPeer returns a detour for the direction to the peer: an echo request through the tunnel from this host's
// underlay address, which is answered over the underlay.
func (p planner) detourToPeer(peer api.Peer) detour {
	if p.hasSourceCheck() {
		return detour{whyNone: p.Backend + " sends only packets whose source is in this host's subnet"}
	}
	d := detour{whyNone: "this host has no underlay address of the family of its subnets"}
	for _, s := range peer.Subnets {
		from, ok := p.ownAddress(s.Addr())
		switch {
		case !ok:
			continue
		case !p.isTunnelled(s.Addr()):
			d.whyNone = "its packets are routed, not tunnelled"
		case s.Addr().Is4() && p.kernel.strictFilter:
			d.whyNone = fmt.Sprintf("rp_filter of %s is 1: this host would drop the answer, which comes in over the underlay",
				p.Underlay.Interface)
		default:
			to := s.Masked().Addr()
			return detour{echo: echo{from: from, to: to, size: minSize},
				evidence: fmt.Sprintf("a packet through the tunnel from %s was answered over the underlay", from)}
		}
	}
	return d
}

// detourFromPeer returns a detour for the direction from the peer: an echo request outside the tunnel, which is
// answered through it.
func (p planner) detourFromPeer(peer api.Peer) detour {
	var unknown []string
	for _, s := range peer.Subnets {
		own, to := p.ownSubnet(s.Addr()), s.Masked().Addr()
		switch {
		case !own.IsValid():
		case !p.isTunnelled(to):
			unknown = append(unknown, "its packets are routed, not tunnelled")
		default:
			d := p.detourFromNeighbour(own.Masked().Addr(), to, peer)
			if d.whyNone == "" {
				return d
			}
			unknown = append(unknown, d.whyNone)
		}
	}
	return detour{whyNone: append(unknown, "this host has no subnet of the peer's families")[0]}
}

// detourFromNeighbour returns an echo request to a neighbour by its overlay address, from ours, as if it had that
// address on the underlay: kernels answer for all their addresses on all devices. Both addresses belong to the network,
// so that neither masquerading nor the source checks of udp and wireguard interfere. If the peer is no neighbour, or
// has no IPv4, the packet goes to its underlay address.
func (p planner) detourFromNeighbour(from, to netip.Addr, peer api.Peer) detour {
	d := detour{whyNone: "the peer has no underlay address of the family of its subnets"}
	for _, outer := range p.underlayAddresses(peer) {
		index, neighbour := p.kernel.route(outer, p.VRF)
		switch {
		case neighbour && to.Is4():
			return detour{echo: echo{from: from, to: to, size: minSize, link: index},
				evidence: fmt.Sprintf("a packet over the underlay from %s to %s was answered through the tunnel", from, to)}
		case outer.Is4() != to.Is4():
		case p.hasSourceCheck():
			d.whyNone = p.Backend +
				" accepts only packets whose source is in the peer's subnet, and the peer is not a neighbour over IPv4"
		case p.Masquerade:
			d.whyNone = fmt.Sprintf("a packet from %s to %s would be masqueraded, and the peer is not a neighbour over IPv4",
				from,
				outer)
		default:
			return detour{echo: echo{from: from, to: outer, vrf: p.VRF, size: minSize},
				evidence: fmt.Sprintf("a packet over the underlay from %s was answered through the tunnel", from)}
		}
	}
	return d
}

// isTunnelled reports whether packets to an address leave by one of the network's devices.
func (p planner) isTunnelled(a netip.Addr) bool {
	if !p.options().DirectRouting {
		return true
	}
	index, _ := p.kernel.route(a, 0)
	return index == p.kernel.link || p.isOnOtherFamilyLink(a)
}
