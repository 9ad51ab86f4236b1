package consul

import (
	"bytes"
	"context"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/changelog"
)

// tree is a client's knowledge of the leases of one network. It decides whether to believe a list: a record that is
// missing from a list is given up only when the tree is known to be the same one and to have continued from its last
// known state.
type tree struct {
	prefix string // with a trailing slash

	// turn must be held to read or change the fields below. Lists are read within a turn, so an index lower than the
	// last one is caused by the store.
	turn chan struct{}

	version uint64                 // the index that callers get, 0 before the first list
	index   uint64                 // Consul's index of the known state
	listed  uint64                 // Consul's index of the last list
	marker  uint64                 // CreateIndex of the marker, 0 when there was none
	known   map[string]*api.KVPair // the records of version, including kept ones
	kept    map[string]keptRecord  // records that the store lost when it was emptied or set back
	made    uint64                 // how often the store re-created the tree
	touched map[string]bool        // keys that changed since the view was last updated

	// The leases are watched through their directory of changes.
	cursor   changelog.Cursor
	restored bool              // the directory shows that the store was set back
	careful  bool              // records missing from the next list may have been lost, without any other sign
	setBack  uint64            // how often the tree was re-created or set back
	told     map[string]uint64 // by subnet, the last change in the directory when the tree was read
	failed   atomic.Bool       // the last call returned an error; also used outside a turn
	seen     atomic.Int64      // when Consul last confirmed the known state, Unix nanoseconds; also used outside a turn
	calm     time.Time         // no call asks for changes before this time
	audit    time.Time         // when to compare the tree with the known state
	lame     int               // how often in a row the directory could not be followed at all

	view view // has its own lock

	// Under the client's mutex.
	users int       // calls in progress
	idle  time.Time // when the last one ended
}

// keptRecord describes a record that the store has lost. The record itself has ModifyIndex 0 once the tree was
// re-created, so its index is kept here.
type keptRecord struct {
	until    time.Time // the record is kept until then
	made     uint64    // the value of the tree's made when the record was stored
	index    uint64    // its ModifyIndex then
	replaced bool      // its host has written another one since
}

func newTree(prefix string, cursor changelog.Cursor) *tree {
	return &tree{prefix: prefix, cursor: cursor, turn: make(chan struct{}, 1),
		known: map[string]*api.KVPair{}, kept: map[string]keptRecord{}, touched: map[string]bool{}}
}

// idleTree is how long the knowledge of a network's leases is kept after the last call about them. It is longer than
// the time between two calls of an agent.
const idleTree = 10 * time.Minute

// useTree returns the tree of a network, which is shared by all clients of one New, and a function to call at the end
// of its use.
func (s *shared) useTree(network string) (t *tree, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.trees[network]
	if !ok {
		t = newTree(s.layout.leases(network), changelog.NewCursor(s.layout.changes(network)))
		s.trees[network] = t
	}
	t.users++
	return t, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		t.users--
		t.idle = time.Now()
		if s.forgets == nil {
			s.forgets = time.AfterFunc(s.conf.idle, s.forget)
		}
	}
}

// forget drops networks that have not been used for idleTree. It runs again as long as there are networks that are not
// in use.
func (s *shared) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	unused := 0
	for name, t := range s.trees {
		switch {
		case t.users > 0:
		case time.Since(t.idle) < s.conf.idle:
			unused++
		default:
			delete(s.trees, name)
			s.clock.Forget(name)
		}
	}
	if unused == 0 {
		s.forgets = nil // the next end of a use sets it
		return
	}
	s.forgets.Reset(s.conf.idle)
}

// Forget implements registry.Follower. Calls in progress continue with what they know.
func (c *Client) Forget(network string) {
	c.lost.Forget(network)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.trees, network)
	c.clock.Forget(network)
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

// list is Consul's answer to one read of the whole tree.
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

// gone returns the known records that a list lacks, except those that are already kept.
func (t *tree) gone(pairs map[string]*api.KVPair) []string {
	var out []string
	for key := range t.known {
		if _, kept := t.kept[key]; pairs[key] == nil && !kept {
			out = append(out, key)
		}
	}
	return out
}

// lost reports whether a list lacks a known record, or has an older one in its place, from the time when a snapshot was
// saved. A record with a later change in the directory is not lost. In a re-created tree every writer is running now;
// earlier indexes, which cannot be compared, are 0 there.
func (t *tree) lost(l list, key string) bool {
	old, now := t.known[key], l.pairs[key]
	if t.told[lastComponent(key)] > old.ModifyIndex {
		return false
	}
	return now == nil || (l.marker == t.marker && now.ModifyIndex < old.ModifyIndex && !bytes.Equal(now.Value, old.Value))
}

// renewed reports whether the list may be of a tree that was emptied and written again, or set back to an earlier
// state. The index alone does not prove that: a deletion raises it, and 15 minutes later it falls again.
func (t *tree) renewed(l list) bool {
	return l.marker != t.marker || l.index < t.index || t.restored || t.careful
}

// doubtful reports whether a list must be confirmed by a second, consistent read and by a read of the marker alone.
func (t *tree) doubtful(l list) bool {
	if l.marker == 0 {
		return true
	}
	gone := len(t.gone(l.pairs))
	if gone == 0 {
		return false
	}
	before := len(t.known) - len(t.kept)
	return t.renewed(l) || 2*(before-gone) < before
}

// accept makes a confirmed list the known state.
func (t *tree) accept(l list, until time.Time) {
	first := t.version == 0
	news := first
	if !first && t.renewed(l) {
		if l.marker != t.marker || t.restored {
			t.setBack, news = t.setBack+1, true
		}
		for key := range t.known {
			if _, kept := t.kept[key]; !kept && t.lost(l, key) {
				t.kept[key] = keptRecord{until: until, made: t.made, index: t.known[key].ModifyIndex}
				t.touched[key] = true
			}
		}
		if l.marker != t.marker {
			t.made++
			for key := range t.kept {
				pair := *t.known[key]
				pair.ModifyIndex = 0
				t.known[key] = &pair
			}
		}
	}
	now := time.Now()
	for key, kept := range t.kept {
		if t.lost(l, key) && now.Before(kept.until) {
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
	t.known, t.marker, t.index, t.listed, t.restored, t.careful = l.pairs, l.marker, l.index, l.index, false, false
	if news {
		t.advance()
	}
}

// apply applies entries of the directory to the known state.
func (t *tree) apply(changes []changelog.Change) {
	advanced := false
	for _, ch := range changes {
		key := t.prefix + ch.Subnet
		old := t.known[key]
		_, kept := t.kept[key]
		switch {
		case old != nil && ch.Index <= old.ModifyIndex, !kept && ch.Index <= t.listed:
			continue // the list was read after that change
		case kept && ch.IsRemoval() && ch.Has(changelog.FlagManual):
			continue // the record is known to be missing, but the reason is in doubt
		}
		if !ch.Has(changelog.FlagManual) {
			t.index = max(t.index, ch.Index)
		}
		if kept {
			delete(t.kept, key)
			t.touched[key] = true
		}
		if ch.IsRemoval() {
			if old != nil {
				delete(t.known, key)
				t.touched[key], advanced = true, true
			}
			continue
		}
		pair := &api.KVPair{Key: key, Value: bytes.Clone(ch.Value), Session: registry.UnknownSession, CreateIndex: ch.Index, ModifyIndex: ch.Index}
		if ch.Has(changelog.FlagUnheld) {
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

// compare reports whether a record was touched, and whether callers see a difference. They see none when only the
// session changes, or when the record is written again with the same value.
func compare(old, now *api.KVPair) (touched, differs bool) {
	if old == nil || old.CreateIndex != now.CreateIndex || !bytes.Equal(old.Value, now.Value) || (old.Session == "") != (now.Session == "") {
		return true, true
	}
	return old.ModifyIndex != now.ModifyIndex || old.Session != now.Session, false
}

// advance assigns an index to the known state. The index is never reused for other content, whatever a restore does to
// Consul's index.
func (t *tree) advance() { t.version = max(t.index, t.version+1) }

// settled returns when the first kept record may be given up, or the zero time when there is none.
func (t *tree) settled() time.Time {
	var first time.Time
	for _, kept := range t.kept {
		if first.IsZero() || kept.until.Before(first) {
			first = kept.until
		}
	}
	return first
}

// missing returns the records that were known and are not in pairs, although they are not known to have been deleted:
// their hosts may be about to write them again. It is empty while the tree is intact.
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
