package etcd

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/replica"
)

// mirror is the copy of all keys below the prefix.
type mirror struct {
	*replica.Replica[tree]
	conn    *connection
	watched uint64  // the revision up to which changes have been followed; guarded by Lock
	read    attempt // of reading everything; guarded by Lock
}

func newMirror(conn *connection) *mirror {
	m := &mirror{conn: conn}
	m.Replica = replica.New[tree](replica.Options{
		Refresh: func(ctx context.Context) error {
			_, err := m.refresh(ctx)
			return err
		},
		Follow:     m.run,
		Idle:       idleTime,
		Undetected: keepAliveTime + keepAliveTimeout,
	})
	return m
}

// refresh reads everything from the leader and returns it.
func (m *mirror) refresh(ctx context.Context) (*tree, error) {
	since := time.Now()
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	defer m.Unlock()
	if m.read.isFor(since) {
		t, _ := m.Current()
		return t, m.read.err
	}
	began := time.Now()
	t, err := m.readAll(ctx)
	m.read = attempt{began, err, err != nil && ctx.Err() != nil}
	return t, err
}

// readAll is refresh for a caller that has locked reading.
func (m *mirror) readAll(ctx context.Context) (*tree, error) {
	done, err := m.conn.startRead(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := m.conn.list(ctx, m.conn.keys.root())
	if err != nil {
		return nil, wrap(err, "read %s", m.conn.keys.root())
	}
	now := &tree{cluster: l.cluster, revision: l.revision, records: make(map[string]*record, len(l.records))}
	for _, r := range l.records {
		now.records[r.key] = r
	}
	before, _ := m.Current()
	now.continueFrom(before)
	now.sort()
	if before != nil && now.setBack != before.setBack {
		m.conn.logger.Warn("the store was set back to an earlier state", "revision", now.revision, "before", before.revision)
	}
	if before == nil || now.setBack != before.setBack {
		m.watched = now.revision
	}
	m.Set(now)
	return now, nil
}

// explainTime is how long to wait for the changes that tell why records vanished.
const explainTime = 300 * time.Millisecond

// refreshSurely is refresh, and waits until it is known of each record that has just vanished that it was deleted. If
// that does not become known in time, the record may have been lost.
func (m *mirror) refreshSurely(ctx context.Context) (*tree, error) {
	t, err := m.refresh(ctx)
	if err != nil || !t.hasJustLost() {
		return t, err
	}
	release, err := m.Use()
	if err != nil {
		return nil, err
	}
	defer release()
	late := time.NewTimer(explainTime)
	defer late.Stop()
	for {
		t, changed := m.Current()
		if !t.hasJustLost() {
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

// run follows the changes until the store fails.
func (m *mirror) run(ctx context.Context) (err error) {
	api, err := m.conn.client(ctx)
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
	for skipped := uint64(0); ; {
		from, next, err := m.position(ctx, skipped)
		if err != nil {
			return err
		}
		watching, stop := context.WithCancel(clientv3.WithRequireLeader(m.conn.login.in(ctx)))
		changes := watcher.Watch(watching, m.conn.keys.root(), clientv3.WithPrefix(), clientv3.WithRev(int64(next)),
			clientv3.WithFragment())
		err = m.apply(ctx, from.setBack, changes)
		stop()
		if err != nil {
			return err
		}
		// The changes were compacted away, or the store was set back.
		now, err := m.refresh(ctx)
		if err != nil {
			return err
		}
		skipped = now.revision
	}
}

// position returns the current tree, and the revision of the next change to follow. Changes up to the revision skipped
// are given up.
func (m *mirror) position(ctx context.Context, skipped uint64) (t *tree, next uint64, err error) {
	if err := m.Lock(ctx); err != nil {
		return nil, 0, err
	}
	defer m.Unlock()
	t, _ = m.Current()
	m.watched = max(m.watched, skipped)
	return t, m.watched + 1, nil
}

// apply applies changes until everything must be read again, which is no error.
func (m *mirror) apply(ctx context.Context, setBack uint64, changes clientv3.WatchChan) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case resp, open := <-changes:
			switch {
			case !open:
				return fmt.Errorf("%w: the watch has ended", registry.ErrUnavailable)
			case resp.CompactRevision != 0:
				return nil
			case resp.Err() != nil:
				return wrap(classifyWatch(ctx, resp.Err()), "watch %s", m.conn.keys.root())
			}
			if again, err := m.applyOne(ctx, setBack, resp); again || err != nil {
				return err
			}
		}
	}
}

func (m *mirror) applyOne(ctx context.Context, setBack uint64, resp clientv3.WatchResponse) (again bool, err error) {
	if err := m.Lock(ctx); err != nil {
		return false, err
	}
	defer m.Unlock()
	t, _ := m.Current()
	if t.setBack != setBack || resp.Header.ClusterId != t.cluster {
		return true, nil
	}
	for _, e := range resp.Events {
		m.watched = max(m.watched, uint64(e.Kv.ModRevision))
	}
	m.Set(t.apply(resp.Events))
	return false, nil
}

// awaitDisconnect returns an error when no server is connected any more. Etcd's client itself would try to connect
// again without telling anyone.
func awaitDisconnect(ctx context.Context, api *clientv3.Client) error {
	conn := api.ActiveConnection()
	for {
		state := conn.GetState()
		if state == connectivity.TransientFailure || state == connectivity.Shutdown {
			return fmt.Errorf("%w: the connection was lost", registry.ErrUnavailable)
		}
		connected := state == connectivity.Ready
		if !conn.WaitForStateChange(ctx, state) {
			return ctx.Err()
		}
		if connected {
			return fmt.Errorf("%w: the connection was lost", registry.ErrUnavailable)
		}
	}
}
