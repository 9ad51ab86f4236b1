package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"slices"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// An identification finds out who this host is, and locks the state directory and the host for this agent.
type identification struct {
	log      hclog.Logger
	env      *network.Deps
	settings *settings
	others   *otherProcess
	running  func() []string                         // the networks that have runners
	lockHost func() (unlock func() error, err error) // makes this the only agent of its network namespace
	restore  func() error                            // restores the kernel's switches
	free     func() error                            // undoes lock, nil before it
}

// setCheck sets the check of the node, which says what this host waits for. The check is critical as long as no network
// runs. Otherwise, the networks' own checks say whether packets flow and containers can be started.
func (i *identification) setCheck(reason string) {
	status := api.Critical
	if len(i.running()) > 0 {
		status = api.Warning
	}
	i.env.Reports.Health.Set("", health.Node, status, reason)
}

// unlock undoes lock. Before that, a development agent undoes what it did outside its networks. It does nothing if lock
// has not succeeded.
func (i *identification) unlock() (err error) {
	if i.free == nil {
		return nil
	}
	if c := i.settings.get(); c.Dev {
		err = i.restore()
		if c.DataDir == config.DevDataDir {
			err = errors.Join(err, os.RemoveAll(c.DataDir))
		}
	}
	return errors.Join(err, i.free())
}

// lock locks the state directory and reads this host's id from it.
func (i *identification) lock(ctx context.Context) error {
	id, unlock, err := i.openDataDir(ctx, i.settings.get().DataDir)
	if err != nil {
		return err
	}
	i.env.Identity.SetNodeID(id)
	i.free = unlock
	return nil
}

// openDataDir blocks until the state directory can be used, and returns this host's id from it, or "" if it has none.
// It returns an error if another agent holds the directory or the host. It does not go on without the directory,
// because this host's identity must not be guessed and packets keep flowing anyway.
func (i *identification) openDataDir(ctx context.Context, dir string) (id string, unlock func() error, err error) {
	var host, free func() error
	if err := i.others.await(ctx, "this host", func() (err error) {
		host, err = i.lockHost()
		return err
	}); err != nil {
		return "", nil, err
	}
	err = i.untilWritten(ctx, func() error {
		err := i.others.await(ctx, "data_dir", func() (err error) {
			free, err = state.LockDataDir(dir)
			return err
		})
		if err != nil {
			return err
		}
		if id, err = state.LoadNodeID(dir, i.log); err != nil {
			err = errors.Join(err, free())
		}
		return err
	})
	if err != nil {
		return "", nil, errors.Join(err, host())
	}
	return id, func() error { return errors.Join(free(), host()) }, nil
}

// untilWritten blocks until write, which uses the state directory, has succeeded. The error is ctx's, or says that
// another agent holds the directory.
func (i *identification) untilWritten(ctx context.Context, write func() error) error {
	backoff := retry.NewBackoff()
	var faults health.ActiveFaults
	for {
		err := write()
		switch {
		case err == nil:
			i.env.Reports.Health.Resolve("", health.DataDir, "written")
			faults.Recovered(i.log, health.DataDir)
			return nil
		case errors.Is(err, state.ErrLocked):
			return err
		}
		reason := advice.Reason(advice.DataDir, err)
		i.env.Reports.Health.Set("", health.DataDir, api.Critical, reason)
		faults.Failing(i.log, health.DataDir, reason)
		if err := backoff.Wait(ctx); err != nil {
			return err
		}
	}
}

// settle blocks until this host's name and id are known.
func (i *identification) settle(ctx context.Context) error {
	if err := i.awaitNodeName(ctx); err != nil {
		return err
	}
	return i.learnNodeID(ctx)
}

// until calls find again and again until it succeeds. While it fails, the check of the node says what this host waits
// for: waits is such as "waiting for this host's name", and warning is for the log.
func (i *identification) until(ctx context.Context, waits, warning string, find func() error) error {
	backoff := i.env.Store.Outage.NewLoop()
	for logged := false; ; logged = true {
		err := find()
		if err == nil {
			return nil
		}
		i.setCheck(fmt.Sprintf("%s: %v", waits, err))
		if !logged {
			i.log.Warn(warning, "error", err)
		}
		if err := backoff.Wait(ctx, err, nil); err != nil {
			return err
		}
	}
}

// awaitNodeName sets the host's name.
func (i *identification) awaitNodeName(ctx context.Context) error {
	waits := "waiting for this host's name in Consul (or set node_name)"
	if i.env.Store.Kind != config.StoreConsul { // the others do not ask for it
		waits = "waiting for this host's name (or set node_name)"
	}
	return i.until(ctx, waits, "waiting for this host's name", func() error {
		name, err := state.NodeName(ctx, i.settings.get().NodeName, i.env.Store.Registry.Abilities().NodeName)
		if err == nil {
			i.env.Identity.SetNode(name)
		}
		return err
	})
}

// learnNodeID sets the id of a host that has none in its state directory. If the kernel still has a datapath, peers
// know this host by the id that belongs to it: the address of a VXLAN device is derived from the id, and with another
// id packets would be lost until every peer had learned it. So the host takes the id from the lease of that datapath.
// learnNodeID waits for the store to read the lease, and packets keep flowing while it waits. A host without a datapath
// is new and gets its own id at once.
func (i *identification) learnNodeID(ctx context.Context) error {
	if i.env.Identity.NodeID() != "" {
		return nil
	}
	c, id := i.settings.get(), ""
	const waits = "the node id was lost, waiting to learn it from this host's lease; packets flow"
	err := i.until(ctx, waits, "waiting for this host's node id", func() (err error) {
		id, err = i.formerNodeID(ctx, c)
		return err
	})
	if err != nil {
		return err
	}
	if err := i.untilWritten(ctx, func() (err error) {
		id, err = state.AdoptNodeID(c.DataDir, id)
		return err
	}); err != nil {
		return err
	}
	i.env.Identity.SetNodeID(id)
	i.log.Info("node id is known", "node_id", id)
	return nil
}

// formerNodeID returns the id in the lease of the datapath that the kernel has, or "" if there is no datapath or no
// lease for it. A lease with this host's name and address is not enough: another machine may have been given both.
func (i *identification) formerNodeID(ctx context.Context, c config.Config) (string, error) {
	stands, err := i.somethingStands(ctx, c)
	if err != nil {
		return "", err
	}
	if !stands {
		return "", nil
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	set, _, err := i.env.Store.Registry.WatchNetworks(call, 0)
	if err != nil {
		return "", err
	}
	for _, n := range set.Networks {
		if _, wanted := i.settings.wanted(n.Name); !wanted {
			continue
		}
		found, err := i.env.ReadKernelState(ctx, backend.LinkName(n.Name), n.Plan.Prefixes())
		if err != nil {
			return "", err
		}
		if found.IsEmpty() {
			continue
		}
		if id, err := i.leaseStanding(call, c, n, found); id != "" || err != nil {
			return id, err
		}
	}
	// The datapath may belong to a network whose record cannot be read. The host cannot join that network anyway, so
	// its leases are examined once the record can be read.
	for _, bad := range set.Bad {
		if _, wanted := i.settings.wanted(path.Base(bad.Key)); wanted {
			return "", fmt.Errorf("record %s cannot be used: %s", bad.Key, bad.Reason)
		}
	}
	return "", nil
}

// somethingStands reports whether the kernel may have a datapath of leno's. For networks whose pools are only known
// from the store, it looks at all routes.
func (i *identification) somethingStands(ctx context.Context, c config.Config) (bool, error) {
	wanted := c.Networks
	if c.WatchNetworks {
		wanted = append(slices.Clone(wanted), config.Network{}) // every datapath has routes, so the name does not matter
	}
	for _, local := range wanted {
		pools := poolsOf(local)
		if len(pools) == 0 {
			pools = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
		}
		found, err := i.env.ReadKernelState(ctx, backend.LinkName(local.Name), pools)
		if err != nil || !found.IsEmpty() {
			return true, err
		}
	}
	return false, nil
}

// leaseStanding returns the node id in the lease of n that has this host's name, one of its addresses and the subnets
// of the datapath, or "" if there is none. A held lease is preferred over others.
func (i *identification) leaseStanding(
	ctx context.Context, c config.Config, n registry.Network, found datapath.KernelState,
) (id string, err error) {
	choice, err := i.env.Datapaths.SelectUnderlay(c.Underlay, n.Plan.Prefixes(), nil)
	if err != nil {
		return "", err
	}
	set, _, err := i.env.Store.Registry.WatchLeases(ctx, n, 0)
	if err != nil {
		return "", err
	}
	for _, l := range set.Leases {
		here := slices.ContainsFunc(l.PublicIPs, func(addr netip.Addr) bool { return slices.Contains(choice.Addrs, addr) })
		ours := here && l.Node == i.env.Identity.Get().Node && found.Standing(l.Subnets) != datapath.NothingStands
		if ours && state.IsNodeID(l.NodeID) && (id == "" || l.Held()) {
			id = l.NodeID
		}
	}
	return id, nil
}

// poolsOf returns the pools in a network's block, or nil if only the store knows them.
func poolsOf(local config.Network) (pools []netip.Prefix) {
	for _, p := range local.Pools {
		pools = append(pools, p.Prefix)
	}
	return pools
}
