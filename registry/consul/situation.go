package consul

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	claims "github.com/lenonet/leno/registry/claim"
)

// situation returns the view of a network with the given records of its leases, whose marker was created at made. In a
// store that was emptied, the slots of hosts that have not returned yet count as taken.
func (ls leaseStore) situation(
	ctx context.Context, f *follower, n registry.Network, claim registry.Claim, records []*belief.Record, made uint64,
) (view claims.View, err error) {
	view.Network, view.Made = n, made
	prefix := ls.kv.keys.Leases(n.Name)
	for _, r := range records {
		if r.Err == nil {
			view.Leases = append(view.Leases, r.Lease)
		} else if p, err := registry.ParseSubnetKey(r.Key[len(prefix):]); err == nil {
			view.Bad = append(view.Bad, registry.BadSlot{
				Prefix:      p,
				Session:     r.Lease.Session,
				ModifyIndex: r.Lease.ModifyIndex,
			})
		}
	}
	unconfirmed, err := f.unconfirmed(ctx, records, made)
	if err != nil {
		return view, err
	}
	for _, r := range unconfirmed {
		if r.Err == nil && r.Lease.NodeID != claim.NodeID {
			view.Bad = append(view.Bad, registry.BadSlot{Prefix: r.Lease.Subnet()})
		}
	}

	prefix = ls.kv.keys.Reservations(n.Name)
	reserved, _, err := ls.reservations.list(ctx, n)
	if err != nil {
		return view, err
	}
	view.Reservations = reserved.Reservations
	for _, b := range reserved.Bad {
		// The slot is reserved, but the record does not tell for which host.
		if p, err := registry.ParseSubnetKey(b.Key[len(prefix):]); err == nil {
			view.Bad = append(view.Bad, registry.BadSlot{Prefix: p})
		}
	}
	return view, nil
}

// unconfirmed returns the known records that are not among the given ones, although they are not known to have been
// deleted.
func (f *follower) unconfirmed(ctx context.Context, records []*belief.Record, made uint64) ([]*belief.Record, error) {
	if err := f.mu.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer f.mu.Release(1)
	l := belief.List{Records: make(map[string]*belief.Record, len(records)), Index: f.belief.Index(), Marker: made}
	for _, r := range records {
		l.Records[r.Key] = r
	}
	return f.belief.Unconfirmed(f.judge(l)), nil
}

// learnRecords returns the records of the leases as this client believes them to be after it has followed the directory
// of changes up to now, or has read them if it knew none, and the marker. It returns none if the client is in doubt.
// Only lapses and what bypassed the directory may be missing.
func (f *follower) learnRecords(
	ctx context.Context, kv *kv, n registry.Network,
) (records []*belief.Record, made uint64, err error) {
	if err := f.mu.Acquire(ctx, 1); err != nil {
		return nil, 0, err
	}
	defer f.mu.Release(1)
	f.use(n)
	if f.belief.Empty() {
		// Where the changes may not be read, the watch reports that.
		if err := f.readAll(ctx, kv, true); err != nil && !errors.Is(err, registry.ErrDenied) {
			return nil, 0, err
		}
	} else if !f.isInDoubt() {
		found, reason, err := f.changesAtLeader(ctx, kv)
		if reason != "" || err != nil {
			return nil, 0, err
		}
		f.belief.Apply(found.changes, found.records)
	}
	if f.isInDoubt() {
		return nil, 0, nil
	}
	return slices.Collect(maps.Values(f.belief.Records())), f.belief.Marker(), nil
}

// readAgain reads all leases if the store was created again or set back since they were read last, and when lost ones
// may be given up: nothing else may do that while a host without a lease claims one.
func (f *follower) readAgain(ctx context.Context, kv *kv, made uint64) error {
	if err := f.mu.Acquire(ctx, 1); err != nil {
		return err
	}
	defer f.mu.Release(1)
	due := f.belief.Due()
	isSuspect := f.evidence.setBack || f.evidence.suspectLoss || !due.IsZero() && !time.Now().Before(due)
	if f.belief.Empty() || made == 0 || made == f.belief.Marker() && !isSuspect {
		return nil
	}
	return f.readAll(ctx, kv, false)
}

// isInDoubt reports whether the client does not know what became of some leases, or cannot follow their changes. The
// caller holds f.mu.
func (f *follower) isInDoubt() bool {
	return f.belief.Empty() || f.cursor.Index() == 0 || len(f.belief.Missing()) > 0 ||
		f.evidence.setBack || f.evidence.suspectLoss
}

// secondsOf returns the known records of other subnets that own's session holds, and those of its host that lapsed.
// It returns none while leases are read.
func secondsOf(f *follower, own registry.Lease) (out []*belief.Record) {
	if !f.mu.TryAcquire(1) {
		return nil
	}
	defer f.mu.Release(1)
	for key, r := range f.belief.Records() {
		_, isMissing := f.belief.Missing()[key]
		isOwn := r.Lease.Session == own.Session || r.Lease.NodeID == own.NodeID && !r.Lease.Held()
		// The pools may have changed since own was taken: slots are not compared.
		if isOwn && r.Err == nil && !isMissing && r.Lease.Subnet() != own.Subnet() {
			out = append(out, r)
		}
	}
	return out
}
