// Package foreign judges the firewall rules of other programs: which of them drop packets between containers of two
// hosts, or between the hosts themselves. It reads rules and reports those that are certainly in the way; it changes
// nothing.
package foreign

import (
	"context"
	"errors"
	"net/netip"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// OverlayPath describes how one network's packets pass this host.
type OverlayPath struct {
	Network firewall.Network
	Links   []string // devices by which packets of other hosts arrive
}

// UnderlayPath describes how a network's packets between this host and another host pass this host's rules: as UDP
// datagrams of the host itself.
type UnderlayPath struct {
	Network string
	Link    string     // device between hosts
	Own     netip.Addr // this host's address there
	Peer    netip.Addr // the other host's
	Port    int        // UDP, at which this host receives

	// PeerPort is the UDP port to which this host sends. It differs from Port if the other host is behind a NAT that
	// forwards another port to it. Its datagrams then arrive from either port, as the NAT does it.
	PeerPort int

	// SamePort reports whether datagrams are also sent from Port, so that those of the other host may count as
	// answers.
	SamePort bool
}

// Find returns what Reader.Obstacles returns, and the rules of this host, in every variant of iptables and in nftables,
// that drop datagrams between hosts. It reads the rules once for all networks. It changes nothing and reports only
// what it is sure of, so an empty result is no proof. Like a Reader, it starts programs from the calling thread.
func Find(ctx context.Context, overlay []OverlayPath, underlay []UnderlayPath) ([]Obstacle, []Blockade, error) {
	bases, err := readBaseChains(ctx, netfilter.List)
	bridges, listing := readBridges(overlay)
	return findObstacles(bases, overlay, bridges), findBlockades(bases, underlay), errors.Join(err, listing)
}
