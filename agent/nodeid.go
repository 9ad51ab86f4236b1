package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-uuid"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// storedNodeID is the id in the state directory: in its own file, or, when that is
// gone, empty after a crash or broken, in the state file of a network. "" when
// nothing there tells. A broken file is put aside, to .bad.
func storedNodeID(dir string, log hclog.Logger) (string, error) {
	path := nodeIDPath(dir)
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	id := strings.TrimSpace(string(data))
	if isNodeID(id) {
		return id, nil
	}
	if id != "" {
		log.Warn("node id is not a UUID, its file is moved to .bad", "path", path)
		if err := os.Rename(path, path+state.BadSuffix); err != nil {
			return "", err
		}
	}
	for _, name := range state.Networks(dir) {
		s, err := state.Load(dir, name)
		if err == nil && isNodeID(s.NodeID) {
			log.Warn("node id was lost, that of a state file counts", "node_id", s.NodeID, "network", name)
			return s.NodeID, storeNodeID(dir, s.NodeID)
		}
	}
	return "", nil
}

func isNodeID(id string) bool {
	_, err := uuid.ParseUUID(id)
	return err == nil
}

func nodeIDPath(dir string) string { return filepath.Join(dir, "node-id") }

func storeNodeID(dir, id string) error {
	return state.WriteFile(nodeIDPath(dir), []byte(id+"\n"), 0o644)
}

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
				id, err = keepNodeID(c.DataDir, id)
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

// keepNodeID stores an id, of its own making where there is none.
func keepNodeID(dir, id string) (string, error) {
	if id == "" {
		made, err := uuid.GenerateUUID()
		if err != nil {
			return "", err
		}
		id = made
	}
	return id, storeNodeID(dir, id)
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
		found, err := a.env.remains(ctx, backend.LinkName(n.Name), n.Plan.Prefixes())
		if err != nil {
			return "", err
		}
		if found.nothing() {
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
		found, err := a.env.remains(ctx, backend.LinkName(local.Name), pools)
		if err != nil || !found.nothing() {
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
func (a *Agent) leaseStanding(ctx context.Context, c config.Config, n registry.Network, found Remains) (id string, err error) {
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
		if ours && isNodeID(l.NodeID) && (id == "" || l.Held()) {
			id = l.NodeID
		}
	}
	return id, nil
}
