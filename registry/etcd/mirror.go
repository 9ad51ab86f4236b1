package etcd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

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

// ownWriteTime is how long to wait for the client's own transaction to be seen as a change. On a busy host that costs
// less than reading everything.
const ownWriteTime = 2 * time.Second

// known returns what the client knows anyway, nil if that cannot be what a claim chooses from: the client neither
// follows the changes nor is reading everything, or the copy lacks what the client itself has written, for which known
// waits a moment.
func (c *connection) known(ctx context.Context) *tree {
	if c.mirror.Followed() == nil && c.mirror.Lock(ctx) == nil {
		c.mirror.Unlock() // after a reading that was in progress, changes are followed
	}
	late := time.NewTimer(ownWriteTime)
	defer late.Stop()
	for {
		t, changed := c.mirror.Current()
		wrote := c.wrote.Load()
		switch {
		case c.mirror.Followed() == nil, t == nil, len(t.Vanished) > 0, wrote == unknown:
			return nil
		case t.Revision >= wrote:
			return t
		}
		select {
		case <-changed:
		case <-late.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// explainTime is how long to wait for the changes that tell why records vanished.
const explainTime = 300 * time.Millisecond

// hasJustLost reports whether records have vanished so recently that the reason may become known at any moment.
func hasJustLost(t *tree) bool {
	for _, v := range t.Vanished {
		if time.Since(v.At) < explainTime {
			return true
		}
	}
	return false
}

// refreshSurely reads everything, and waits until it is known of each record that has just vanished that it was
// deleted. If that does not become known in time, the record may have been lost.
func (c *connection) refreshSurely(ctx context.Context) (*tree, error) {
	t, err := c.mirror.Refresh(ctx)
	if err != nil || !hasJustLost(t) {
		return t, err
	}
	release, err := c.mirror.Use()
	if err != nil {
		return nil, err
	}
	defer release()
	late := time.NewTimer(explainTime)
	defer late.Stop()
	for {
		t, changed := c.mirror.Current()
		if !hasJustLost(t) {
			return t, nil
		}
		select {
		case <-changed:
		case <-late.C:
			return t, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Watch implements replica.Source.
func (c *connection) Watch(
	ctx context.Context, after uint64, apply func(cluster uint64, changes ...replica.Change[*record]) error,
) (err error) {
	api, err := c.client(ctx)
	if err != nil {
		return err
	}
	var checking sync.WaitGroup
	defer checking.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer func() {
		if reason := context.Cause(ctx); reason != nil { // whatever the call in progress made of it
			err = reason
		}
	}()
	checking.Go(func() { cancel(awaitDisconnect(ctx, api)) })
	watcher := clientv3.NewWatcher(api) // in api's own, a watch may share the stream of another user, and so its rights
	defer watcher.Close()
	watched := watcher.Watch(clientv3.WithRequireLeader(c.login.in(ctx)), c.keys.root(), clientv3.WithPrefix(),
		clientv3.WithRev(int64(after)+1), clientv3.WithFragment())
	for resp := range watched {
		switch {
		case resp.CompactRevision != 0:
			return replica.ErrOutdated
		case resp.Err() != nil:
			return registry.Wrap(classifyWatch(ctx, resp.Err()), "watch %s", c.keys.root())
		}
		changes := make([]replica.Change[*record], len(resp.Events))
		for i, e := range resp.Events {
			changes[i] = changeOf(e)
		}
		if err := apply(resp.Header.ClusterId, changes...); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: the watch has ended", registry.ErrUnavailable)
}

func changeOf(e *clientv3.Event) replica.Change[*record] {
	change := replica.Change[*record]{Key: keyOf(e.Kv), Revision: uint64(e.Kv.ModRevision)}
	if e.Type != mvccpb.DELETE {
		change.Record = newRecord(e.Kv)
	}
	return change
}

// awaitDisconnect returns an error when no server is connected any more. Etcd's client itself would try to connect
// again without telling anyone.
func awaitDisconnect(ctx context.Context, api *clientv3.Client) error {
	conn := api.ActiveConnection()
	for {
		state := conn.GetState()
		connected := state == connectivity.Ready
		if state == connectivity.TransientFailure || state == connectivity.Shutdown ||
			conn.WaitForStateChange(ctx, state) && connected {
			return fmt.Errorf("%w: the connection was lost", registry.ErrUnavailable)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
