package consul

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/transport"
)

// awaitIndex repeats a read of a key or prefix until its index differs from after, and returns that index. The read
// blocks, unless after is 0 or the key is in doubt.
func (k *kv) awaitIndex(
	ctx context.Context, key string, after uint64, get func(read) (index uint64, err error),
) (uint64, error) {
	for {
		r := read{}
		if after > 0 && !k.doubts.has(key) {
			r = read{index: after, wait: k.conf.Wait}
		}
		start := time.Now()
		index, err := get(r)
		if err != nil {
			k.doubts.add(key)
			if k.hasEnded(ctx, r, start, err) {
				continue
			}
			return 0, err
		}
		k.doubts.clear(key)
		if index != after {
			return index, nil
		}
		if err := k.pauseUnchanged(ctx, key, r, start); err != nil {
			return 0, err
		}
	}
}

// hasEnded reports whether a blocking query failed although the store may be well: it got no answer at all in its time,
// because it was sent through a server that has since gone, or its connection was closed after a quarter of that time,
// because some versions of Consul close every connection after 30 s. The next read does not block and returns the
// current state, or the error if the store is not well.
func (k *kv) hasEnded(ctx context.Context, r read, start time.Time, err error) bool {
	if r.index == 0 || ctx.Err() != nil {
		return false
	}
	isCut := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET)
	return errors.Is(err, context.DeadlineExceeded) || isCut && time.Since(start) >= k.conf.Wait/4
}

// pauseUnchanged handles a read that returned the index it was given. A restore wakes a blocking query with the old
// index, so the next read does not block. A server that answers early again and again must not be asked in a tight
// loop.
func (k *kv) pauseUnchanged(ctx context.Context, key string, r read, start time.Time) error {
	if r.index == 0 {
		return nil
	}
	k.doubts.add(key)
	if time.Since(start) < k.conf.Coalesce {
		return registry.Sleep(ctx, jitter(k.conf.Coalesce))
	}
	return nil
}

// awaitChange blocks until the index of a prefix differs from after, and then for a random time in which more changes
// may arrive. It requests the names directly below the prefix without its slash: about 30 bytes, however much the
// prefix contains.
func (k *kv) awaitChange(ctx context.Context, prefix string, after uint64) (uint64, error) {
	index, err := k.awaitIndex(ctx, prefix, after, func(r read) (uint64, error) {
		index, _, err := k.prefixIndex(ctx, prefix, r)
		return index, err
	})
	if err != nil {
		return 0, err
	}
	return index, registry.Sleep(ctx, jitter(k.conf.Coalesce))
}

// prefixIndex returns the index of the keys below a prefix, and whether there are any.
func (k *kv) prefixIndex(ctx context.Context, prefix string, r read) (index uint64, exists bool, err error) {
	opts, cancel := k.query(ctx, r)
	defer cancel()
	keys, meta, err := k.API.KV().Keys(strings.TrimSuffix(prefix, "/"), "/", opts)
	if err != nil {
		return 0, false, fmt.Errorf("watch %s: %w", prefix, transport.Classify(err))
	}
	if !meta.KnownLeader {
		return 0, false, fmt.Errorf("watch %s: %w", prefix, uncertain("consul knows no leader"))
	}
	return meta.LastIndex, slices.Contains(keys, prefix), nil
}

// jitter returns a random time between half of d and d.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1)
}
