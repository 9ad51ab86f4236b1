package peers

import (
	"context"
	"errors"
	"time"

	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/registry"
)

// reservationsTick is about how often the reservations are read. Each claim reads them anyway; this check shows
// mistakes to people who watch the health report. A client that follows the store knows them, and reads nothing.
const reservationsTick = time.Minute

// reservationList is the command that lists the reservations, for the check of records that cannot be used.
const reservationList = "reservation list"

// checkReservations reads the reservations and reports those that cannot be used. The error is the store's.
func (f *Follower) checkReservations(ctx context.Context, n registry.Network) error {
	ctx, cancel := context.WithTimeout(ctx, retry.CallTimeout)
	defer cancel()
	set, _, err := f.o.Registry.WatchReservations(ctx, n, registry.Known)
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	f.o.Report.Used(report.Reservations, err)
	if err != nil {
		return err
	}
	f.ReportReservations(set.Bad)
	f.reservations.Set(set.Reservations)
	f.o.Report.Changed()
	return nil
}

// Reservations returns the reservations as they were last read to check them.
func (f *Follower) Reservations() []registry.Reservation {
	all, _, _ := f.reservations.Get()
	return all
}

// ReportReservations reports the reservations that cannot be used. It replaces those of the last call.
func (f *Follower) ReportReservations(bad []registry.BadRecord) { f.records.Set(reservationList, bad) }
