package etcd

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
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
	watched uint64        // the revision up to which changes have been followed; guarded by Lock
	wrote   atomic.Uint64 // the revision of the client's last transaction since everything was read

	ctx  context.Context // of readings
	stop context.CancelFunc

	mu      sync.Mutex
	next    *reading // that has not begun
	current *reading // in progress
	running sync.WaitGroup
}

// A reading is one time that everything is read, for all callers that ask for it before it begins. It goes on when they
// give up: their next call then finds what it has read.
type reading struct {
	cancel  context.CancelFunc
	done    chan struct{} // closed at the end
	waiting int           // callers, guarded by mirror.mu
	tree    *tree
	err     error
}

// unknown is the revision of a transaction whose outcome is not known.
const unknown = math.MaxUint64

func newMirror(conn *connection) *mirror {
	m := &mirror{conn: conn}
	m.ctx, m.stop = context.WithCancel(context.Background())
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
	m.mu.Lock()
	if m.next == nil {
		m.next = m.startLocked()
	}
	r := m.next
	m.mu.Unlock()
	return m.await(ctx, r)
}

// ownWriteTime is how long to wait for the client's own transaction to be seen as a change. On a busy host that costs less
// than reading everything.
const ownWriteTime = 2 * time.Second

// known returns what the client knows anyway, nil if that cannot be what a claim chooses from: the client neither follows
// the changes nor is reading everything, or the copy lacks what the client itself has written, for which known waits a
// moment.
func (m *mirror) known(ctx context.Context) *tree {
	m.mu.Lock()
	r := m.current
	m.mu.Unlock()
	if m.Followed() == nil && r != nil {
		_, _ = m.await(ctx, r)
	}
	late := time.NewTimer(ownWriteTime)
	defer late.Stop()
	for {
		t, changed := m.Current()
		wrote := m.wrote.Load()
		switch {
		case m.Followed() == nil, t == nil, len(t.vanished) > 0, wrote == unknown:
			return nil
		case t.revision >= wrote:
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

// await returns the result of a reading. That of a guest ends when no caller waits for it any more.
func (m *mirror) await(ctx context.Context, r *reading) (*tree, error) {
	m.mu.Lock()
	r.waiting++
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if r.waiting--; r.waiting == 0 && m.conn.host != nil {
			r.cancel()
			if m.next == r {
				m.next = nil
			}
		}
	}()
	select {
	case <-r.done:
		return r.tree, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// startLocked starts a reading, which begins when the one in progress has ended. The caller holds m.mu.
func (m *mirror) startLocked() *reading {
	r := &reading{done: make(chan struct{})}
	ctx, cancel := context.WithCancel(m.ctx)
	r.cancel = cancel
	m.running.Go(func() {
		defer cancel()
		defer close(r.done)
		defer m.followOn(r)
		if r.err = m.Lock(ctx); r.err != nil {
			r.err = replica.ErrClosed
			return
		}
		m.mu.Lock()
		m.current = r
		if m.next == r {
			m.next = nil
		}
		m.mu.Unlock()
		r.tree, r.err = m.readAll(ctx)
		m.mu.Lock()
		m.current = nil
		m.mu.Unlock()
		m.Unlock()
	})
	return r
}

// followOn follows the changes after a reading, so that the next call need not read everything again. A guest does not.
func (m *mirror) followOn(r *reading) {
	if r.err != nil || m.Idle == 0 {
		return
	}
	if release, err := m.Use(); err == nil {
		release()
	}
}

// noteWritten makes known return only what contains the client's transaction at a revision.
func (m *mirror) noteWritten(revision uint64) {
	for {
		before := m.wrote.Load()
		if before >= revision || m.wrote.CompareAndSwap(before, revision) {
			return
		}
	}
}

// end ends readings and the following of changes for good.
func (m *mirror) end() {
	m.stop()
	m.Stop()
	m.running.Wait()
}

// readAll is refresh for a caller that has locked reading.
func (m *mirror) readAll(ctx context.Context) (*tree, error) {
	wrote := m.wrote.Load()
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
	m.wrote.CompareAndSwap(wrote, 0) // now contains it
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
