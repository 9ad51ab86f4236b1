package consul

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// relist reads the tree and decides what is true, within a turn.
func (c *Client) relist(ctx context.Context, t *tree) error {
	// Before the list, which so shows whatever these say.
	changes, err := c.readMarks(ctx, t.dir)
	if err != nil {
		return err
	}
	t.restored = t.restored || t.dir.setBack(changes)
	t.told = changes.last(t.dir.prefix)
	l, err := c.readTree(ctx, t, false)
	if err == nil && t.doubtful(l) {
		l, err = c.confirm(ctx, t)
	}
	if err != nil {
		return err
	}
	t.accept(l, c.settled(time.Now()))
	t.seen.Store(time.Now().UnixNano())
	t.dir.adopt(changes, time.Now())
	return nil
}

// firstList reads the leases for the claim of a host that has not read them
// before, so that its watch can go on from there; nil when there is nothing to
// go on from.
func (c *Client) firstList(ctx context.Context, t *tree) (api.KVPairs, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	defer t.end()
	if t.version != 0 {
		return nil, nil
	}
	changes, err := c.readMarks(ctx, t.dir)
	if errors.Is(err, registry.ErrDenied) {
		return nil, nil // the watch will say so
	}
	if err != nil {
		return nil, err
	}
	pairs, index, err := c.list(ctx, t.prefix, read{consistent: true})
	if err != nil {
		return nil, err
	}
	if l := t.newList(pairs, index); !t.doubtful(l) {
		t.accept(l, time.Time{})
		t.dir.adopt(changes, time.Now())
	}
	return pairs, nil
}

func (c *Client) readTree(ctx context.Context, t *tree, consistent bool) (list, error) {
	pairs, index, err := c.list(ctx, t.prefix, read{consistent: consistent})
	if err != nil {
		return list{}, err
	}
	return t.newList(pairs, index), nil
}

// confirm asks again, in ways that cannot look like an empty tree when the
// right to read it is gone.
func (c *Client) confirm(ctx context.Context, t *tree) (list, error) {
	key := t.prefix + markerName
	marker, _, err := c.get(ctx, key, read{consistent: true})
	if err != nil {
		return list{}, fmt.Errorf("%w: %w", registry.ErrUncertain, err)
	}
	l, err := c.readTree(ctx, t, true)
	if err != nil {
		return list{}, fmt.Errorf("%w: %w", registry.ErrUncertain, err)
	}
	if marker == nil && l.marker == 0 && len(l.pairs) > 0 {
		// Deleted by hand. Without it no later answer could be judged; a token
		// that may not write leaves it to the others.
		if created, err := c.ensureMarker(ctx, t.prefix); created || err != nil {
			c.logger.Warn("missing marker key created", "key", key, "error", err)
		}
	}
	switch {
	case marker != nil && l.marker == 0:
		return list{}, hidden(t.prefix)
	case marker != nil && l.marker != marker.CreateIndex:
		return list{}, uncertain("%s was created anew between two reads", key)
	case marker != nil || l.marker != 0:
		return l, nil
	case len(l.pairs) > 0 && len(t.gone(l.pairs)) == 0:
		return l, nil
	default:
		return list{}, uncertain("%s is missing: the store was emptied or restored", key)
	}
}
