package consul

import (
	"errors"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// parseNetworkPair parses the record of a network; pair is nil when there is none.
func parseNetworkPair(name string, pair *api.KVPair) (registry.Network, error) {
	if pair == nil {
		return registry.Network{}, registry.ErrNetworkNotFound
	}
	n, err := registry.ParseNetwork(name, pair.Value)
	if deleted, ok := errors.AsType[*registry.DeletedError](err); ok {
		deleted.CreateIndex, deleted.ModifyIndex = pair.CreateIndex, pair.ModifyIndex
	}
	n.CreateIndex, n.ModifyIndex = pair.CreateIndex, pair.ModifyIndex
	return n, err
}

// parseLease parses a pair below prefix.
func parseLease(n registry.Network, prefix string, pair *api.KVPair) (registry.Lease, error) {
	l, err := registry.ParseLease(n, pair.Key[len(prefix):], pair.Value)
	if err != nil {
		return registry.Lease{}, err
	}
	return stored(l, pair), nil
}

// stored returns the lease with Consul's metadata of its record.
func stored(l registry.Lease, pair *api.KVPair) registry.Lease {
	l.Session, l.CreateIndex, l.ModifyIndex = pair.Session, pair.CreateIndex, pair.ModifyIndex
	return l
}
