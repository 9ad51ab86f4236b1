package consul

import (
	"context"
	"fmt"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/changelog"
	"github.com/lenonet/leno/registry/consul/keys"
	"github.com/lenonet/leno/registry/consul/transport"
)

// kv makes requests to Consul's KV store under one token. It is safe for concurrent use. Clients of one New share
// everything but the token.
type kv struct {
	*transport.Client
	keys   keys.Layout
	conf   *Config
	logger hclog.Logger
}

// listSurely returns a consistent list of a prefix that need not have a marker. It believes an empty list when the
// token may read a key below the prefix, whether that key exists or not.
func (k *kv) listSurely(ctx context.Context, prefix string) (api.KVPairs, uint64, error) {
	pairs, index, err := k.List(ctx, prefix, transport.Read{Consistent: true})
	if err == nil && len(pairs) == 0 {
		_, _, err = k.Get(ctx, prefix+keys.Marker, transport.Read{})
	}
	return pairs, index, err
}

// ensureMarker creates the marker of a tree if it is missing.
func (k *kv) ensureMarker(ctx context.Context, prefix string) (created bool, err error) {
	return k.EnsureKey(ctx, prefix+keys.Marker, keys.MarkerValue)
}

// ensureWatermark creates the watermark of the directory of changes at prefix if it is missing. All entries that may
// have been deleted before then count as trimmed: see changelog.Watermark.
func (k *kv) ensureWatermark(ctx context.Context, prefix string) error {
	_, err := k.EnsureKey(ctx, prefix+changelog.WatermarkName, "0")
	return err
}

// tries is the number of times that a change is tried when another client changes the same record at the same time.
const tries = 5

// conflict returns err as an ErrConflict if it is a *transport.RefusedError.
func conflict(err error) error {
	if transport.IsRefused(err) {
		return fmt.Errorf("%w: %w", registry.ErrConflict, err)
	}
	return err
}
