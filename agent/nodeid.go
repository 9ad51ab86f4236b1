package agent

import (
	"context"
	"fmt"
	"net/netip"
	"path"
	"slices"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// learnNodeID sets the id of a host that has none in its state directory. If the kernel still has a datapath, peers
// know this host by the id that belongs to it: the address of a VXLAN device is derived from the id, and with another
// id packets would be lost until every peer had learned it. So the host takes the id from the lease of that datapath.
// learnNodeID waits for the store to read the lease, and packets keep flowing while it waits. A host without a datapath
// is new and gets its own id at once.
func (a *Agent) learnNodeID(ctx context.Context) error {
	if a.env.Identity.NodeID() != "" {
		return nil
	}
	c, backoff := a.current(), a.env.Store.Outage.NewLoop()
	for {
		id, err := a.formerNodeID(ctx, c)
		if err == nil {
			if err := a.untilWritten(ctx, func() (err error) {
				id, err = state.AdoptNodeID(c.DataDir, id)
				return err
			}); err != nil {
				return err
			}
			a.env.Identity.SetNodeID(id)
			a.log.Info("node id is settled", "node_id", id)
			return nil
		}
		if a.env.Reports.Health.Set("", health.Node, api.Critical, fmt.Sprintf("the node id was lost, waiting to learn it from this host's lease; packets flow: %v", err)) {
			a.log.Warn("waiting for this host's node id", "error", err)
		}
		if err := backoff.Wait(ctx, err, nil); err != nil {
			return err
		}
	}
}

// formerNodeID returns the id in the lease of the datapath that the kernel has, or "" if there is no datapath or no
// lease for it. A lease with this host's name and address is not enough: another machine may have been given both.
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
	set, _, err := a.env.Store.Registry.WatchNetworks(call, 0)
	if err != nil {
		return "", err
	}
	for _, n := range set.Networks {
		if _, wanted := a.wanted(n.Name); !wanted {
			continue
		}
		found, err := a.env.ReadKernelState(ctx, backend.LinkName(n.Name), n.Plan.Prefixes())
		if err != nil {
			return "", err
		}
		if found.IsEmpty() {
			continue
		}
		if id, err := a.leaseStanding(call, c, n, found); id != "" || err != nil {
			return id, err
		}
	}
	// The datapath may belong to a network whose record cannot be read. The host cannot join that network anyway, so
	// its leases are examined once the record can be read.
	for _, bad := range set.Bad {
		if _, wanted := a.wanted(path.Base(bad.Key)); wanted {
			return "", fmt.Errorf("record %s cannot be used: %s", bad.Key, bad.Reason)
		}
	}
	return "", nil
}

// somethingStands reports whether the kernel may have a datapath of leno's. For networks whose pools are only known
// from the store, it looks at all routes.
func (a *Agent) somethingStands(ctx context.Context, c config.Config) (bool, error) {
	wanted := c.Networks
	if c.WatchNetworks {
		wanted = append(slices.Clone(wanted), config.Network{}) // every datapath has routes, so the name does not matter
	}
	for _, local := range wanted {
		pools := poolsOf(local)
		if len(pools) == 0 {
			pools = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
		}
		found, err := a.env.ReadKernelState(ctx, backend.LinkName(local.Name), pools)
		if err != nil || !found.IsEmpty() {
			return true, err
		}
	}
	return false, nil
}

// poolsOf returns the pools in a network's block, or nil if only the store knows them.
func poolsOf(local config.Network) (pools []netip.Prefix) {
	for _, p := range local.Pools {
		pools = append(pools, p.Prefix)
	}
	return pools
}

// leaseStanding returns the node id in the lease of n that has this host's name, one of its addresses and the subnets
// of the datapath, or "" if there is none. A held lease is preferred over others.
func (a *Agent) leaseStanding(ctx context.Context, c config.Config, n registry.Network, found datapath.KernelState) (id string, err error) {
	choice, err := a.env.Datapaths.SelectUnderlay(c.Underlay, n.Plan.Prefixes(), nil)
	if err != nil {
		return "", err
	}
	set, _, err := a.env.Store.Registry.WatchLeases(ctx, n, 0)
	if err != nil {
		return "", err
	}
	for _, l := range set.Leases {
		ours := l.Node == a.env.Identity.Get().Node && slices.ContainsFunc(l.PublicIPs, func(addr netip.Addr) bool { return slices.Contains(choice.Addrs, addr) }) && found.Standing(l.Subnets) != datapath.NothingStands
		if ours && state.IsNodeID(l.NodeID) && (id == "" || l.Held()) {
			id = l.NodeID
		}
	}
	return id, nil
}
