package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/replica"
)

// List implements replica.Source.
func (c *connection) List(ctx context.Context) (*tree, error) {
	if c.host != nil {
		select {
		case c.host.guestReads <- struct{}{}:
			defer func() { <-c.host.guestReads }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	wrote := c.wrote.Load()
	t, err := c.list(ctx, c.keys.root())
	if err == nil {
		c.wrote.CompareAndSwap(wrote, t.Revision) // t contains it
	}
	return t, registry.Wrap(err, "read %s", c.keys.root())
}

// ownWriteTime is how long known waits for the client's own transaction, which costs less than reading everything.
const ownWriteTime = 2 * time.Second

// known returns what the client knows anyway, nil if that cannot be what a claim in a network chooses from: the client
// neither follows the changes nor is reading everything, leases have vanished whose hosts may be about to write them
// again, or the copy lacks what the client itself has written, for which known waits a moment.
func (c *connection) known(ctx context.Context, network string) *tree {
	if c.mirror.Followed() == nil && c.mirror.Lock(ctx) == nil {
		c.mirror.Unlock() // after a reading that was in progress, changes are followed
	}
	limited, cancel := context.WithTimeout(ctx, ownWriteTime)
	defer cancel()
	for {
		t, changed := c.mirror.Current()
		wrote := c.wrote.Load()
		switch {
		case limited.Err() != nil, c.mirror.Followed() == nil, t == nil, wrote == unknown,
			t.HasLost(c.keys.leases(network), time.Duration(c.settle.Load())):
			return nil
		case t.Revision >= wrote:
			return t
		}
		select {
		case <-changed:
		case <-limited.Done():
		}
	}
}

// explainTime is how long to wait for the changes that tell why records vanished.
const explainTime = 300 * time.Millisecond

// refreshSurely reads everything, and waits until it is known of each record that has just vanished that it was
// deleted. If that does not become known in time, the record may have been lost.
func (c *connection) refreshSurely(ctx context.Context) (*tree, error) {
	t, err := c.mirror.Refresh(ctx)
	if err != nil || !t.HasLost("", explainTime) {
		return t, err
	}
	release, err := c.mirror.Use()
	if err != nil {
		return nil, err
	}
	defer release()
	limited, cancel := context.WithTimeout(ctx, explainTime)
	defer cancel()
	for {
		t, changed := c.mirror.Current()
		if limited.Err() != nil || !t.HasLost("", explainTime) {
			return t, ctx.Err()
		}
		select {
		case <-changed:
		case <-limited.Done():
		}
	}
}

// Watch implements replica.Source with one stream. Etcd's client would open another one when that ends, maybe to a
// store that was set back in the meantime, and wait there for a revision that is far away.
func (c *connection) Watch(
	ctx context.Context, after uint64, apply func(cluster uint64, changes ...replica.Change[*record]) error,
) error {
	t, _ := c.mirror.Current()
	api, err := c.client(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(c.login.in(ctx)))
	defer cancel()
	stream, err := etcdserverpb.NewWatchClient(api.ActiveConnection()).Watch(ctx)
	root, from := c.keys.root(), int64(after)+1
	if err != nil {
		return registry.Wrap(classifyWatch(ctx, err), "watch %s", root)
	}
	request := &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: &etcdserverpb.WatchCreateRequest{
		Key: []byte(root), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(root)), StartRevision: from, Fragment: true,
	}}
	_ = stream.Send(&etcdserverpb.WatchRequest{RequestUnion: request}) // Recv returns the reason of an error
	var changes []replica.Change[*record]
	for isOpen := false; ; isOpen = true {
		resp, err := stream.Recv()
		switch {
		case err != nil && isOpen && ctx.Err() == nil: // the next watch finds out whether the store is there
			c.mirror.NoteDisconnect()
			return nil
		case err == nil && resp.CompactRevision != 0:
			return replica.ErrOutdated
		case err == nil && resp.Canceled:
			err = errors.New(resp.CancelReason)
		case err == nil && !isOpen:
			if err := c.checkContinues(ctx, root, t); err != nil {
				return err
			}
		}
		if err != nil {
			return registry.Wrap(classifyWatch(ctx, err), "watch %s", root)
		}
		for _, e := range resp.Events {
			changes = append(changes, changeOf(e))
		}
		if !resp.Fragment {
			if err := apply(resp.Header.GetClusterId(), changes...); err != nil {
				return err
			}
			changes = nil
		}
	}
}

func changeOf(e *mvccpb.Event) replica.Change[*record] {
	change := replica.Change[*record]{Key: keyOf(e.Kv), Revision: uint64(e.Kv.ModRevision)}
	if e.Type != mvccpb.DELETE {
		change.Record = newRecord(e.Kv)
	}
	return change
}
