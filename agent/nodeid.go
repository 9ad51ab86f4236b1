package agent

import (
	"context"
	"fmt"
	"net/netip"
	"path"
	"slices"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// learnNodeID gives a host an id that has none in its state directory. Where a
// datapath stands in the kernel, its peers know it under an id: the address of a
// VXLAN device is derived from that, and packets for it would be lost until every
// peer had heard of another. So the id of the lease counts that this datapath is
// of. That takes the store, and nothing is lost meanwhile. Everybody else is a
// new host, and gets an id of its own at once.
func (a *Agent) learnNodeID(ctx context.Context) error {
	if a.env.id.NodeID != "" {
		return nil
	}
	c, backoff := a.current(), a.env.outage.NewLoop()
	for {
		id, err := a.formerNodeID(ctx, c)
		if err == nil {
			if err := a.untilWritten(ctx, func() (err error) {
				id, err = state.AdoptNodeID(c.DataDir, id)
				return err
			}); err != nil {
				return err
			}
			a.mu.Lock()
			a.env.id.NodeID = id
			a.mu.Unlock()
			a.log.Info("node id is settled", "node_id", id)
			return nil
		}
		if a.env.health.Set("", health.Node, api.Critical, fmt.Sprintf("the node id was lost, waiting to learn it from this host's lease; packets flow: %v", err)) {
			a.log.Warn("waiting for this host's node id", "error", err)
		}
		if err := backoff.Wait(ctx, err, nil); err != nil {
			return err
		}
	}
}

// formerNodeID is the id in the lease of the datapath that stands in the kernel,
// "" when none stands or no lease is of it. Name and address alone do not make a
// lease this host's: another machine may have been given both.
func (a *Agent) formerNodeID(ctx context.Context, c config.Config) (string, error) {
	stands, err := a.somethingStands(ctx, c)
	if err != nil {
		return "", err
	}
	if !stands {
		return "", nil
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	set, _, err := a.env.registry.WatchNetworks(call, 0)
	if err != nil {
		return "", err
	}
	for _, n := range set.Networks {
		if _, wanted := a.wanted(n.Name); !wanted {
			continue
		}
		found, err := a.env.readKernelState(ctx, backend.LinkName(n.Name), n.Plan.Prefixes())
		if err != nil {
			return "", err
		}
		if found.isEmpty() {
			continue
		}
		if id, err := a.leaseStanding(call, c, n, found); id != "" || err != nil {
			return id, err
		}
	}
	// What stands may be of a network whose record cannot be read, which nothing can
	// be done in anyway: its leases are looked at once it can.
	for _, bad := range set.Bad {
		if _, wanted := a.wanted(path.Base(bad.Key)); wanted {
			return "", fmt.Errorf("record %s cannot be used: %s", bad.Key, bad.Reason)
		}
	}
	return "", nil
}

// somethingStands says whether the kernel may have a datapath of ours. The pools
// of networks that the store alone knows may be anywhere.
func (a *Agent) somethingStands(ctx context.Context, c config.Config) (bool, error) {
	wanted := c.Networks
	if c.WatchNetworks {
		wanted = append(slices.Clone(wanted), config.Network{}) // every datapath has routes, whatever the network's name
	}
	for _, local := range wanted {
		pools := poolsOf(local)
		if len(pools) == 0 {
			pools = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
		}
		found, err := a.env.readKernelState(ctx, backend.LinkName(local.Name), pools)
		if err != nil || !found.isEmpty() {
			return true, err
		}
	}
	return false, nil
}

// poolsOf is the pools of a network's block, none when the store alone knows.
func poolsOf(local config.Network) (pools []netip.Prefix) {
	for _, p := range local.Pools {
		pools = append(pools, p.Prefix)
	}
	return pools
}

// leaseStanding is the id in the lease of n that carries this host's name, an
// address of its, and the subnets of what stands, "" when there is none. Of
// several the one that is held counts.
func (a *Agent) leaseStanding(ctx context.Context, c config.Config, n registry.Network, found KernelState) (id string, err error) {
	choice, err := a.env.selectUnderlay(c.Underlay, n.Plan.Prefixes(), nil)
	if err != nil {
		return "", err
	}
	set, _, err := a.env.registry.WatchLeases(ctx, n, 0)
	if err != nil {
		return "", err
	}
	for _, l := range set.Leases {
		ours := l.Node == a.env.id.Node && sharesAddress(l.PublicIPs, choice.Addrs) && found.standing(l.Subnets) != nothingStands
		if ours && state.IsNodeID(l.NodeID) && (id == "" || l.Held()) {
			id = l.NodeID
		}
	}
	return id, nil
}
