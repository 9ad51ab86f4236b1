package consul

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/changelog"
	"github.com/lenonet/leno/registry/consul/transport"
)

// kv makes requests to Consul's KV store under one token. It is safe for concurrent use. Clients of one New share
// everything but the token.
type kv struct {
	*transport.Client
	keys   layout
	conf   *Config
	logger hclog.Logger
	doubts *doubts
}

// doubts contains the keys and prefixes whose next read must not block. After an error or an unchanged answer the store
// may have been restarted or restored with lower indexes, and a blocking query with the old index would miss that.
type doubts struct{ set sync.Map }

func (d *doubts) has(key string) bool { _, ok := d.set.Load(key); return ok }
func (d *doubts) add(key string)      { d.set.Store(key, true) }
func (d *doubts) clear(key string)    { d.set.Delete(key) }

// read contains the options of one read; the zero value is a plain read from the leader.
type read struct {
	index      uint64        // block until the index is beyond this
	wait       time.Duration // for at most this long
	consistent bool          // the leader first confirms with a quorum that it still leads
	stale      bool          // any server may answer
	large      bool          // the answer is long, and a busy server may be late to begin it
}

// query returns the options of a request that reads.
func (k *kv) query(ctx context.Context, r read) (*api.QueryOptions, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, k.patience(r))
	return k.options(ctx, r), cancel
}

// patience returns how long Consul may take to begin an answer.
func (k *kv) patience(r read) time.Duration {
	if r.index > 0 {
		return k.Timeout + r.wait + r.wait/16
	}
	if r.large { // what is given up must be sent again
		return 3 * k.Timeout
	}
	return k.Timeout
}

func (k *kv) options(ctx context.Context, r read) *api.QueryOptions {
	opts := &api.QueryOptions{RequireConsistent: r.consistent, AllowStale: r.stale, WaitIndex: r.index}
	if r.index > 0 {
		opts.WaitTime = r.wait
	}
	return opts.WithContext(k.Token.Context(ctx))
}

// get reads one key; the pair is nil when there is none. Unlike a list, it fails with 403 when the token lacks the
// right.
func (k *kv) get(ctx context.Context, key string, r read) (*api.KVPair, uint64, error) {
	opts, cancel := k.query(ctx, r)
	defer cancel()
	pair, meta, err := k.API.KV().Get(key, opts)
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", key, transport.Classify(err))
	}
	if !meta.KnownLeader {
		return nil, 0, fmt.Errorf("read %s: %w", key, uncertain("consul knows no leader"))
	}
	return pair, meta.LastIndex, nil
}

// getSurely is get for keys that normally exist. A newly elected leader answers default reads before it has applied its
// log; after a restart of the whole cluster, it returns no records at all. Only a consistent read proves that a key
// does not exist.
func (k *kv) getSurely(ctx context.Context, key string, r read) (*api.KVPair, uint64, error) {
	pair, index, err := k.get(ctx, key, r)
	if err == nil && pair == nil {
		return k.get(ctx, key, read{consistent: true})
	}
	return pair, index, err
}

// list reads everything below a prefix. Records hidden from the token are an error. The caller must find out whether to
// believe an empty list.
func (k *kv) list(ctx context.Context, prefix string, r read) (api.KVPairs, uint64, error) {
	// Once a long answer has begun, it may take as long as it makes progress: an answer that is given up must be sent
	// again as a whole.
	whole, giveUp := context.WithCancel(ctx)
	defer giveUp()
	limit := time.AfterFunc(k.patience(r), giveUp)
	defer limit.Stop()
	pairs, meta, err := k.List(prefix, k.options(whole, r), func() { limit.Reset(k.Timeout) })
	switch {
	case err != nil && whole.Err() != nil && !errors.Is(ctx.Err(), context.Canceled): // both limits may be over at once
		late := context.DeadlineExceeded
		return nil, 0, fmt.Errorf("list %s: %w: no answer in time: %w", prefix, registry.ErrUnavailable, late)
	case err != nil:
		return nil, 0, fmt.Errorf("list %s: %w", prefix, transport.Classify(err))
	}
	if err := checkList(prefix, meta); err != nil {
		return nil, 0, fmt.Errorf("list %s: %w", prefix, err)
	}
	return pairs, meta.LastIndex, nil
}

// checkList returns an error for a list that may be incomplete.
func checkList(prefix string, meta *api.QueryMeta) error {
	switch {
	case !meta.KnownLeader:
		return uncertain("consul knows no leader")
	case meta.ResultsFilteredByACLs:
		return hidden(prefix)
	}
	return nil
}

// listSurely returns a consistent list of a prefix that need not have a marker. It believes an empty list when the
// token may read a key below the prefix, whether that key exists or not.
func (k *kv) listSurely(ctx context.Context, prefix string) (api.KVPairs, uint64, error) {
	pairs, index, err := k.list(ctx, prefix, read{consistent: true})
	if err == nil && len(pairs) == 0 {
		_, _, err = k.get(ctx, prefix+markerName, read{})
	}
	return pairs, index, err
}

// ensureMarker creates the marker of a tree if it is missing.
func (k *kv) ensureMarker(ctx context.Context, prefix string) (created bool, err error) {
	return k.ensureKey(ctx, prefix+markerName, markerValue)
}

// ensureKey creates a key if it is missing.
func (k *kv) ensureKey(ctx context.Context, key, value string) (created bool, err error) {
	opts, cancel := k.Write(ctx)
	defer cancel()
	created, _, err = k.API.KV().CAS(&api.KVPair{Key: key, Value: []byte(value)}, opts)
	if err != nil {
		return false, fmt.Errorf("create %s: %w", key, transport.Classify(err))
	}
	return created, nil
}

// ensureWatermark creates the watermark of the directory of changes at prefix if it is missing. All entries that may
// have been deleted before then count as trimmed: see changelog.Watermark.
func (k *kv) ensureWatermark(ctx context.Context, prefix string) error {
	_, err := k.ensureKey(ctx, prefix+changelog.WatermarkName, "0")
	return err
}
