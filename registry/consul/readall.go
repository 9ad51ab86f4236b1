package consul

import (
	"context"
	"fmt"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/consul/keys"
	"github.com/lenonet/leno/registry/consul/transport"
)

// readAll reads all leases and decides which state is true. The caller holds f.mu. If that needs more reads and
// leaveDoubt is set, it changes nothing: the watch will find out.
func (f *follower) readAll(ctx context.Context, kv *kv, leaveDoubt bool) error {
	// Read the changes before the list, so that the list includes all of them.
	changes, err := kv.readBeforeLeases(ctx, &f.cursor)
	if err != nil {
		return err
	}
	f.evidence.setBack = f.evidence.setBack || f.cursor.ShowsSetBack(changes)
	l, err := f.readList(ctx, kv, false)
	if err == nil && f.isDoubtful(l) {
		if leaveDoubt {
			return nil
		}
		l, err = f.confirmList(ctx, kv)
	}
	if err != nil {
		return err
	}
	f.accept(l)
	f.confirmed.Store(time.Now().UnixNano())
	f.cursor.Adopt(changes, time.Now())
	return nil
}

func (f *follower) readList(ctx context.Context, kv *kv, consistent bool) (belief.List, error) {
	pairs, index, err := kv.List(ctx, f.leases, transport.Read{Consistent: consistent, Large: true})
	if err != nil {
		return belief.List{}, err
	}
	return f.newList(pairs, index), nil
}

// confirmList reads all leases again in ways that cannot show an empty tree when the right to read it was lost.
func (f *follower) confirmList(ctx context.Context, kv *kv) (belief.List, error) {
	key := f.leases + keys.Marker
	marker, _, err := kv.Get(ctx, key, transport.Read{Consistent: true})
	if err != nil {
		return belief.List{}, fmt.Errorf("%w: %w", registry.ErrUncertain, err)
	}
	l, err := f.readList(ctx, kv, true)
	if err != nil {
		return belief.List{}, fmt.Errorf("%w: %w", registry.ErrUncertain, err)
	}
	if marker == nil && l.Marker == 0 && len(l.Records) > 0 {
		// The marker was deleted by hand. Without it no later answer could be judged; a token without the right to
		// write leaves it to other hosts.
		if created, err := kv.ensureMarker(ctx, f.leases); created || err != nil {
			kv.logger.Warn("missing marker key created", "key", key, "error", err)
		}
	}
	switch {
	case marker != nil && l.Marker == 0:
		return belief.List{}, transport.Hidden(f.leases)
	case marker != nil && l.Marker != marker.CreateIndex:
		return belief.List{}, transport.Uncertain("%s was created again between two reads", key)
	case marker != nil || l.Marker != 0:
		return l, nil
	}
	if lacking, _ := f.belief.Lacks(l.Records); len(l.Records) > 0 && lacking == 0 {
		return l, nil
	}
	return belief.List{}, transport.Uncertain("%s is missing: the store was emptied or restored, or no host has used the "+
		"network yet", key)
}
