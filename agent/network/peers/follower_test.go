package peers

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

// TestViews: a View is published when this host's lease or the leases of the other hosts change, and otherwise not.
func TestViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.flaky.fail(registry.ErrUnavailable)
		stop := h.start()
		h.wantView("none")
		if got := h.o.Report.State(); got != "waiting for the leases of the other hosts" {
			t.Errorf("state %q", got)
		}
		h.wantCheck(health.Snapshot, api.Warning, "last confirmed never")
		if h.answers != 0 {
			t.Error("the store has answered")
		}
		h.flaky.fail(nil)
		time.Sleep(time.Minute)
		h.wantView("10.5.1.0/24 <- ")
		if h.answers == 0 {
			t.Error("the store has not answered")
		}
		v, _, changed := h.Views().Get()
		if v.Network.CreateIndex != h.network.CreateIndex || v.Own.NodeID != "id-a" || len(v.Leases) != 1 {
			t.Errorf("view %+v", v)
		}

		time.Sleep(time.Hour) // with checks of the age and a pass over lapsed leases
		own, _, _ := h.own.Get()
		h.now(t.Context(), h.network)
		h.flaky.fail(registry.ErrUncertain)
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case <-changed:
			t.Error("a view was published though nothing has changed")
		default:
		}
		h.wantCheck(health.Snapshot, api.Warning, registry.ErrUncertain.Error())
		h.flaky.fail(nil)
		time.Sleep(time.Minute)
		h.wantCheck(health.Snapshot, api.Passing, snapshotPasses)
		if n := len(h.log.With("leases are read again")); n != 2 {
			t.Errorf("logged %d times", n)
		}

		b := h.join("b", 2)
		h.wantView("10.5.1.0/24 <- b@10.5.2.0/24")
		own.Slot, own.Subnets = 7, []netip.Prefix{netip.MustParsePrefix("10.5.7.0/24")}
		h.own.Set(own)
		h.wantView("10.5.7.0/24 <- b@10.5.2.0/24")
		h.store.Delete(key(b))
		h.wantView("10.5.7.0/24 <- ")
		h.own.Clear() // no lease is not a lease without subnets
		h.wantView("10.5.7.0/24 <- ")
		stop()
		h.wantView("none")
	})
}

// TestViewsOfTheNextRun: the next Run begins with what the last one read, unless Clear has removed it.
func TestViewsOfTheNextRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.join("b", 2)
		h.start()()
		h.flaky.fail(registry.ErrUnavailable)
		stop := h.start()
		h.wantView("10.5.1.0/24 <- b@10.5.2.0/24")
		stop()
		h.Clear()
		if _, read := h.Snapshot(); read {
			t.Error("there is a snapshot")
		}
		stop = h.start()
		h.wantView("none")
		stop()
		h.flaky.fail(nil)
		h.start()
		h.wantView("10.5.1.0/24 <- b@10.5.2.0/24")
		if got := h.messagesOf(api.EventPeer); len(got) != 2 || got[1] != "1 other host has a lease" {
			t.Errorf("events %q, want the hosts counted after each first reading", got)
		}
	})
}

// TestEvents: what the other hosts do between two readings are events, and so is a store that was set back.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.start()
		older := h.store.Backup()
		_, _, setBack := h.setBack.Get()
		b := h.join("b", 2)
		synctest.Wait()
		h.store.EndSession(b.Session)
		synctest.Wait()
		h.store.Delete(key(b))
		synctest.Wait()
		want := []string{
			"0 other hosts have a lease",
			"b appeared with 10.5.2.0/24 at 192.0.2.98",
			"the lease of b on 10.5.2.0/24 lapsed, its routes stay",
			"b left, it had 10.5.2.0/24",
		}
		if got := h.messagesOf(api.EventPeer); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("events %q, want %q", got, want)
		}
		select {
		case <-setBack:
			t.Error("the store was not set back")
		default:
		}
		h.store.Restore(older)
		synctest.Wait()
		select {
		case <-setBack:
		default:
			t.Error("the store was set back")
		}
		h.store.Put(key(agenttest.Lease("x", 9, "", 0)), []byte("{")) // a set with an unusable record is of the same store
		h.join("c", 3)
		message := "the store was emptied or set back to an older state"
		if got := h.messagesOf(api.EventStore); len(got) != 1 || got[0] != message {
			t.Errorf("events %q", got)
		}
	})
}

// TestUnusableRecord: a host keeps its routes while its record cannot be used, and loses them when the record is
// deleted.
func TestUnusableRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		b := h.join("b", 2)
		stop := h.start()
		h.wantCheck(health.Records, api.Passing, "every record is usable")
		h.store.Put(key(b), []byte("oops"))
		h.wantView("10.5.1.0/24 <- b@10.5.2.0/24")
		h.wantCheck(health.Records, api.Warning, "1 record skipped (see `leno lease list`)", key(b), "stays in use")
		if now, ok := h.now(t.Context(), h.network); !ok || len(now.Set.Leases) != 2 {
			t.Errorf("read on request: %+v", now)
		}
		reservation := registry.BadRecord{Key: "leno/reservations/n/x", Reason: "nonsense"}
		h.ReportReservations([]registry.BadRecord{reservation})
		h.wantCheck(health.Records, api.Warning, "2 records skipped (see `leno lease list` and `leno reservation list`)")
		h.store.Delete(key(b))
		h.wantView("10.5.1.0/24 <- ")
		h.wantCheck(health.Records, api.Warning, "1 record skipped (see `leno reservation list`)")
		stop()
		h.Reset()
		h.store.Put(key(b), []byte("oops"))
		h.start()
		h.wantView("10.5.1.0/24 <- ") // what it was before is not known any more
		h.wantCheck(health.Records, api.Warning, "1 record skipped (see `leno lease list`)")
	})
}

// TestReservations: the reservations are read regularly, for the health check and for the metrics.
func TestReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.start()
		subnet := netip.MustParsePrefix("10.5.5.0/24")
		kept := registry.Reservation{Subnet: subnet, Node: "x"}
		must(t, h.store.Client().AddReservation(t.Context(), h.network, kept, false))
		h.store.Put("leno/reservations/n/10.5.6.0-24", []byte("{"))
		time.Sleep(reservationsTick)
		h.wantCheck(health.Records, api.Warning, "1 record skipped (see `leno reservation list`)", "10.5.6.0-24")
		if got := h.Reservations(); len(got) != 1 || got[0].Subnet != subnet {
			t.Errorf("%+v", got)
		}
		h.flaky.set(func(s *flakyStore) { s.denied = true })
		time.Sleep(reservationsTick)
		h.wantCheck(health.Consul, api.Warning, "lacks a right", string(report.Reservations))
		h.wantCheck(health.Records, api.Warning)
		h.store.Delete("leno/reservations/n/10.5.6.0-24")
		h.flaky.set(func(s *flakyStore) { s.denied = false })
		time.Sleep(reservationsTick)
		h.wantCheck(health.Consul, api.Passing)
		h.wantCheck(health.Records, api.Passing)
		if n := h.flaky.requests(); n != 0 {
			t.Errorf("everything was read again %d times", n)
		}
	})
}

// TestLeases: what is known of the leases, from the first moment of a process on.
func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.flaky.fail(registry.ErrDenied)
		if _, err := h.Leases(false); !errors.Is(err, registry.ErrUnavailable) {
			t.Errorf("before anything was read: %v", err)
		}
		h.Refresh(t.Context(), h.network)
		if _, err := h.Leases(false); !errors.Is(err, registry.ErrDenied) {
			t.Errorf("after the first reading: %v", err)
		}
		h.remembered = &Snapshot{Set: registry.LeaseSet{Leases: []registry.Lease{agenttest.Lease("r", 9, "s", 1)}}}
		want := func(what string, watched bool, nodes string) {
			t.Helper()
			set, err := h.Leases(watched)
			got := ""
			for _, l := range set.Leases {
				got += l.Node
			}
			if err != nil || got != nodes {
				t.Errorf("%s: %q and %v, want %q", what, got, err, nodes)
			}
		}
		want("remembered", false, "r")
		want("remembered", true, "r")

		h.flaky.fail(nil)
		h.join("b", 2)
		h.Invalidate()
		changes := h.Changed()
		h.Refresh(t.Context(), h.network)
		<-changes[1]
		want("read on request", false, "b")
		want("read on request, watched", true, "r")
		changes = h.Changed()
		stop := h.start()
		<-changes[0]
		want("watched", true, "ab")

		stop()
		h.join("c", 3)
		h.Refresh(t.Context(), h.network)
		want("too early", false, "ab")
		time.Sleep(RefreshEvery)
		h.Refresh(t.Context(), h.network)
		want("later", false, "abc")
		want("later, watched", true, "ab")
		h.join("d", 4)
		h.Invalidate()
		h.Refresh(t.Context(), h.network)
		want("after a change through this agent", false, "abcd")
	})
}

// TestLeasesAge: the time since the leases were read counts as time that they have been lapsed. What is known does not
// change thereby.
func TestLeasesAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		b := h.join("b", 2)
		h.store.EndSession(b.Session)
		h.start()()
		h.flaky.fail(registry.ErrUnavailable)
		time.Sleep(time.Minute)
		h.Refresh(t.Context(), h.network)
		for _, watched := range []bool{true, false} {
			set, err := h.Leases(watched)
			if err != nil || set.Leases[0].Lapsed != 0 || set.Leases[1].Lapsed != time.Minute {
				t.Errorf("watched %t: %+v, %v", watched, set.Leases, err)
			}
		}
		if snap, _ := h.Snapshot(); snap.Set.Leases[1].Lapsed != 0 {
			t.Errorf("the snapshot was changed: %+v", snap.Set.Leases[1])
		}
	})
}
