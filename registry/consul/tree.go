package consul

import (
	"bytes"
	"context"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// tree is what a client knows of the leases of one network. It decides whether a list
// may be believed: a record that is missing from a list is given up only when
// the tree is known to be the same one and to have gone on from where it was.
type tree struct {
	prefix string // with its last slash

	// turn is taken by whoever reads or changes what follows. Lists are read
	// within a turn, so an index that is lower than the last one is the
	// store's doing.
	turn chan struct{}

	version uint64                 // what callers get as index, 0 before the first list
	index   uint64                 // Consul's index of what is known
	listed  uint64                 // Consul's index of the last list
	marker  uint64                 // CreateIndex of the marker, 0 when there was none
	known   map[string]*api.KVPair // the records behind version, kept ones included
	kept    map[string]keptRecord  // records that the store lost when it was emptied or set back
	made    uint64                 // how often the store re-created the tree
	touched map[string]bool        // keys that changed since the view was made

	// The leases are watched through their directory of changes.
	dir      *directory
	restored bool              // the directory shows that the store was set back
	careful  bool              // what the next list lacks may have been lost, although nothing else tells
	setBack  uint64            // how often the tree was renewed
	told     map[string]uint64 // by subnet, the last change the directory told of when the tree was read
	failed   atomic.Bool       // the last call ended with an error; also outside a turn
	seen     atomic.Int64      // when Consul last said with certainty what there is, Unix nanoseconds; also outside a turn
	calm     time.Time         // before then nobody asks for changes again
	audit    time.Time         // when the tree is to be compared with what is known
	lame     int               // how often the directory could not be followed at all

	view view // has a lock of its own

	// Under the client's mutex.
	users int       // calls in progress
	idle  time.Time // when the last one ended
}

// keptRecord is what is known of a record that the store has lost. The record itself
// has ModifyIndex 0 once the tree was re-created, so its index is kept here.
type keptRecord struct {
	until    time.Time // it stays until then
	made     uint64    // the tree's made when the record was stored
	index    uint64    // its ModifyIndex then
	replaced bool      // its host has written another one since
}

func newTree(prefix string, dir *directory) *tree {
	return &tree{prefix: prefix, dir: dir, turn: make(chan struct{}, 1),
		known: map[string]*api.KVPair{}, kept: map[string]keptRecord{}, touched: map[string]bool{}}
}

// idleTree is how long what is known of a network's leases is kept after the last
// call about them: longer than an agent is between two of them.
const idleTree = 10 * time.Minute

// useTree returns what is known of a network's leases, shared by all clients of one
// New, and a function for the end of its use.
func (s *shared) useTree(network string) (t *tree, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.trees[network]
	if !ok {
		t = newTree(s.layout.leases(network), &directory{prefix: s.layout.changes(network), entries: map[string]entry{}})
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

// forget drops networks that have not been used for idleTree, and comes back for those
// that nobody uses just now.
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

// Forget implements registry.Follower. Calls in progress go on with what they know.
func (c *Client) Forget(network string) {
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
// directory tells of a later change. In a tree made anew whoever writes is at
// work now; indexes of before, which cannot be compared, are 0 there.
func (t *tree) lost(l list, key string) bool {
	old, now := t.known[key], l.pairs[key]
	if t.told[lastComponent(key)] > old.ModifyIndex {
		return false
	}
	return now == nil || (l.marker == t.marker && now.ModifyIndex < old.ModifyIndex && !bytes.Equal(now.Value, old.Value))
}

// renewed says that the list may be of a tree that was emptied and written anew,
// or set back to an earlier state. The index alone does not prove that: a
// deletion raises it, and 15 minutes later it falls again.
func (t *tree) renewed(l list) bool {
	return l.marker != t.marker || l.index < t.index || t.restored || t.careful
}

// doubtful says whether a list needs the confirmation of a second, consistent
// read and of a read of the marker alone.
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

// accept makes a list that is certain the known state.
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

// apply makes what entries of the directory tell the known state.
func (t *tree) apply(news []change) {
	advanced := false
	for _, ch := range news {
		key := t.prefix + ch.subnet
		old := t.known[key]
		_, kept := t.kept[key]
		switch {
		case old != nil && ch.index <= old.ModifyIndex, !kept && ch.index <= t.listed:
			continue // the list was read after that
		case kept && len(ch.value) == 0 && ch.flags&flagFound != 0:
			continue // that it is missing is known, and why is in doubt
		}
		if ch.flags&flagFound == 0 {
			t.index = max(t.index, ch.index)
		}
		if kept {
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
		pair := &api.KVPair{Key: key, Value: bytes.Clone(ch.value), Session: registry.UnknownSession, CreateIndex: ch.index, ModifyIndex: ch.index}
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
	for _, kept := range t.kept {
		if first.IsZero() || kept.until.Before(first) {
			first = kept.until
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
