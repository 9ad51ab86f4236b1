package examine

import (
	"context"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/agent/trace"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
)

// Traced returns what a trace needs to know of the network. probe sends packets to one peer.
func (n Network) Traced(
	backends map[string]backend.Type, probe func(ctx context.Context, node string) (api.Probe, error),
) trace.Network {
	c := n.Definition.Carriage()
	out := trace.Network{
		Name:    n.Local.Name,
		Backend: n.Definition.Backend.Type,
		Pools:   n.Definition.Plan.Prefixes(),
		Local:   n.Shown,
		Links:   kernel.Arrivals(n.Local.Name, n.Shown.Underlay.Interface, c.Objects()...),
		Port:    carriage.Of(c).Current.Port(backends).Number,
		Forward: n.Local.Forward,
		IPMasq:  n.Local.IPMasq,
		Peers:   n.Peers,
	}
	if out.Carries() {
		out.Probe = probe
	}
	return out
}
