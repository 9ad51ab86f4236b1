package agent

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// rulesTime bounds the reading of this host's rules, which takes seconds where there
// are tens of thousands: the rest of an examination does not end with it.
const rulesTime = 10 * time.Second

// passage is how a network's packets pass this host's rules.
type passage struct {
	crossing firewall.Crossing
	lanes    []firewall.Lane
}

// passageOf is that of a network, with what the kernel's switches do to it.
func passageOf(definition registry.Network, in firewall.Network, n *doctor.Network, ensure func(netip.Addr, []string, bool) (forwarding.State, error)) *passage {
	state := backend.State{Subnets: n.Subnets, Underlay: backend.Underlay{Interface: n.Underlay.Interface}}
	p := &passage{crossing: crossing(definition, in, state)}
	n.Forward = in.Forward
	for _, s := range n.Subnets {
		found, err := ensure(s.Addr(), p.crossing.Links, false)
		n.Forwarding, n.ForwardingErr = append(n.Forwarding, found), errors.Join(n.ForwardingErr, err)
	}
	for _, peer := range n.Peers[:min(len(n.Peers), mostExamined)] {
		if n.Port > 0 && peer.Skipped == "" && peer.Public.IsValid() && len(n.Underlay.Own) > 0 && n.Underlay.Own[0].IsValid() {
			p.lanes = append(p.lanes, firewall.Lane{Network: n.Name, Link: n.Underlay.Interface, Own: n.Underlay.Own[0], Peer: peer.Public, Port: n.Port, SamePort: n.Same})
		}
	}
	return p
}

// rulesFacts has this host's rules read, once for all networks. passages has nil for
// networks that none matter to.
func rulesFacts(ctx context.Context, read func(context.Context, []firewall.Crossing, []firewall.Lane) ([]firewall.Obstacle, []firewall.Blockade, error), networks []doctor.Network, passages []*passage) {
	var crossings []firewall.Crossing
	var lanes []firewall.Lane
	for _, p := range passages {
		if p != nil {
			crossings, lanes = append(crossings, p.crossing), append(lanes, p.lanes...)
		}
	}
	if len(crossings) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, rulesTime)
	defer cancel()
	obstacles, blockades, err := read(ctx, crossings, lanes)
	for i := range networks {
		n := &networks[i]
		if passages[i] == nil {
			continue
		}
		n.RulesErr = err
		for _, o := range obstacles {
			if o.Network == n.Name {
				n.Obstacles = append(n.Obstacles, o)
			}
		}
		for _, b := range blockades {
			if b.Lane.Network == n.Name {
				n.Blockades = append(n.Blockades, b)
			}
		}
	}
}
