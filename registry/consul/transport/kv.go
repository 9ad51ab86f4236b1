package transport

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
)

// Doubts contains the keys and prefixes whose next read must not block. After an error or an unchanged answer the store
// may have been restarted or restored with lower indexes, and a blocking query with the old index would miss that.
type Doubts struct{ set sync.Map }

func (d *Doubts) Has(key string) bool { _, ok := d.set.Load(key); return ok }
func (d *Doubts) Add(key string)      { d.set.Store(key, true) }
func (d *Doubts) Clear(key string)    { d.set.Delete(key) }

// Read contains the options of one read; the zero value is a plain read from the leader.
type Read struct {
	Index      uint64        // block until the index is beyond this
	Wait       time.Duration // for at most this long
	Consistent bool          // the leader first confirms with a quorum that it still leads
	Stale      bool          // any server may answer
	Large      bool          // the answer is long, and a busy server may be late to begin it
}

// Query returns the options of a request that reads.
func (c *Client) Query(ctx context.Context, r Read) (*api.QueryOptions, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, c.patience(r))
	return c.options(ctx, r), cancel
}

// patience returns how long Consul may take to begin an answer.
func (c *Client) patience(r Read) time.Duration {
	if r.Index > 0 {
		return c.Timeout + r.Wait + r.Wait/16
	}
	if r.Large { // what is given up must be sent again
		return 3 * c.Timeout
	}
	return c.Timeout
}

func (c *Client) options(ctx context.Context, r Read) *api.QueryOptions {
	opts := &api.QueryOptions{RequireConsistent: r.Consistent, AllowStale: r.Stale, WaitIndex: r.Index}
	if r.Index > 0 {
		opts.WaitTime = r.Wait
	}
	return opts.WithContext(c.Token.Context(ctx))
}

// Get reads one key; the pair is nil when there is none. Unlike a list, it fails with 403 when the token lacks the
// right.
func (c *Client) Get(ctx context.Context, key string, r Read) (*api.KVPair, uint64, error) {
	opts, cancel := c.Query(ctx, r)
	defer cancel()
	pair, meta, err := c.API.KV().Get(key, opts)
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", key, Classify(err))
	}
	if !meta.KnownLeader {
		return nil, 0, fmt.Errorf("read %s: %w", key, Uncertain("consul knows no leader"))
	}
	return pair, meta.LastIndex, nil
}

// List reads everything below a prefix. Records hidden from the token are an error. The caller must find out whether to
// believe an empty list.
func (c *Client) List(ctx context.Context, prefix string, r Read) (pairs api.KVPairs, index uint64, err error) {
	var meta *api.QueryMeta
	a := answer{empty: "[]", parse: func(d *json.Decoder) (err error) { pairs, err = parsePairs(d); return err }}
	err = c.ask(ctx, r, a, func(opts *api.QueryOptions) (err error) {
		_, meta, err = c.API.KV().List(prefix, opts)
		return err
	})
	if err == nil {
		err = checkList(prefix, meta)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("list %s: %w", prefix, err)
	}
	return pairs, meta.LastIndex, nil
}

// checkList returns an error for a list that may be incomplete.
func checkList(prefix string, meta *api.QueryMeta) error {
	switch {
	case !meta.KnownLeader:
		return Uncertain("consul knows no leader")
	case meta.ResultsFilteredByACLs:
		return Hidden(prefix)
	}
	return nil
}

// Keys returns all keys below a prefix.
func (c *Client) Keys(ctx context.Context, prefix string, r Read) ([]string, uint64, error) {
	keys, meta, err := listKeys(ctx, c, prefix, "", r)
	if err == nil {
		err = checkList(prefix, meta)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("list keys of %s: %w", prefix, err)
	}
	return keys, meta.LastIndex, nil
}

// listKeys returns the keys below a prefix, each up to the separator if there is one.
func listKeys(ctx context.Context, c *Client, prefix, separator string, r Read) (
	keys []string, meta *api.QueryMeta, err error) {
	a := answer{empty: "[]", parse: func(d *json.Decoder) (err error) { keys, err = parseKeys(d); return err }}
	err = c.ask(ctx, r, a, func(opts *api.QueryOptions) (err error) {
		_, meta, err = c.API.KV().Keys(prefix, separator, opts)
		return err
	})
	return keys, meta, err
}

// EnsureKey creates a key if it is missing.
func (c *Client) EnsureKey(ctx context.Context, key, value string) (created bool, err error) {
	opts, cancel := c.Write(ctx)
	defer cancel()
	created, _, err = c.API.KV().CAS(&api.KVPair{Key: key, Value: []byte(value)}, opts)
	if err != nil {
		return false, fmt.Errorf("create %s: %w", key, Classify(err))
	}
	return created, nil
}
