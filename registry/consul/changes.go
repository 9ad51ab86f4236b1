package consul

import (
	"context"
	"slices"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/changelog"
	"github.com/lenonet/leno/registry/consul/transport"
)

// commit runs the operations that write the lease at key or, with an empty value or FlagRevoked, remove it. It adds an
// entry for the watchers in the same transaction. The errors are those of transact.
func (k *kv) commit(
	ctx context.Context, network, key string, value []byte, flags uint64, ops ...*api.KVTxnOp,
) ([]*api.KVPair, error) {
	entry := changelog.WriteOp(k.keys.changes(network), lastComponent(key), value, flags)
	return k.Transact(ctx, append(slices.Clone(ops), entry)...)
}

// reasonGone returns the reason why a lease has no record: a *RevokedError when Revoke removed it, as far as the
// directory reaches back, and ErrLeaseNotFound otherwise. err is set when the directory cannot be read.
func (k *kv) reasonGone(ctx context.Context, network, key string) (reason, err error) {
	prefix := k.keys.changes(network)
	pairs, _, err := k.List(ctx, prefix, transport.Read{Consistent: true})
	if err != nil {
		return nil, err
	}
	var last changelog.Change
	for _, pair := range pairs {
		ch, ok := changelog.Parse(prefix, pair)
		if ok && ch.Subnet == lastComponent(key) && ch.Index >= last.Index {
			last = ch
		}
	}
	if last.Has(changelog.FlagRevoked) {
		return &registry.RevokedError{NodeID: last.NodeID}, nil
	}
	return registry.ErrLeaseNotFound, nil
}
