package agent

import (
	"slices"

	"github.com/lenonet/leno/agent/fleet"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// peers returns the peers of a network with what is known of the paths to them, and of them in the store.
func (d *diagnostics) peers(run *network.Runner, withHistory bool) api.PeerList {
	out, members := run.Peers(), d.members.View()
	d.paths.AddPaths(run.Local().Name, out.Peers, withHistory)
	for i := range out.Peers {
		p := &out.Peers[i]
		p.Member = members.Status(p.Node, p.PublicIPs)
	}
	return out
}

// hosts returns all hosts of a network with what is known of them.
func (d *diagnostics) hosts(run *network.Runner) ([]api.Host, error) {
	leases, err := run.Leases().Leases(false)
	if before, ok := run.Resumed(); ok {
		leases, err = registry.LeaseSet{Leases: before.Leases}, nil
		isOwn := func(l registry.Lease) bool { return l.NodeID == before.Own.NodeID }
		if !slices.ContainsFunc(before.Leases, isOwn) && before.Own.Subnet().IsValid() {
			leases.Leases = append(slices.Clone(before.Leases), before.Own)
		}
	}
	if err != nil {
		return nil, err
	}
	peers, name := d.peers(run, false).Peers, run.Local().Name
	return fleet.Hosts(fleet.Known{
		NodeID:    d.env.Identity.NodeID(),
		Leases:    leases.Leases,
		Peers:     peers,
		Own:       d.summary(name),
		Summaries: d.paths.Summaries(name),
		Member:    d.members.View().Status,
	}), nil
}
