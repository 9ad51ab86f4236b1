package transport

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
)

// AwaitIndex repeats a read of a key or prefix until its index differs from after, and returns that index. The read
// blocks, unless after is 0 or the key is in doubt.
func (c *Client) AwaitIndex(
	ctx context.Context, key string, after uint64, get func(Read) (index uint64, err error),
) (uint64, error) {
	for {
		r := Read{}
		if after > 0 && !c.Doubts.Has(key) {
			r = Read{Index: after, Wait: c.Wait}
		}
		start := time.Now()
		index, err := get(r)
		if err != nil {
			c.Doubts.Add(key)
			if c.HasEnded(ctx, r, start, err) {
				continue
			}
			return 0, err
		}
		c.Doubts.Clear(key)
		if index != after {
			return index, nil
		}
		if err := c.PauseUnchanged(ctx, key, r, start); err != nil {
			return 0, err
		}
	}
}

// HasEnded reports whether a blocking query failed although the store may be well: it got no answer at all in its time,
// because it was sent through a server that has since gone, or its connection was closed after a quarter of that time,
// because some versions of Consul close every connection after 30 s. The next read does not block and returns the
// current state, or the error if the store is not well.
func (c *Client) HasEnded(ctx context.Context, r Read, start time.Time, err error) bool {
	if r.Index == 0 || ctx.Err() != nil {
		return false
	}
	isCut := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET)
	return errors.Is(err, context.DeadlineExceeded) || isCut && time.Since(start) >= c.Wait/4
}

// PauseUnchanged handles a read that returned the index it was given. A restore wakes a blocking query with the old
// index, so the next read does not block. A server that answers early again and again must not be asked in a tight
// loop.
func (c *Client) PauseUnchanged(ctx context.Context, key string, r Read, start time.Time) error {
	if r.Index == 0 {
		return nil
	}
	c.Doubts.Add(key)
	if time.Since(start) < c.Coalesce {
		return registry.Sleep(ctx, Jitter(c.Coalesce))
	}
	return nil
}

// AwaitChange blocks until the index of a prefix differs from after, and then for a random time in which more changes
// may arrive. It requests the names directly below the prefix without its slash: about 30 bytes, however much the
// prefix contains.
func (c *Client) AwaitChange(ctx context.Context, prefix string, after uint64) (uint64, error) {
	index, err := c.AwaitIndex(ctx, prefix, after, func(r Read) (uint64, error) {
		index, _, err := c.PrefixIndex(ctx, prefix, r)
		return index, err
	})
	if err != nil {
		return 0, err
	}
	return index, registry.Sleep(ctx, Jitter(c.Coalesce))
}

// PrefixIndex returns the index of the keys below a prefix, and whether there are any.
func (c *Client) PrefixIndex(ctx context.Context, prefix string, r Read) (index uint64, exists bool, err error) {
	keys, meta, err := listKeys(ctx, c, strings.TrimSuffix(prefix, "/"), "/", r)
	if err != nil {
		return 0, false, fmt.Errorf("watch %s: %w", prefix, err)
	}
	if !meta.KnownLeader {
		return 0, false, fmt.Errorf("watch %s: %w", prefix, Uncertain("consul knows no leader"))
	}
	return meta.LastIndex, slices.Contains(keys, prefix), nil
}

// Jitter returns a random time between half of d and d.
func Jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1)
}
