package consul

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// relist reads the tree and decides which state is true, within a turn.
func (c *Client) relist(ctx context.Context, t *tree) error {
	// Read the changes before the list, so that the list includes all of them.
	changes, err := c.readBeforeLeases(ctx, &t.cursor)
	if err != nil {
		return err
	}
	t.restored = t.restored || t.cursor.ShowsSetBack(changes)
	t.told = changes.LastChanges()
	l, err := c.readTree(ctx, t, false)
	if err == nil && t.doubtful(l) {
		l, err = c.confirm(ctx, t)
	}
	if err != nil {
		return err
	}
	t.accept(l, c.settled(time.Now()))
	t.seen.Store(time.Now().UnixNano())
	t.cursor.Adopt(changes, time.Now())
	return nil
}

// firstList reads the leases for the claim of a host that has not read them before, so that its watch can continue from
// there. It returns nil when the tree is known already or its changes may not be read.
func (c *Client) firstList(ctx context.Context, t *tree) (api.KVPairs, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	defer t.end()
	if t.version != 0 {
		return nil, nil
	}
	changes, err := c.readBeforeLeases(ctx, &t.cursor)
	if errors.Is(err, registry.ErrDenied) {
		return nil, nil // the watch reports it
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
		t.cursor.Adopt(changes, time.Now())
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

// confirm reads again in ways that cannot show an empty tree when the right to read it was lost.
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
		// The marker was deleted by hand. Without it no later answer could be judged; a token without the right to
		// write leaves it to other hosts.
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
