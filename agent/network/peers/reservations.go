package peers

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/registry"
)

// reservationsTick is about how often the reservations are checked. Each claim reads them anyway; this check shows
// mistakes to people who watch the health report. A client that follows the store knows them, and reads nothing.
const reservationsTick = time.Minute

// reservationList is the command that lists the reservations, for the check of records that cannot be used.
const reservationList = "reservation list"

// checkReservations reads the reservations regularly and reports those that cannot be used, until ctx ends.
func (f *Follower) checkReservations(ctx context.Context, definition *watch.Value[registry.Network]) error {
	backoff := f.o.Outage.NewLoop()
	for {
		n, _, _ := definition.Get()
		call, cancel := context.WithTimeout(ctx, retry.CallTimeout)
		set, _, err := f.o.Registry.WatchReservations(call, n, registry.Known)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f.o.Report.Used(report.Reservations, err)
		if err != nil {
			if err := backoff.Wait(ctx, err, nil); err != nil {
				return err
			}
			continue
		}
		f.ReportReservations(set.Bad)
		f.reservations.Set(set.Reservations)
		f.o.Report.Changed()
		if err := retry.Sleep(ctx, reservationsTick*3/4+rand.N(reservationsTick/4)); err != nil {
			return err
		}
	}
}

// Reservations returns the reservations as they were last read to check them.
func (f *Follower) Reservations() []registry.Reservation {
	all, _, _ := f.reservations.Get()
	return all
}

// ReportReservations reports the reservations that cannot be used. It replaces those of the last call.
func (f *Follower) ReportReservations(bad []registry.BadRecord) { f.records.Set(reservationList, bad) }
