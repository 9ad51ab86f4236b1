package consul

import (
	"context"
	"slices"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/changelog"
)

// changeOp returns an operation that adds an entry about one lease to the directory.
func (c *Client) changeOp(network, subnet string, value []byte, flags uint64) *api.KVTxnOp {
	return changelog.WriteOp(c.layout.changes(network), subnet, value, flags)
}

// commit runs the operations that write the lease at key or, with an empty value or FlagRevoked, remove it. It adds an
// entry for the watchers in the same transaction. The errors are those of transact.
func (c *Client) commit(
	ctx context.Context, network, key string, value []byte, flags uint64, ops ...*api.KVTxnOp,
) ([]*api.KVPair, error) {
	return c.kv.transact(ctx, append(slices.Clone(ops), c.changeOp(network, lastComponent(key), value, flags))...)
}

// reasonGone returns the reason why a lease has no record: a *RevokedError when Revoke removed it, as far as the
// directory reaches back, and ErrLeaseNotFound otherwise. err is set when the directory cannot be read.
func (c *Client) reasonGone(ctx context.Context, network, key string) (reason, err error) {
	prefix := c.layout.changes(network)
	pairs, _, err := c.kv.list(ctx, prefix, read{consistent: true})
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
