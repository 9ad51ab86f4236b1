package replica

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
)

// LeaseReader finds the leases of one network in a tree. S is what the record of a lease is parsed from.
type LeaseReader[R Record[R], S comparable] interface {
	Sources(t *Tree[R]) []S
	Parse(S) *belief.Record
	// Complete adds what else the tree says about the leases to a list of all parsed records. It returns an ErrUncertain
	// if the tree does not say what became of leases that b knows.
	Complete(t *Tree[R], l *belief.List, b *belief.Belief) error
}

// Leases is what a client believes the leases of one network to be. The zero value is ready. Leases is safe for
// concurrent use.
type Leases[R Record[R], S comparable] struct {
	Answers // of Watch

	mu      sync.Mutex
	network registry.Network // with whose plan and backends the records were parsed
	parsed  map[S]*belief.Record
	belief  belief.Belief
	setBack uint64 // that of the last tree

	tree      *Tree[R]          // the one that was compared last, nil for none
	set       registry.LeaseSet // of tree
	notBefore time.Time         // when callers that wait for changes compare another one
}

// Between two comparisons of all leases for callers that wait for changes there is a pause, so that many changes at
// once cost few of them, and at most a tenth of the time. The first change after a quiet time does not wait.
const (
	ComparePause = 100 * time.Millisecond // at least
	perComparing = 9                      // times the duration of the comparison
	longestPause = 2 * time.Second
)

// Watch blocks until the index of the leases of network n differs from after: see registry.Leases.
func (v *Leases[R, S]) Watch(
	ctx context.Context, m *Mirror[R], n registry.Network, after uint64, reader LeaseReader[R, S], o belief.Options,
) (set registry.LeaseSet, index uint64, err error) {
	from := after
	if v.Owed() {
		from = 0
	}
	var uncertain error
	err = m.Await(ctx, from == 0, func(t *Tree[R]) (bool, time.Time) {
		due := v.pauseBefore(t)
		if !due.IsZero() && from != 0 && from != registry.Known {
			return false, due
		}
		set, index, due, uncertain = v.Compare(t, n, reader, o)
		return uncertain != nil || index != from, due
	})
	if err == nil {
		err = uncertain
	}
	if ctx.Err() == nil || err == nil {
		v.Ended(after, err, m.LastConfirmed())
	}
	if err != nil {
		return registry.LeaseSet{}, 0, err
	}
	return set, index, nil
}

// pauseBefore returns the time before which t should not be compared, zero for none.
func (v *Leases[R, S]) pauseBefore(t *Tree[R]) (end time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t != v.tree && time.Now().Before(v.notBefore) {
		end = v.notBefore
	}
	return end
}

// Compare returns what to believe of the leases of network n when t is what the store says, the index of that, and when
// the first missing record will be given up. The error is that of LeaseReader.Complete.
func (v *Leases[R, S]) Compare(t *Tree[R], n registry.Network, reader LeaseReader[R, S], o belief.Options) (
	set registry.LeaseSet, index uint64, again time.Time, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.compareLocked(t, n, reader, o)
}

func (v *Leases[R, S]) compareLocked(t *Tree[R], n registry.Network, reader LeaseReader[R, S], o belief.Options) (
	set registry.LeaseSet, index uint64, again time.Time, err error) {
	if v.tree != nil && t.SetBack == v.tree.SetBack && t.Revision < v.tree.Revision {
		t = v.tree // another call has compared a later one
	}
	if !v.isOf(n) {
		v.network, v.parsed, v.tree = n, nil, nil
	}
	if t != v.tree || !v.belief.Due().IsZero() {
		start := time.Now()
		l, err := v.list(t, n, reader)
		if err != nil {
			return set, 0, again, err
		}
		v.belief.SetBackend(n.Backend.Type)
		v.belief.Accept(l, time.Now(), o)
		v.tree, v.setBack, v.set = t, t.SetBack, v.belief.Leases()
		pause := min(max(perComparing*time.Since(start), ComparePause), longestPause)
		v.notBefore = time.Now().Add(pause)
	}
	set = v.set
	set.Leases = slices.Clone(set.Leases) // callers may change them
	return set, v.belief.Version(), v.belief.Due(), nil
}

// isOf reports whether the records were parsed with n's plan and backends.
func (v *Leases[R, S]) isOf(n registry.Network) bool {
	return slices.Equal(v.network.Plan, n.Plan) && v.network.Carriage().Equal(n.Carriage())
}

// list returns what t says of the leases of network n.
func (v *Leases[R, S]) list(t *Tree[R], n registry.Network, reader LeaseReader[R, S]) (belief.List, error) {
	l := belief.List{Records: map[string]*belief.Record{}, SetBack: !v.belief.Empty() && t.SetBack != v.setBack}
	for _, r := range v.parse(t, n, reader) {
		l.Records[r.Key], l.Index = r, max(l.Index, r.Lease.ModifyIndex)
	}
	err := reader.Complete(t, &l, &v.belief)
	lost := l.SetBack || v.belief.Marker() != 0 && l.Marker != v.belief.Marker()
	l.Removed = func(r *belief.Record) bool {
		// Where the store was lost, a deletion that was seen is that of what it had lost, or of an older version.
		_, vanished := t.Vanished[r.Key]
		return !lost && !vanished && !v.belief.Missing()[r.Key].IsLost()
	}
	return l, err
}

// parse returns all records in t, of which it parses each once. Versions that have been replaced are forgotten.
func (v *Leases[R, S]) parse(t *Tree[R], n registry.Network, reader LeaseReader[R, S]) []*belief.Record {
	sources, isSame := reader.Sources(t), v.isOf(n)
	out, next := make([]*belief.Record, len(sources)), make(map[S]*belief.Record, len(sources))
	for i, s := range sources {
		r := v.parsed[s]
		if r == nil || !isSame {
			r = reader.Parse(s)
		}
		next[s], out[i] = r, r
	}
	if isSame {
		v.parsed = next
	}
	return out
}

// Stored returns the records that t has, usable or not.
func (v *Leases[R, S]) Stored(t *Tree[R], n registry.Network, reader LeaseReader[R, S]) []*belief.Record {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.parse(t, n, reader)
}

// Unconfirmed returns the known records that t does not have, although they are not known to have been deleted: their
// hosts may be about to write them again. It compares t first, because a host without a lease watches no leases:
// records that the store has lost would never be given up.
func (v *Leases[R, S]) Unconfirmed(
	t *Tree[R], n registry.Network, reader LeaseReader[R, S], o belief.Options,
) []*belief.Record {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.belief.Empty() {
		return nil
	}
	_, _, _, _ = v.compareLocked(t, n, reader, o) // after an error, what was known stays
	l, _ := v.list(t, n, reader)                  // which is enough
	return v.belief.Unconfirmed(l)
}
