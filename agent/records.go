package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// Limits for log lines about records that cannot be used.
const (
	maxLogged = 100 // lines a minute about one record each
	maxSums   = 5   // lines a minute with the number of the other records
)

// recordBoard logs the records that had to be skipped and reports them to the health check. It is safe for concurrent
// use.
type recordBoard struct {
	report func(status, reason string)
	log    hclog.Logger
	now    func() time.Time

	mu     sync.Mutex
	bad    map[string][]registry.BadRecord // by the command that lists them, such as "lease list"
	logged map[registry.BadRecord]bool
	minute time.Time // start of the minute in which lines are counted
	lines  int       // in this minute, about one record each
	sums   int       // in this minute, with a number of records
}

func newRecordBoard(log hclog.Logger, report func(status, reason string)) *recordBoard {
	return &recordBoard{report: report, log: log, now: time.Now, bad: map[string][]registry.BadRecord{}}
}

// set replaces the skipped records that `leno <list>` lists, for example `leno lease list`. It logs each new one once.
func (b *recordBoard) set(list string, bad []registry.BadRecord) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bad[list] = bad
	seen := map[registry.BadRecord]bool{}
	total, unsaid := 0, 0
	for _, list := range slices.Sorted(maps.Keys(b.bad)) {
		for _, r := range b.bad[list] {
			total++
			seen[r] = true
			if b.logged[r] {
				continue
			}
			if !b.mayLog() {
				unsaid++
				continue
			}
			r = r.Shortened()
			b.log.Warn("record skipped", "key", printed(r.Key), "error", r.Reason)
		}
	}
	b.logged = seen
	if unsaid > 0 {
		b.sums++
	}
	if unsaid > 0 && b.sums <= maxSums {
		b.log.Warn("more records skipped", "count", unsaid, "total", total)
	}
	b.report(b.verdict(total))
}

// clear forgets all records and reports nothing.
func (b *recordBoard) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bad, b.logged = map[string][]registry.BadRecord{}, nil
}

// mayLog counts a line and reports whether it may be logged. A client that keeps writing invalid records must not fill
// the log.
func (b *recordBoard) mayLog() bool {
	if now := b.now(); now.Sub(b.minute) >= time.Minute {
		b.minute, b.lines, b.sums = now, 0, 0
	}
	b.lines++
	return b.lines <= maxLogged
}

// verdict returns the status and the reason of the check: one line of limited length, however many records there are.
func (b *recordBoard) verdict(total int) (status, reason string) {
	if total == 0 {
		return api.Passing, "every record is usable"
	}
	var first registry.BadRecord
	var lists []string
	for _, list := range slices.Sorted(maps.Keys(b.bad)) {
		if len(b.bad[list]) > 0 {
			lists = append(lists, "`leno "+list+"`")
			first = cmp.Or(first, b.bad[list][0].Shortened())
		}
	}
	records := "records"
	if total == 1 {
		records = "record"
	}
	return api.Warning, fmt.Sprintf("%d %s skipped (see %s), the first %s: %s",
		total, records, strings.Join(lists, " and "), printed(first.Key), first.Reason)
}

// printed returns a key, quoted if it contains unprintable or escaped characters.
func printed(key string) string {
	if quoted := strconv.Quote(key); quoted != `"`+key+`"` {
		return quoted
	}
	return key
}

// keepKnown adds to a set of leases the previous leases whose records still exist but cannot be used. The host is not
// at fault if another client overwrote its record with invalid data, or a newer leno wrote it.
func keepKnown(network string, set registry.LeaseSet, before []registry.Lease) registry.LeaseSet {
	if len(set.Bad) == 0 {
		return set
	}
	known := map[string]registry.Lease{}
	for _, l := range before {
		known[registry.SubnetKey(l.Subnet())] = l
	}
	out := set
	out.Leases, out.Bad = slices.Clone(set.Leases), slices.Clone(set.Bad)
	for i, b := range out.Bad {
		l, ok := known[path.Base(b.Key)]
		if !ok || !strings.HasSuffix(b.Key, "/leases/"+network+"/"+path.Base(b.Key)) {
			continue
		}
		out.Leases = append(out.Leases, l)
		out.Bad[i].Reason = b.Reason + "; what stood there before stays in use"
	}
	slices.SortFunc(out.Leases, func(a, b registry.Lease) int { return cmp.Compare(a.Slot, b.Slot) })
	return out
}

// reservationsTick is about how often the reservations are read to check them. Each claim reads them anyway; this check
// shows mistakes to people who watch the health report.
const reservationsTick = time.Minute

// checkReservations reads the reservations regularly and reports those that cannot be used, until ctx ends.
func (r *runner) checkReservations(ctx context.Context, n registry.Network) error {
	backoff := r.env.outage.NewLoop()
	for {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		set, err := r.env.registry.Reservations(call, n)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.report.Used(report.Reservations, err)
		if err != nil {
			if err := backoff.Wait(ctx, err, nil); err != nil {
				return err
			}
			continue
		}
		r.records.set("reservation list", set.Bad)
		r.show(func(v *view) { v.reservations = set.Reservations })
		if err := retry.Sleep(ctx, reservationsTick*3/4+rand.N(reservationsTick/4)); err != nil {
			return err
		}
	}
}

// watchReservations returns the reservations of a network as soon as the store has another index than after. If this
// host takes part in the network, it also reports the records that cannot be used.
func (a *Agent) watchReservations(ctx context.Context, n registry.Network, after uint64) (registry.ReservationSet, uint64, error) {
	set, index, err := a.env.registry.WatchReservations(ctx, n, after)
	if run, ok := a.runner(n.Name); ok && err == nil {
		run.records.set("reservation list", set.Bad)
	}
	return set, index, err
}
