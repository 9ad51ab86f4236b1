package consul

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
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
	digest  uint64                 // of the records behind version
	index   uint64                 // Consul's index of the last list
	wait    uint64                 // index to block on
	marker  uint64                 // CreateIndex of the marker, 0 when there was none
	known   map[string]*api.KVPair // the records behind version, kept ones included
	kept    map[string]time.Time   // records missing from a tree made anew, and until when they stay
	seed    maphash.Seed

	parsed parsed // has a lock of its own
}

func newTree(prefix string, strict bool) *tree {
	return &tree{prefix: prefix, strict: strict, turn: make(chan struct{}, 1),
		known: map[string]*api.KVPair{}, kept: map[string]time.Time{}, seed: maphash.MakeSeed()}
}

// tree returns what is known of a prefix, shared by all clients of one New.
func (s *shared) tree(prefix string) *tree {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.trees[prefix]
	if !ok {
		t = newTree(prefix, prefix == s.layout.networks())
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

// content is one answer a caller may trust.
type content struct {
	pairs   []*api.KVPair // sorted by key, without the marker
	kept    map[string]bool
	version uint64
}

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

// renewed says that the list is of a tree that was emptied and written anew, or
// set back to an earlier state. A real deletion always raises the index.
func (t *tree) renewed(l list) bool {
	return l.marker != t.marker || l.index < t.index
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

// refresh reads the tree and decides what is true. notified is the index a
// blocking query gave, 0 for none.
func (c *Client) refresh(ctx context.Context, t *tree, notified uint64) (content, error) {
	if err := t.begin(ctx); err != nil {
		return content{}, err
	}
	defer t.end()
	l, err := c.readTree(ctx, t, false)
	if err == nil && t.doubtful(l) {
		l, err = c.confirm(ctx, t)
	}
	if err != nil {
		c.doubts.add(t.prefix)
		return content{}, err
	}
	return t.accept(l, notified, time.Now().Add(c.conf.Settle)), nil
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
func (t *tree) accept(l list, notified uint64, until time.Time) content {
	first := t.version == 0
	if !first && t.renewed(l) {
		for _, key := range t.gone(l.pairs) {
			t.kept[key] = until
		}
	}
	now := time.Now()
	for key, until := range t.kept {
		switch {
		case l.pairs[key] != nil || !now.Before(until):
			delete(t.kept, key)
		default:
			l.pairs[key] = t.known[key]
		}
	}
	t.known, t.marker, t.index = l.pairs, l.marker, l.index
	// The prefix without its slash sees at least every change of the tree, and
	// changes of its siblings too.
	t.wait = max(l.index, notified)
	out := content{kept: make(map[string]bool, len(t.kept))}
	for _, key := range slices.Sorted(maps.Keys(t.known)) {
		out.pairs = append(out.pairs, t.known[key])
	}
	for key := range t.kept {
		out.kept[key] = true
	}
	if digest := t.sum(out); first || digest != t.digest {
		// Never the same index for other content, whatever a restore does to
		// Consul's.
		t.digest, t.version = digest, max(l.index, t.version+1)
	}
	out.version = t.version
	return out
}

// sum tells contents apart. Indexes alone would not do: a rebuilt Consul counts
// from the start.
func (t *tree) sum(c content) uint64 {
	var h maphash.Hash
	h.SetSeed(t.seed)
	var n [8]byte
	for _, p := range c.pairs {
		binary.BigEndian.PutUint64(n[:], p.ModifyIndex)
		for _, part := range [][]byte{[]byte(p.Key), p.Value, []byte(p.Session), n[:]} {
			_, _ = h.Write(part)
			_ = h.WriteByte(0)
		}
	}
	return h.Sum64()
}

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

// watch blocks until the tree's version differs from after.
func (c *Client) watch(ctx context.Context, t *tree, after uint64) (content, error) {
	var notified uint64
	for {
		if err := t.begin(ctx); err != nil {
			return content{}, err
		}
		version, wait, marked, settled := t.version, t.wait, t.marker != 0, t.settled()
		t.end()

		if after > 0 && after == version {
			index, err := c.notify(ctx, t, wait, marked, settled)
			if err != nil {
				return content{}, err
			}
			notified = index
		}
		out, err := c.refresh(ctx, t, notified)
		if err != nil {
			return content{}, err
		}
		if after == 0 || out.version != after {
			return out, nil
		}
	}
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
