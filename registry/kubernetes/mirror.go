package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"strconv"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/replica"
)

// tree is what the API server says about the Nodes, as of one resource version. It is immutable.
type tree struct {
	revision uint64
	nodes    map[string]*node    // by name
	vanished map[string]vanished // by name: Nodes that are not listed, although no deletion was seen
	setBack  uint64              // how often the store was found to have been set back to an earlier state
}

// vanished is a Node as it was last, and when it was first missing.
type vanished struct {
	node  *node
	since time.Time
}

// mirror is the copy of all Nodes.
type mirror struct {
	*replica.Replica[tree]
	conn    *connection
	watched uint64            // the revision up to which changes have been followed; guarded by Lock
	latest  map[string]uint64 // by name, the resource version at which a Node was last seen; guarded by Lock
	listed  uint64            // the revision of the last list; guarded by Lock
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
		Undetected: 2 * keepAliveTime, // until a ping is sent, and until it counts as lost
	})
	return m
}

func (m *mirror) current() *tree {
	t, _ := m.Current()
	return t
}

const nodesPath = "/api/v1/nodes"

// refresh lists all Nodes. Without a resource version, the API server answers with the state in its storage, never an
// older one, and the list is whole because it has no limit.
func (m *mirror) refresh(ctx context.Context) (*tree, error) {
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	defer m.Unlock()
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
			Continue        string `json:"continue"`
		} `json:"metadata"`
		Items []nodeObject `json:"items"`
	}
	if err := m.conn.call(ctx, request{method: "GET", path: nodesPath}, &list); err != nil {
		return nil, wrap(err, "list nodes")
	}
	revision, err := strconv.ParseUint(list.Metadata.ResourceVersion, 10, 64)
	if err != nil || list.Metadata.Continue != "" {
		return nil, fmt.Errorf("list nodes: %w: the list is not whole", registry.ErrUncertain)
	}
	before := m.current()
	now := &tree{revision: revision, nodes: map[string]*node{}, vanished: map[string]vanished{}}
	m.latest, m.listed = map[string]uint64{}, revision
	for _, o := range list.Items {
		n, err := newNode(o, m.conn.names())
		if err != nil {
			return nil, fmt.Errorf("list nodes: %w: %w", registry.ErrUncertain, err)
		}
		m.latest[n.name] = n.modified
		now.nodes[n.name] = n
	}
	now.continueFrom(before, time.Now(), time.Duration(m.conn.settle.Load()))
	if before != nil && now.setBack != before.setBack {
		m.conn.logger.Warn("the store was set back to an earlier state", "revision", now.revision, "before", before.revision)
	}
	switch {
	case before == nil, now.setBack != before.setBack:
		m.watched = now.revision
	case len(now.vanished) == 0: // otherwise earlier changes may tell that a Node was deleted
		m.watched = max(m.watched, now.revision)
	}
	m.Set(now)
	return now, nil
}

// continueFrom completes a list with what is known from before it.
func (t *tree) continueFrom(before *tree, now time.Time, settle time.Duration) {
	if before == nil {
		return
	}
	t.setBack = before.setBack
	if t.revision < before.revision {
		t.setBack++
	}
	for name, old := range before.vanished {
		if t.nodes[name] == nil && now.Sub(old.since) < settle {
			t.vanished[name] = old
		}
	}
	for name, old := range before.nodes {
		switch n := t.nodes[name]; {
		case n == nil:
			t.vanished[name] = vanished{old, now}
		case n.same(old):
			t.nodes[name] = old
		}
	}
}

// apply returns the tree after one change of a Node. latest is the resource version at which each Node was last seen,
// and listed the revision of the last list.
func (t *tree) apply(deleted bool, n *node, latest map[string]uint64, listed uint64) *tree {
	if n.modified <= latest[n.name] || !deleted && n.modified <= listed {
		return t // the list was newer than this change
	}
	latest[n.name] = n.modified
	old := t.nodes[n.name]
	if !deleted && old != nil && n.same(old) {
		return t
	}
	out := *t
	out.revision = max(t.revision, n.modified)
	out.nodes, out.vanished = maps.Clone(t.nodes), maps.Clone(t.vanished)
	delete(out.vanished, n.name)
	if deleted {
		delete(out.nodes, n.name)
	} else {
		out.nodes[n.name] = n
	}
	return &out
}

// run follows the changes until the API server fails.
func (m *mirror) run(ctx context.Context) error {
	for {
		t, from, err := m.position(ctx)
		if err == nil {
			err = m.watch(ctx, t.setBack, from)
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errExpired):
			// The changes are no longer known, or the store was set back.
			now, err := m.refresh(ctx)
			if err == nil {
				err = m.skip(ctx, now.revision)
			}
			if err != nil {
				return err
			}
		case err != nil:
			return err
		}
	}
}

// position returns the current tree, and the revision after which changes are to be followed.
func (m *mirror) position(ctx context.Context) (t *tree, after uint64, err error) {
	if err := m.Lock(ctx); err != nil {
		return nil, 0, err
	}
	defer m.Unlock()
	return m.current(), m.watched, nil
}

// skip gives up changes up to a revision.
func (m *mirror) skip(ctx context.Context, revision uint64) error {
	if err := m.Lock(ctx); err != nil {
		return err
	}
	defer m.Unlock()
	m.watched = revision
	return nil
}

// watch follows the changes with one request. It returns nil when the API server ends it, as it does every half an hour
// or so, and errExpired when the Nodes must be listed again.
func (m *mirror) watch(ctx context.Context, setBack, after uint64) error {
	body, limit, end, err := m.conn.open(ctx, request{method: "GET", path: nodesPath, query: url.Values{
		"watch":               {"true"},
		"resourceVersion":     {strconv.FormatUint(after, 10)},
		"allowWatchBookmarks": {"true"},
	}})
	defer end()
	if err != nil {
		return wrap(err, "watch nodes")
	}
	limit.Stop()
	dec := json.NewDecoder(body)
	for {
		var e struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		switch err := dec.Decode(&e); {
		case err == io.EOF:
			return nil
		case err != nil:
			return wrap(classify(ctx, err), "watch nodes")
		case e.Type == "ERROR":
			var status struct {
				Code int `json:"code"`
			}
			if err := json.Unmarshal(e.Object, &status); err != nil {
				return fmt.Errorf("watch nodes: %w: %w", registry.ErrUnavailable, err)
			}
			return wrap(statusError(status.Code, e.Object), "watch nodes")
		}
		if err := m.applyOne(ctx, setBack, e.Type, e.Object); err != nil {
			return wrap(err, "watch nodes")
		}
	}
}

// applyOne applies one change. It returns errExpired if the tree does not continue the one that the watch began with.
func (m *mirror) applyOne(ctx context.Context, setBack uint64, kind string, object []byte) error {
	var o nodeObject
	if err := json.Unmarshal(object, &o); err != nil {
		return fmt.Errorf("%w: %w", registry.ErrUnavailable, err)
	}
	n, err := newNode(o, m.conn.names())
	if err != nil {
		return fmt.Errorf("%w: %w", registry.ErrUncertain, err)
	}
	if err := m.Lock(ctx); err != nil {
		return err
	}
	defer m.Unlock()
	t := m.current()
	if t.setBack != setBack {
		return errExpired
	}
	m.watched = max(m.watched, n.modified)
	if kind != "BOOKMARK" {
		t = t.apply(kind == "DELETED", n, m.latest, m.listed)
	}
	m.Set(t)
	return nil
}
