package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/udp/offload"
)

// plan is what one State requires, in this backend's terms. It shares no memory with the State,
// because the readers continue to use it after Apply has returned.
type plan struct {
	listen  netip.AddrPort // this host's address and port on the wire
	vrf     int            // ifindex of the VRF that listen is an address of, 0 for none
	own     []netip.Prefix // this host's subnets
	peers   []peerPlan     // in order of precedence
	skipped []backend.Skip
}

// peerPlan is one peer that can be reached.
type peerPlan struct {
	node    string
	subnets []netip.Prefix
	sources []netip.AddrPort // where its packets come from; packets are sent to the first
}

func (p peerPlan) equal(q peerPlan) bool {
	return p.node == q.node && slices.Equal(p.subnets, q.subnets) && slices.Equal(p.sources, q.sources)
}

// advertise derives what to publish from the underlay alone.
func advertise(pools []netip.Prefix, opts options, u backend.Underlay) (backend.Advertisement, error) {
	outer, err := u.Source()
	if err != nil {
		return backend.Advertisement{}, err
	}
	capsule := backend.Encapsulation{Overhead: overhead(outer), Name: "UDP over " + backend.Family(outer),
		Most: offload.MaxPayload}
	mtu, because, err := capsule.MTU(u, pools, opts.MTU)
	if err != nil {
		return backend.Advertisement{}, err
	}
	return backend.Advertisement{MTU: mtu, Overhead: because, Attributes: published(opts.Port)}, nil
}

// newPlan turns a State that is not zero into a plan. Peers that cannot be used are skipped and
// listed; a fault of the host itself is an error.
func newPlan(pools []netip.Prefix, opts options, s backend.State) (plan, error) {
	// Its family is that of all outer packets: one socket, one family.
	outer, err := s.Underlay.Source()
	if err != nil {
		return plan{}, err
	}
	if least := backend.MinMTU(netip.IPv4Unspecified()); s.MTU < least {
		return plan{}, fmt.Errorf("overlay MTU of %d is below %d", s.MTU, least)
	}
	p := plan{listen: netip.AddrPortFrom(outer, opts.Port), vrf: s.Underlay.VRF, own: slices.Clone(s.Subnets)}
	claims, elsewhere := backend.NewClaims(pools, s.Subnets), backend.NewElsewhere(s.Elsewhere)
	for _, from := range backend.SortedPeers(s.Peers) {
		if elsewhere.Awaits(from) {
			from.Attributes = published(opts.Port) // what it will publish, so it is heard from the start
		}
		peer, err := newPeerPlan(outer, s.Underlay.Addrs[0], claims, from)
		if err != nil {
			p.skipped = append(p.skipped, backend.Skip{Node: from.Node, Reason: err.Error()})
			continue
		}
		p.peers = append(p.peers, peer)
		if len(peer.subnets) < len(from.Subnets) {
			const reason = "receives no IPv6 packets: it runs flannel, whose udp carries IPv4 only"
			p.skipped = append(p.skipped, backend.Skip{Node: from.Node, Reason: reason})
		}
	}
	return p, nil
}

// newPeerPlan plans one peer, for a host that sends from outer and whose peers send to public. The
// claim comes last, so that a peer that cannot be used takes no subnet from another.
func newPeerPlan(outer, public netip.Addr, claims *backend.Claims, from backend.Peer) (peerPlan, error) {
	if from.Backend != Name {
		return peerPlan{}, fmt.Errorf("runs backend %q, not %q", from.Backend, Name)
	}
	attrs, err := parseAttributes(from.Attributes)
	if err != nil {
		return peerPlan{}, err
	}
	port, err := attrs.peerPort()
	if err != nil {
		return peerPlan{}, err
	}
	p := peerPlan{node: from.Node, subnets: slices.Clone(from.Subnets)}
	if attrs.IPv4Only {
		p.subnets = slices.DeleteFunc(p.subnets, func(s netip.Prefix) bool { return s.Addr().Is6() })
	}
	for _, addr := range from.PublicIPs {
		if addr = addr.Unmap(); addr.IsValid() && addr.Is4() == outer.Is4() {
			p.sources = append(p.sources, netip.AddrPortFrom(addr, port))
		}
	}
	switch to, reason := from.Outer(outer); {
	case reason != "":
		return peerPlan{}, errors.New(reason)
	case to == outer || to == public:
		return peerPlan{}, fmt.Errorf("its public address %s is this host's", to)
	}
	if reason := claims.Take(from); reason != "" {
		return peerPlan{}, errors.New(reason)
	}
	return p, nil
}
