// Package peers knows what the other hosts of one network have. It follows their leases in the store and turns them
// into Views, from which a datapath is made. It remembers them for the next process, reports what they do, and removes
// the records of those that are long gone.
//
// The package decides nothing about this host's own lease and does not touch the kernel.
package peers

import (
	"context"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/records"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/registry"
)

// Options are what New builds a Follower from. All fields but Foreign are required.
type Options struct {
	Network  string
	DataDir  string                // with the peers file, see package agent/state
	Identity func() state.Identity // of this host, once Run is called
	Settings config.Lease
	Registry registry.Registry
	Outage   *retry.OutageDetector
	SetBack  *watch.Value[struct{}] // set when the store was emptied or set back to an older state
	Report   *report.Reporter
	Foreign  time.Duration // how long a lease stays that the store lacks, if its host runs flannel; 0 for SettleTime

	// Suspect takes over the conflicts between this host's lease and those of other hosts. It is called
	// after each change and while a conflict lasts.
	Suspect func(Conflict)

	// Answered is called after each reading of the leases by the watch. A resumed datapath is confirmed then.
	Answered func()

	// Remembered returns the leases of a resumed datapath, this host's included, and reports whether there is one. It
	// is called while no leases have been read.
	Remembered func() (Snapshot, bool)
}

// A Follower follows the leases of one network. Run may be called again after it has returned; the other methods are
// safe for concurrent use.
type Follower struct {
	o            Options
	snapshot     *watch.Value[Snapshot] // as the watch read it last
	views        *watch.Value[*View]
	failure      *watch.Value[error] // why the watch could not read the leases, no value if it could
	refresher    *Refresher
	records      *records.Board
	reservations *watch.Value[[]registry.Reservation]
	cache        *peerCache    // of the latest Run, nil before the first
	plan         registry.Plan // of that Run
}

// New returns a Follower that knows nothing yet.
func New(o Options) *Follower {
	f := &Follower{
		o:            o,
		snapshot:     watch.New[Snapshot](),
		failure:      watch.New[error](),
		views:        watch.New[*View](),
		reservations: watch.New[[]registry.Reservation](),
	}
	f.refresher = NewRefresher(o.Registry, o.Network, refreshTimeout, func() []registry.Lease {
		known, _, _ := f.snapshot.Get()
		return known.Set.Leases
	})
	f.records = records.New(o.Report.Log(), func(status, reason string) { o.Report.Check(health.Records, status, reason) })
	return f
}

// Run follows the leases of a network until ctx ends, and publishes a View for each change of them, of the network's
// definition and of own, this host's lease. If own is set to the same lease again, Run publishes the same View again.
// The definition must be known, and keep its plan. What an earlier process knew counts until the store has settled,
// also in later Runs.
func (f *Follower) Run(
	ctx context.Context, definition *watch.Value[registry.Network], own *watch.Value[registry.Lease],
) error {
	defer f.views.Clear()
	var others sync.WaitGroup
	others.Go(func() { _ = f.watchLeases(ctx, definition) }) // ends with ctx, as the others do
	others.Go(func() { _ = f.maintainRecords(ctx, definition) })
	err := newPublisher(f, definition, own).run(ctx)
	others.Wait()
	return err
}

// Views returns the current View. It is set only during Run, once leases are known that Clear has not removed.
func (f *Follower) Views() *watch.Value[*View] { return f.views }

// Snapshot returns the leases as the watch read them last. It returns false if it has not read any since Clear.
func (f *Follower) Snapshot() (Snapshot, bool) {
	snap, read, _ := f.snapshot.Get()
	return snap, read
}

// now returns all leases as they are now or, if the store does not answer, as they were last known. It blocks while it
// reads them, for at most 2 s. It returns false if they were never known.
func (f *Follower) now(ctx context.Context, n registry.Network) (Snapshot, bool) {
	f.refresher.Refresh(ctx, n)
	return f.known()
}

// Refresh reads all leases for the methods now and Leases, as Refresher.Refresh does.
func (f *Follower) Refresh(ctx context.Context, n registry.Network) { f.refresher.Refresh(ctx, n) }

// Invalidate makes the next reader see a change that was made through this agent.
func (f *Follower) Invalidate() { f.refresher.Invalidate() }

// Leases returns all leases without asking the store: those that were read last or, if watched is true, those that the
// watch read last. The error says why none are known.
func (f *Follower) Leases(watched bool) (registry.LeaseSet, error) {
	read := f.known
	if watched {
		read = f.watched
	}
	snap, known := read()
	if !known {
		return registry.LeaseSet{}, f.refresher.Err()
	}
	return snap.Set, nil
}

// Changed returns channels, one of which is closed when Leases may return something else.
func (f *Follower) Changed() []<-chan struct{} {
	_, _, watched := f.snapshot.Get()
	return []<-chan struct{}{watched, f.refresher.Changed()}
}

// known returns all leases as they were last read, by the watch or on request, or otherwise as an earlier process knew
// them. It returns false if nothing is known.
func (f *Follower) known() (Snapshot, bool) {
	newest := f.refresher.Newest()
	if snap, read, _ := f.snapshot.Get(); read && !newest.Read.After(snap.Read) {
		newest = snap
	}
	if newest.Read.IsZero() {
		return f.o.Remembered()
	}
	return newest.Aged(), true
}

// watched returns all leases as the watch read them last, or otherwise as an earlier process knew them. It returns
// false if nothing is known.
func (f *Follower) watched() (Snapshot, bool) {
	snap, read, _ := f.snapshot.Get()
	if !read {
		return f.o.Remembered()
	}
	return snap.Aged(), true
}

// Clear forgets the leases that were read, for example because they were read with an earlier plan. Run must not be
// running.
func (f *Follower) Clear() {
	f.snapshot.Clear()
	f.refresher.Clear()
	f.views.Clear()
}

// Reset forgets the leases and the records that cannot be used, because this host has left the network. Run must not be
// running.
func (f *Follower) Reset() {
	f.Clear()
	f.cache = &peerCache{}
	f.records.Clear()
}
