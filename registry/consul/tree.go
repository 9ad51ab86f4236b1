package consul

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// tree is what a client knows of one watched prefix. It decides whether a list
// may be believed: a record that is missing from a list is given up only when
// the tree is known to be the same one and to have gone on from where it was.
type tree struct {
	prefix string // with its last slash
	// strict asks for confirmation of every missing record; otherwise only of
	// more than half of them at once.
	strict bool

	// turn is taken by whoever reads or changes what follows. Lists are read
	// within a turn, so an index that is lower than the last one is the
	// store's doing.
	turn chan struct{}

	version uint64                 // what callers get as index, 0 before the first list
	index   uint64                 // Consul's index of what is known
	listed  uint64                 // Consul's index of the last list
	wait    uint64                 // index to block on
	marker  uint64                 // CreateIndex of the marker, 0 when there was none
	known   map[string]*api.KVPair // the records behind version, kept ones included
	kept    map[string]time.Time   // records a tree made anew or set back lost, and until when they stay
	touched map[string]bool        // keys that changed since the view was made

	// Of leases only, which are watched through their directory of changes.
	dir      *directory
	restored bool              // the directory shows that the store was set back
	told     map[string]uint64 // by subnet, the last change the directory told of when the tree was read
	failed   atomic.Bool       // the last call ended with an error; also outside a turn
	calm     time.Time         // before then nobody asks for changes again
	audit    time.Time         // when the tree is to be compared with what is known
	lame     int               // how often the directory could not be followed at all

	view view // has a lock of its own
}

func newTree(prefix string, strict bool) *tree {
	return &tree{prefix: prefix, strict: strict, turn: make(chan struct{}, 1),
		known: map[string]*api.KVPair{}, kept: map[string]time.Time{}, touched: map[string]bool{}}
}

// networksTree and leasesTree return what is known of a prefix, shared by all
// clients of one New.
func (s *shared) networksTree() *tree {
	prefix := s.layout.networks()
	return s.tree(prefix, func() *tree { return newTree(prefix, true) })
}

func (s *shared) leasesTree(network string) *tree {
	prefix := s.layout.leases(network)
	return s.tree(prefix, func() *tree {
		t := newTree(prefix, false)
		t.dir = &directory{prefix: s.layout.changes(network), entries: map[string]entry{}}
		return t
	})
}

func (s *shared) tree(prefix string, make func() *tree) *tree {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.trees[prefix]
	if !ok {
		t = make()
		s.trees[prefix] = t
	}
	return t
}

func (t *tree) begin(ctx context.Context) error {
	select {
	case t.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *tree) end() { <-t.turn }

// list is one answer of Consul to a read of the whole tree.
type list struct {
	pairs  map[string]*api.KVPair // without the marker
	marker uint64                 // CreateIndex, 0 when it is missing
	index  uint64
}

func (t *tree) newList(pairs api.KVPairs, index uint64) list {
	l := list{pairs: make(map[string]*api.KVPair, len(pairs)), index: index}
	for _, p := range pairs {
		if p.Key == t.prefix+markerName {
			l.marker = p.CreateIndex
		} else {
			l.pairs[p.Key] = p
		}
	}
	return l
}

// gone is the known records that a list lacks, but for those kept already.
func (t *tree) gone(pairs map[string]*api.KVPair) []string {
	var out []string
	for key := range t.known {
		if _, kept := t.kept[key]; pairs[key] == nil && !kept {
			out = append(out, key)
		}
	}
	return out
}

// lost says of a known record that a list does not have it, or an older one in
// its place: what stood there when a snapshot was saved. It is not lost when the
// directory tells of a later change. In a tree made anew
// indexes cannot be compared, and whoever writes there is at work now.
func (t *tree) lost(l list, key string) bool {
	old, now := t.known[key], l.pairs[key]
	if t.told[lastComponent(key)] > old.ModifyIndex {
		return false
	}
	return now == nil || (l.marker == t.marker && now.ModifyIndex < old.ModifyIndex && !bytes.Equal(now.Value, old.Value))
}

// renewed says that the list is of a tree that was emptied and written anew, or
// set back to an earlier state. A real deletion always raises the index.
func (t *tree) renewed(l list) bool {
	return l.marker != t.marker || l.index < t.index || t.restored
}

// doubtful says whether a list needs the confirmation of a second, consistent
// read and of a read of the marker alone.
func (t *tree) doubtful(l list) bool {
	if l.marker == 0 && (t.version == 0 || !t.strict) {
		return true
	}
	gone := len(t.gone(l.pairs))
	if gone == 0 {
		return false
	}
	before := len(t.known) - len(t.kept)
	return t.strict || t.renewed(l) || 2*(before-gone) < before
}

// relist reads the tree and decides what is true, within a turn. notified is
// the index a blocking query gave, 0 for none.
func (c *Client) relist(ctx context.Context, t *tree, notified uint64) error {
	var changes reading
	if t.dir != nil {
		var err error
		// Before the list, which so shows whatever these say.
		if changes, err = c.readMarks(ctx, t.dir, t.restored); err != nil {
			return err
		}
		t.told = changes.last(t.dir.prefix)
	}
	l, err := c.readTree(ctx, t, false)
	if err == nil && t.doubtful(l) {
		l, err = c.confirm(ctx, t)
	}
	if err != nil {
		return err
	}
	t.accept(l, notified, time.Now().Add(c.conf.Settle))
	if t.dir != nil {
		t.dir.adopt(changes, time.Now())
	}
	return nil
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
	if marker == nil && l.marker == 0 && len(l.pairs) > 0 && !t.strict {
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
	case t.strict && t.marker == 0 && (len(t.known) == 0 || len(l.pairs) > 0):
		// Definitions written by other means than leno have no marker.
		return l, nil
	case len(l.pairs) > 0 && len(t.gone(l.pairs)) == 0:
		return l, nil
	default:
		return list{}, uncertain("%s is missing: the store was emptied or restored", key)
	}
}

// accept makes a list that is certain the known state.
func (t *tree) accept(l list, notified uint64, until time.Time) {
	first := t.version == 0
	news := first
	if !first && t.renewed(l) {
		for key := range t.known {
			if _, kept := t.kept[key]; !kept && t.lost(l, key) {
				t.kept[key], t.touched[key] = until, true
			}
		}
	}
	now := time.Now()
	for key, until := range t.kept {
		if t.lost(l, key) && now.Before(until) {
			l.pairs[key] = t.known[key]
			continue
		}
		delete(t.kept, key)
		t.touched[key] = true
	}
	for key := range t.known {
		if l.pairs[key] == nil {
			t.touched[key], news = true, true
		}
	}
	for key, pair := range l.pairs {
		touched, differs := compare(t.known[key], pair)
		if touched {
			t.touched[key] = true
		}
		news = news || differs
	}
	t.known, t.marker, t.index, t.listed, t.restored = l.pairs, l.marker, l.index, l.index, false
	// The prefix without its slash sees at least every change of the tree, and
	// changes of its siblings too.
	t.wait = max(l.index, notified)
	if news {
		t.advance()
	}
}

// apply makes what entries of the directory tell the known state.
func (t *tree) apply(news []change) {
	advanced := false
	for _, ch := range news {
		key := t.prefix + ch.subnet
		old := t.known[key]
		if ch.index <= t.listed || (old != nil && ch.index <= old.ModifyIndex) {
			continue // the list was read after that
		}
		if ch.flags&flagFound == 0 {
			t.index = max(t.index, ch.index)
		}
		if _, kept := t.kept[key]; kept {
			delete(t.kept, key)
			t.touched[key] = true
		}
		if len(ch.value) == 0 {
			if old != nil {
				delete(t.known, key)
				t.touched[key], advanced = true, true
			}
			continue
		}
		pair := &api.KVPair{Key: key, Value: ch.value, Session: registry.UnknownSession, CreateIndex: ch.index, ModifyIndex: ch.index}
		if ch.flags&flagUnheld != 0 {
			pair.Session = ""
		}
		if old != nil {
			pair.CreateIndex = old.CreateIndex
		}
		_, differs := compare(old, pair)
		advanced = advanced || differs
		t.known[key], t.touched[key] = pair, true
	}
	if advanced {
		t.advance()
	}
}

// compare says whether a record is not as it was, and whether that is news for
// callers: which session holds a lease is not, nor when it was written again
// with the same value.
func compare(old, now *api.KVPair) (touched, differs bool) {
	if old == nil || old.CreateIndex != now.CreateIndex || !bytes.Equal(old.Value, now.Value) || (old.Session == "") != (now.Session == "") {
		return true, true
	}
	return old.ModifyIndex != now.ModifyIndex || old.Session != now.Session, false
}

// advance gives the known state an index: never the same for other content,
// whatever a restore does to Consul's.
func (t *tree) advance() { t.version = max(t.index, t.version+1) }

// settled is when the first kept record may be given up; the zero time when
// there is none.
func (t *tree) settled() time.Time {
	var first time.Time
	for _, until := range t.kept {
		if first.IsZero() || until.Before(first) {
			first = until
		}
	}
	return first
}

// missing is the records that were known and are not in pairs although nobody
// is known to have deleted them: their hosts may be about to write them again.
// It is empty while the tree is as it should be.
func (t *tree) missing(ctx context.Context, pairs api.KVPairs) ([]*api.KVPair, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	defer t.end()
	l := t.newList(pairs, t.index)
	var out []*api.KVPair
	for key, pair := range t.known {
		_, kept := t.kept[key]
		if l.pairs[key] == nil && (kept || t.renewed(l)) {
			out = append(out, pair)
		}
	}
	return out, nil
}

// watch blocks until the tree's version differs from after, and calls use
// within the turn. after 0 reads the tree anew.
func (c *Client) watch(ctx context.Context, t *tree, after uint64, use func()) error {
	recovering := false
	for looked := false; ; looked = true {
		if err := t.begin(ctx); err != nil {
			return err
		}
		if !looked {
			recovering = t.failed.Load() && t.dir != nil
		}
		var err error
		anew := after == 0 || t.version == 0
		if anew {
			err = c.relist(ctx, t, 0)
		}
		if err == nil && (anew || t.version != after || (looked && recovering)) {
			t.failed.Store(false)
			use()
			t.end()
			return nil
		}
		t.end()
		if err == nil {
			err = c.next(ctx, t)
		}
		if err != nil && ctx.Err() == nil {
			// The next call looks at once, and tells even of no change.
			c.doubts.add(t.prefix)
			t.failed.Store(true)
		}
		if err != nil {
			return err
		}
	}
}

// next blocks until the tree was looked at again for some reason.
func (c *Client) next(ctx context.Context, t *tree) error {
	if t.dir != nil {
		return c.follow(ctx, t)
	}
	if err := t.begin(ctx); err != nil {
		return err
	}
	wait, marked, settled := t.wait, t.marker != 0, t.settled()
	t.end()
	notified, err := c.notify(ctx, t, wait, marked, settled)
	if err != nil {
		return err
	}
	if err := t.begin(ctx); err != nil {
		return err
	}
	defer t.end()
	return c.relist(ctx, t, notified)
}

// notify blocks until the tree needs another look, and then for a random time
// in which more changes may come. It asks for the names directly below the
// prefix without its slash: about 30 bytes however large the tree is.
func (c *Client) notify(ctx context.Context, t *tree, wait uint64, marked bool, settled time.Time) (uint64, error) {
	for {
		r := read{index: wait, wait: c.conf.Wait}
		if !settled.IsZero() {
			r.wait = min(r.wait, max(time.Until(settled), time.Millisecond))
		}
		if c.doubts.about(t.prefix) {
			r = read{}
		}
		start := time.Now()
		index, there, err := c.names(ctx, t.prefix, r)
		if err != nil {
			c.doubts.add(t.prefix)
			return 0, err
		}
		c.doubts.clear(t.prefix)
		switch {
		case !settled.IsZero() && !time.Now().Before(settled):
			return index, nil
		case index != wait || (marked && !there):
			return index, pause(ctx, jitter(c.conf.Coalesce))
		}
		if err := c.noNews(ctx, t.prefix, r, start); err != nil {
			return 0, err
		}
	}
}

// names reads the index of a tree and whether there is anything in it.
func (c *Client) names(ctx context.Context, prefix string, r read) (index uint64, there bool, err error) {
	opts, cancel := c.query(ctx, r)
	defer cancel()
	keys, meta, err := c.api.KV().Keys(strings.TrimSuffix(prefix, "/"), "/", opts)
	if err != nil {
		return 0, false, fmt.Errorf("watch %s: %w", prefix, classify(err))
	}
	if !meta.KnownLeader {
		return 0, false, fmt.Errorf("watch %s: %w", prefix, uncertain("consul knows no leader"))
	}
	return meta.LastIndex, slices.Contains(keys, prefix), nil
}
