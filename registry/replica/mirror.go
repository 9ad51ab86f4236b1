package replica

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/singleflight"

	"github.com/lenonet/leno/registry"
)

// ErrOutdated means that everything must be read again: changes are no longer known, or the store was set back.
var ErrOutdated = errors.New("the changes are no longer known")

// Source is a store that a Mirror copies.
type Source[R Record[R]] interface {
	// List reads all records.
	List(ctx context.Context) (*Tree[R], error)
	// Watch calls apply with all changes after a revision, until it fails or ctx ends. cluster is as in Tree. The error is
	// that of apply, or ErrOutdated, or that of the store; nil if the store has ended the watch without a reason.
	Watch(ctx context.Context, after uint64, apply func(cluster uint64, changes ...Change[R]) error) error
}

// Mirror is a Replica of all records of a store.
type Mirror[R Record[R]] struct {
	*Replica[Tree[R]]
	source   Source[R]
	logger   hclog.Logger
	watched  uint64          // the revision up to which changes have been followed; guarded by Lock
	ctx      context.Context // of readings
	stop     context.CancelFunc
	readings singleflight.Group
}

// NewMirror returns a mirror that has no copy yet. undetected is as in Options.
func NewMirror[R Record[R]](source Source[R], idle, undetected time.Duration, logger hclog.Logger) *Mirror[R] {
	m := &Mirror[R]{source: source, logger: logger}
	m.ctx, m.stop = context.WithCancel(context.Background())
	m.Replica = New[Tree[R]](Options{
		Refresh: func(ctx context.Context) error {
			_, err := m.Refresh(ctx)
			return err
		},
		Follow:     m.follow,
		Idle:       idle,
		Undetected: undetected,
	})
	return m
}

// Refresh reads everything and returns it. All callers share a reading that has not begun when they call. It goes on
// when they give up, and the changes are followed after it: their next call then finds what it has read. With
// Options.Idle 0, a reading belongs to its caller.
func (m *Mirror[R]) Refresh(ctx context.Context) (*Tree[R], error) {
	if m.Idle == 0 {
		return m.read(ctx)
	}
	reading := m.readings.DoChan("", func() (any, error) {
		t, err := m.read(m.ctx)
		if m.ctx.Err() != nil {
			err = ErrClosed
		}
		return t, err
	})
	select {
	case r := <-reading:
		return r.Val.(*Tree[R]), r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (m *Mirror[R]) read(ctx context.Context) (*Tree[R], error) {
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	defer m.Unlock()
	m.readings.Forget("") // this one begins now
	now, err := m.source.List(ctx)
	if err != nil {
		return nil, err
	}
	before, _ := m.Current()
	if before != nil {
		now.continueFrom(before, time.Now())
	}
	switch {
	case before == nil, now.SetBack != before.SetBack:
		m.watched = now.Revision
	case len(now.Vanished) == 0: // otherwise earlier changes may tell that a record was deleted
		m.watched = max(m.watched, now.Revision)
	}
	if before != nil && now.SetBack != before.SetBack {
		m.logger.Warn("the store was set back to an earlier state", "revision", now.Revision, "before", before.Revision)
	}
	m.Set(now)
	if m.Idle > 0 {
		if release, err := m.Use(); err == nil {
			release()
		}
	}
	return now, nil
}

// shortWatch is how long a watch lasts at least. After one that ended earlier, there is a pause of up to that time:
// some proxies, and servers that are stopping, end each watch at once.
const shortWatch = time.Second

// follow follows the changes until the store fails.
func (m *Mirror[R]) follow(ctx context.Context) error {
	for {
		began := time.Now()
		from, after, err := m.position(ctx)
		if err == nil {
			err = m.source.Watch(ctx, after, func(cluster uint64, changes ...Change[R]) error {
				return m.apply(ctx, from.SetBack, cluster, changes)
			})
		}
		if errors.Is(err, ErrOutdated) {
			err = m.skip(ctx)
		}
		if err == nil && time.Since(began) < shortWatch {
			err = registry.Sleep(ctx, shortWatch/2+rand.N(shortWatch/2))
		}
		if err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// skip reads everything, and gives up the changes before that.
func (m *Mirror[R]) skip(ctx context.Context) error {
	now, err := m.Refresh(ctx)
	if err != nil {
		return err
	}
	if err := m.Lock(ctx); err != nil {
		return err
	}
	defer m.Unlock()
	if t, _ := m.Current(); t.SetBack == now.SetBack {
		m.watched = max(m.watched, now.Revision)
	}
	return nil
}

// position returns the copy, and the revision after which changes are to be followed.
func (m *Mirror[R]) position(ctx context.Context) (t *Tree[R], after uint64, err error) {
	if err := m.Lock(ctx); err != nil {
		return nil, 0, err
	}
	defer m.Unlock()
	t, _ = m.Current()
	return t, m.watched, nil
}

// apply applies changes to the copy. It returns ErrOutdated if the copy is not the continuation of one that was set
// back so often.
func (m *Mirror[R]) apply(ctx context.Context, setBack, cluster uint64, changes []Change[R]) error {
	if err := m.Lock(ctx); err != nil {
		return err
	}
	defer m.Unlock()
	t, _ := m.Current()
	if t.SetBack != setBack || t.Cluster != cluster {
		return ErrOutdated
	}
	for _, c := range changes {
		m.watched = max(m.watched, c.Revision)
	}
	m.Set(t.Apply(changes...))
	return nil
}

// Close ends readings and the following of changes for good, and blocks until they have ended.
func (m *Mirror[R]) Close() {
	m.stop()
	m.Stop()
	if m.Lock(context.Background()) == nil {
		m.Unlock()
	}
}
