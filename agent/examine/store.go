package examine

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/registry"
)

// A Registry is the store.
type Registry interface {
	Abilities() registry.Abilities
	Network(ctx context.Context, name string) (registry.Network, error)
	WatchLease(
		ctx context.Context, n registry.Network, subnet netip.Prefix, after uint64,
	) (registry.Lease, uint64, error)
}

// requiredRights describes what the agent of a host does in the store.
func requiredRights(c config.Config, node string, networks []string) registry.RequiredRights {
	w := registry.RequiredRights{Node: node, Named: c.NodeName != "", Networks: networks, Service: c.Consul.Service}
	for _, n := range c.Networks {
		if len(n.Pools) > 0 {
			w.Defines = append(w.Defines, n.Name)
		}
	}
	return w
}

// storeFacts asks the store whether it can be used, and for what. The facts of a store that cannot be probed are empty.
func storeFacts(ctx context.Context, reg Registry, name string, w registry.RequiredRights) doctor.Store {
	can := reg.Abilities()
	if can.Probe == nil {
		return doctor.Store{}
	}
	out := doctor.Store{Name: name}
	call, cancel := context.WithTimeout(ctx, retry.CallTimeout)
	defer cancel()
	out.Err = can.Probe(call)
	if can.Rights == nil || out.Err != nil && !errors.Is(out.Err, registry.ErrDenied) {
		return out
	}
	// The right to define a network is needed only for a network that does not exist.
	w.Defines = slices.DeleteFunc(slices.Clone(w.Defines), func(name string) bool {
		_, err := reg.Network(call, name)
		return !errors.Is(err, registry.ErrNetworkNotFound)
	})
	out.Rights, out.RightsErr = can.Rights.Rights(call, w)
	out.NoToken = !can.Rights.HasToken()
	return out
}

// readRecord reads the record of the lease that the host says it holds.
func readRecord(ctx context.Context, reg Registry, definition registry.Network, n *doctor.Network) {
	if !n.Lease.Held || n.Backend == "" {
		return
	}
	call, cancel := context.WithTimeout(ctx, retry.CallTimeout)
	defer cancel()
	record, _, err := reg.WatchLease(call, definition, n.Lease.Own.Subnet(), 0)
	n.Lease.SetRecord(record, err)
}
