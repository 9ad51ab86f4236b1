package peers

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// A View is what a datapath is made from. One from Load is only as complete as the files of the earlier process. A View
// is immutable: neither its fields nor what they refer to may be changed.
type View struct {
	Network registry.Network
	Own     registry.Lease   // this host's; Load knows only its network, slot, subnets, MTU, node id and CreateIndex
	Leases  []registry.Lease // at least those of the other hosts

	// Seniority ranks Leases by their first subnets, see Of. It may lack some.
	Seniority map[netip.Prefix]uint64
}

// Peers returns the peers of this host.
func (v *View) Peers() []backend.Peer { return Of(v.Leases, v.Own, v.Seniority) }

// Subnets returns the subnets of this host and of the others.
func (v *View) Subnets() []netip.Prefix {
	out := slices.Clone(v.Own.Subnets)
	for _, l := range v.Leases {
		out = append(out, l.Subnets...)
	}
	return out
}

// Load returns the view of an earlier process that its files describe: before is what the state file has, and nodeID is
// this host's. It returns an error if they are incomplete or contradict each other. Load checks them as strictly as
// records that other hosts write.
func Load(dataDir string, before state.Network, nodeID string) (View, error) {
	file, err := state.LoadPeers(dataDir, before.Network)
	if err != nil {
		return View{}, fmt.Errorf("remembered peers: %w", err)
	}
	n, err := registry.ParseNetwork(before.Network, file.Definition)
	if err != nil {
		return View{}, fmt.Errorf("remembered definition: %w", err)
	}
	n.CreateIndex = file.Created
	own := registry.Lease{Network: n.Name, NodeID: nodeID, Subnets: before.Subnets, MTU: before.MTU,
		CreateIndex: before.LeaseCreated}
	if own.Slot, err = n.Plan.Slot(before.Subnets[0]); err != nil {
		return View{}, fmt.Errorf("remembered subnet: %w", err)
	}
	switch {
	case before.Definition != file.Created || !before.Carriage.Equal(n.Carriage()) ||
		!slices.Equal(before.Pools, n.Plan.Prefixes()):
		return View{}, errors.New("the remembered lease is of another definition than the peers")
	case !slices.Equal(before.Subnets, n.Plan.Subnets(own.Slot)):
		return View{}, fmt.Errorf("the remembered subnets %v are not those of slot %d", before.Subnets, own.Slot)
	}
	return View{Network: n, Own: own, Leases: file.ParseLeases(n), Seniority: file.Seniority()}, nil
}
