package examine

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/registry"
)

// rulesTimeout bounds the reading of this host's rules. It takes seconds if there are tens of thousands, and the other
// facts must not be lost then.
const rulesTimeout = 10 * time.Second

// paths are the ways that a network's packets take through this host's rules.
type paths struct {
	overlay  foreign.OverlayPath
	underlay []foreign.UnderlayPath
}

// findPaths returns the paths of a network, and adds the kernel's forwarding switches to its facts.
func findPaths(
	definition registry.Network, local config.Network, n *doctor.Network,
	ensure func(netip.Prefix, []string, bool) (forwarding.State, error),
) *paths {
	own := n.Underlay
	p := &paths{overlay: foreign.OverlayPath{
		Network: firewall.Network{
			Name:    n.Name,
			Pools:   n.Pools,
			Subnets: n.Subnets,
			IPMasq:  local.IPMasq,
			Forward: local.Forward,
		},
		Links: kernel.Arrivals(n.Name, own.Interface, definition.Carriage().Objects()...),
	}}
	n.Forward = local.Forward
	for _, s := range n.Subnets {
		found, err := ensure(s, p.overlay.Links, false)
		n.Forwarding, n.ForwardingErr = append(n.Forwarding, found), errors.Join(n.ForwardingErr, err)
	}
	if n.Port <= 0 || len(own.Own) == 0 || !own.Own[0].IsValid() {
		return p
	}
	for _, peer := range n.Peers[:min(len(n.Peers), maxExamined)] {
		if peer.Skipped == "" && peer.Public.IsValid() {
			p.underlay = append(p.underlay, foreign.UnderlayPath{
				Network:  n.Name,
				Link:     own.Interface,
				Own:      own.Own[0],
				Peer:     peer.Public,
				Port:     n.Port,
				PeerPort: peer.Port,
				SamePort: n.SamePort,
			})
		}
	}
	return p
}

// readRules reads this host's rules once for all networks, and adds those that block packets to the facts of their
// networks. networkPaths has the paths of each network, nil for none.
func readRules(ctx context.Context, read RuleReader, networks []doctor.Network, networkPaths []*paths) {
	var overlay []foreign.OverlayPath
	var underlay []foreign.UnderlayPath
	for _, p := range networkPaths {
		if p != nil {
			overlay, underlay = append(overlay, p.overlay), append(underlay, p.underlay...)
		}
	}
	if len(overlay) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, rulesTimeout)
	defer cancel()
	obstacles, blockades, err := read(ctx, overlay, underlay)
	for i := range networks {
		n := &networks[i]
		if networkPaths[i] == nil {
			continue
		}
		n.RulesErr = err
		for _, o := range obstacles {
			if o.Network == n.Name {
				n.Obstacles = append(n.Obstacles, o)
			}
		}
		for _, b := range blockades {
			if b.Path.Network == n.Name {
				n.Blockades = append(n.Blockades, b)
			}
		}
	}
}
