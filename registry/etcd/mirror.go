package etcd

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/lenonet/leno/registry"
)

// mirror keeps the copy of all keys below the prefix. While calls wait for changes, one goroutine follows them; it ends
// when the store fails, which all waiting calls are told, or when no call has waited for connection.idle. The next call that
// waits starts it again, and it reads everything again then.
type mirror struct {
	conn *connection

	// reading holds a value while a tree is read or changes are applied, so trees follow one another.
	reading chan struct{}
	watched uint64  // the revision up to which changes have been followed; guarded by reading
	read    attempt // of reading everything; guarded by reading

	mu        sync.Mutex
	tree      *tree         // nil before the first read
	confirmed time.Time     // when the store last confirmed the tree
	changed   chan struct{} // closed and replaced with each tree, and when following ends
	err       error         // why following ended last, nil while it goes on
	cancel    context.CancelFunc
	waiting   int
	idleSince time.Time
	closed    bool
	running   sync.WaitGroup // the goroutine that follows the changes
}

func newMirror(conn *connection) *mirror {
	return &mirror{conn: conn, reading: make(chan struct{}, 1), changed: make(chan struct{})}
}

func (m *mirror) lockReading(ctx context.Context) error {
	select {
	case m.reading <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *mirror) current() (t *tree, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tree, m.changed
}

// set makes t the current tree. The caller has locked reading.
func (m *mirror) set(t *tree) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.confirmed = time.Now()
	if t == m.tree {
		return
	}
	m.tree = t
	m.wakeLocked()
}

func (m *mirror) wakeLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// refresh reads everything from the leader and returns it.
func (m *mirror) refresh(ctx context.Context) (*tree, error) {
	since := time.Now()
	if err := m.lockReading(ctx); err != nil {
		return nil, err
	}
	defer func() { <-m.reading }()
	if m.read.isFor(since) {
		t, _ := m.current()
		return t, m.read.err
	}
	began := time.Now()
	t, err := m.readAll(ctx)
	m.read = attempt{began, err, err != nil && ctx.Err() != nil}
	return t, err
}

// readAll is refresh for a caller that has locked reading.
func (m *mirror) readAll(ctx context.Context) (*tree, error) {
	now := &tree{records: map[string]*record{}}
	err := m.conn.call(ctx, func(ctx context.Context, api *clientv3.Client) error {
		resp, err := api.Get(ctx, m.conn.keys.root(), clientv3.WithPrefix())
		if err != nil {
			return err
		}
		now.cluster, now.revision = resp.Header.ClusterId, uint64(resp.Header.Revision)
		for _, kv := range resp.Kvs {
			now.records[string(kv.Key)] = newRecord(kv)
		}
		return nil
	})
	if err != nil {
		return nil, wrap(err, "read %s", m.conn.keys.root())
	}
	before, _ := m.current()
	now.continueFrom(before)
	if before != nil && now.setBack != before.setBack {
		m.conn.logger.Warn("the store was set back to an earlier state", "revision", now.revision, "before", before.revision)
	}
	if before == nil || now.setBack != before.setBack {
		m.watched = now.revision
	}
	m.set(now)
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
	if err := m.follow(); err != nil {
		return nil, err
	}
	defer m.unfollow()
	late := time.NewTimer(explainTime)
	defer late.Stop()
	for {
		t, changed := m.current()
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

// await returns when ready returns true for the current tree. It asks again with each new tree, and at the time that
// ready returns, if that is not zero. It begins with a tree that was read after the call if fresh is true, if nothing is
// known yet, or if the store has failed since.
func (m *mirror) await(ctx context.Context, fresh bool, ready func(*tree) (done bool, again time.Time)) error {
	m.mu.Lock()
	fresh = fresh || m.tree == nil || m.cancel == nil
	m.mu.Unlock()
	if fresh {
		if _, err := m.refresh(ctx); err != nil {
			return err
		}
	}
	if err := m.follow(); err != nil {
		return err
	}
	defer m.unfollow()
	for {
		m.mu.Lock()
		if m.err == errIdle && !m.closed { // it ended when this call was about to wait
			m.startLocked()
		}
		t, changed, err := m.tree, m.changed, m.err
		m.mu.Unlock()
		done, again := ready(t)
		if done {
			return nil
		}
		if err != nil {
			return err
		}
		var due <-chan time.Time
		if !again.IsZero() {
			due = time.After(time.Until(again))
		}
		select {
		case <-changed:
		case <-due:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// follow starts the goroutine that follows the changes, if it does not run.
func (m *mirror) follow() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errClosed
	}
	m.waiting++
	if m.cancel == nil {
		m.startLocked()
	}
	return nil
}

func (m *mirror) startLocked() {
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel, m.err = cancel, nil
	m.running.Go(func() {
		err := m.run(ctx)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.cancel, m.err = nil, err
		cancel()
		if proven := time.Now().Add(-keepAliveTime - keepAliveTimeout); proven.After(m.confirmed) {
			m.confirmed = proven // a connection that is lost may have been dead for as long
		}
		m.wakeLocked()
	})
}

func (m *mirror) unfollow() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting--; m.waiting == 0 {
		m.idleSince = time.Now()
	}
}

// lastConfirmed returns when the store last said that the tree is current, zero for never.
func (m *mirror) lastConfirmed() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cancel != nil && m.tree != nil {
		return time.Now() // the connection is checked all the time
	}
	return m.confirmed
}

// isIdle reports whether no call has waited for the idle time.
func (m *mirror) isIdle() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waiting == 0 && time.Since(m.idleSince) > m.conn.idle
}

// stop ends following for good, and blocks until it has ended.
func (m *mirror) stop() {
	m.mu.Lock()
	m.closed = true
	if m.cancel != nil {
		m.cancel()
	}
	m.mu.Unlock()
	m.running.Wait()
}

// run follows the changes until the store fails.
func (m *mirror) run(ctx context.Context) error {
	api, err := m.conn.client(ctx)
	if err != nil {
		return err
	}
	var checking sync.WaitGroup
	defer checking.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	checking.Go(func() { cancel(awaitDisconnect(ctx, api)) })
	idle := time.NewTicker(m.conn.idle)
	defer idle.Stop()
	for {
		from, next, err := m.position(ctx)
		if err != nil {
			return err
		}
		watching, stop := context.WithCancel(clientv3.WithRequireLeader(ctx))
		changes := api.Watch(watching, m.conn.keys.root(), clientv3.WithPrefix(), clientv3.WithRev(int64(next)))
		err = m.apply(ctx, from.setBack, changes, idle.C)
		stop()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		}
		// The changes were compacted away, or the store was set back.
		if now, err := m.refresh(ctx); err != nil {
			return err
		} else if err := m.skip(ctx, now.revision); err != nil {
			return err
		}
	}
}

// position returns the current tree, and the revision of the next change to follow.
func (m *mirror) position(ctx context.Context) (t *tree, next uint64, err error) {
	if err := m.lockReading(ctx); err != nil {
		return nil, 0, err
	}
	defer func() { <-m.reading }()
	t, _ = m.current()
	return t, m.watched + 1, nil
}

// skip gives up changes up to a revision.
func (m *mirror) skip(ctx context.Context, revision uint64) error {
	if err := m.lockReading(ctx); err != nil {
		return err
	}
	defer func() { <-m.reading }()
	m.watched = max(m.watched, revision)
	return nil
}

// apply applies changes until everything must be read again, which is no error.
func (m *mirror) apply(ctx context.Context, setBack uint64, changes clientv3.WatchChan, idle <-chan time.Time) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-idle:
			if m.isIdle() {
				return errIdle
			}
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

// errIdle ends the following of changes for which no call waits.
var errIdle = fmt.Errorf("%w: nothing was waited for", registry.ErrUnavailable)

func (m *mirror) applyOne(ctx context.Context, setBack uint64, resp clientv3.WatchResponse) (again bool, err error) {
	if err := m.lockReading(ctx); err != nil {
		return false, err
	}
	defer func() { <-m.reading }()
	t, _ := m.current()
	if t.setBack != setBack || resp.Header.ClusterId != t.cluster {
		return true, nil
	}
	for _, e := range resp.Events {
		m.watched = max(m.watched, uint64(e.Kv.ModRevision))
	}
	m.set(t.apply(resp.Events))
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
