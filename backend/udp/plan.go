package udp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/udp/offload"
)

const (
	minMTU4 = 68   // RFC 791; below it the kernel removes IPv4 from a device
	minMTU6 = 1280 // RFC 8200; below it the kernel removes IPv6 from a device
)

// plan is what one State requires, in this backend's terms. It shares no memory with the State,
// because the readers continue to use it after Apply has returned.
type plan struct {
	listen  netip.AddrPort // this host's address and port on the wire
	vrf     int            // ifindex of the VRF that listen is an address of, 0 for none
	mtu     int            // of the device, bytes
	own     []netip.Prefix // this host's subnets
	addrs   []netip.Prefix // on the device: only the first address of each own subnet
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
	// No datagram is longer, however large the underlay's MTU is, such as on the loopback.
	mtu := min(u.MTU-overhead(outer), offload.MaxPayload)
	for _, pool := range pools {
		least := minMTU4
		if pool.Addr().Is6() {
			least = minMTU6
		}
		if mtu < least {
			return backend.Advertisement{}, fmt.Errorf("underlay %s has an MTU of %d: network %s needs at least %d",
				u.Interface, u.MTU, pool, least+overhead(outer))
		}
	}
	attrs, err := json.Marshal(opts)
	if err != nil {
		return backend.Advertisement{}, fmt.Errorf("encode attributes: %w", err)
	}
	taken := fmt.Sprintf("%d for UDP over %s", u.MTU-mtu, backend.Family(outer))
	if u.MTU-mtu > overhead(outer) {
		taken = fmt.Sprintf("%d since no datagram is longer", u.MTU-mtu)
	}
	return backend.Advertisement{MTU: mtu, Overhead: taken, Attributes: attrs}, nil
}

// newPlan turns a State that is not zero into a plan. Peers that cannot be used are skipped and
// listed; a fault of the host itself is an error.
func newPlan(pools []netip.Prefix, opts options, s backend.State) (plan, error) {
	// Its family is that of all outer packets: one socket, one family.
	outer, err := s.Underlay.Source()
	if err != nil {
		return plan{}, err
	}
	if s.MTU < minMTU4 {
		return plan{}, fmt.Errorf("overlay MTU of %d is below %d", s.MTU, minMTU4)
	}
	p := plan{listen: netip.AddrPortFrom(outer, opts.Port), vrf: s.Underlay.VRF, mtu: s.MTU, own: slices.Clone(s.Subnets)}
	for _, subnet := range s.Subnets {
		base := subnet.Masked().Addr()
		p.addrs = append(p.addrs, netip.PrefixFrom(base, base.BitLen()))
	}

	claims, elsewhere := backend.NewClaims(pools, s.Subnets), backend.NewElsewhere(s.Elsewhere)
	for _, from := range backend.SortedPeers(s.Peers) {
		if elsewhere.Awaits(from) {
			from.Attributes = fmt.Appendf(nil, `{"port":%d}`, opts.Port) // what it will publish, so it is heard from the start
		}
		peer, err := newPeerPlan(outer, s.Underlay.Addrs[0], claims, from)
		if err != nil {
			p.skipped = append(p.skipped, backend.Skip{Node: from.Node, Reason: err.Error()})
			continue
		}
		p.peers = append(p.peers, peer)
	}
	return p, nil
}

// newPeerPlan plans one peer, for a host that sends from outer and whose peers send to public. The
// claim comes last, so that a peer that cannot be used takes no subnet from another.
func newPeerPlan(outer, public netip.Addr, claims *backend.Claims, from backend.Peer) (peerPlan, error) {
	if from.Backend != Name {
		return peerPlan{}, fmt.Errorf("runs backend %q, not %q", from.Backend, Name)
	}
	port, err := peerPort(from.Attributes)
	if err != nil {
		return peerPlan{}, err
	}
	p := peerPlan{node: from.Node, subnets: slices.Clone(from.Subnets)}
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
