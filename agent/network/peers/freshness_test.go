package peers

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// confirming is a store that says when it last confirmed the leases.
type confirming struct {
	registry.Registry
	at time.Time
}

func (c *confirming) Abilities() registry.Abilities {
	return registry.Abilities{Followed: func(string) time.Time { return c.at }}
}

// TestSnapshotAge: only a store that neither answers nor fails makes the snapshot old, even if nothing changes for
// long.
func TestSnapshotAge(t *testing.T) {
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	for _, tt := range []struct {
		name        string
		read, heard time.Time
		failing     bool
		status      string // "" if there is no such check
	}{
		{"not read yet", time.Time{}, time.Time{}, false, ""},
		{"just read", ago(0), ago(0), false, api.Passing},
		{"quiet for a day, confirmed", ago(24 * time.Hour), ago(time.Minute), false, api.Passing},
		{"quiet for a day, nothing heard", ago(24 * time.Hour), ago(staleAfter + time.Second), false, api.Warning},
		{"read by a call that does not count as heard", ago(time.Second), ago(time.Hour), false, api.Passing},
		{"a read has failed", ago(24 * time.Hour), ago(time.Hour), true, api.Warning},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			f := h.newFollower(&confirming{h.flaky, tt.heard}, t.TempDir())
			if !tt.read.IsZero() {
				f.snapshot.Set(Snapshot{Read: tt.read})
			}
			if tt.failing {
				f.failure.Set(errors.New("no answer"))
			}
			f.checkSnapshot(false)
			all, _ := h.health.Report()
			status, reason := "", ""
			for _, c := range all.Networks[0].Checks {
				if c.Name == health.Snapshot {
					status, reason = c.Status, c.Reason
				}
			}
			if status != tt.status {
				t.Errorf("%s: %s", status, reason)
			}
			if want := staleReason(tt.heard); status == api.Warning && !strings.HasPrefix(reason, want) {
				t.Errorf("reason %q, want %q", reason, want)
			}
		})
	}
}

// TestSnapshotBecomesOld: the age is checked regularly, and the check passes again when the store confirms the leases.
// A store that cannot tell has confirmed them just now, unless a read fails.
func TestSnapshotBecomesOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		store := &confirming{h.flaky, time.Now()}
		h.Follower = h.newFollower(store, t.TempDir())
		stop := h.start()
		heard := time.Now()
		h.wantCheck(health.Snapshot, api.Passing, snapshotPasses)
		time.Sleep(staleAfter + checkEvery)
		h.wantCheck(health.Snapshot, api.Warning, "the leases of the other hosts were last confirmed "+
			heard.UTC().Format(time.RFC3339)+", peers keep their routes")
		time.Sleep(checkEvery)
		if n := len(h.log.With("leases have not been confirmed for a long time")); n != 1 || !h.Followed().Equal(heard) {
			t.Errorf("logged %d times, followed %s, want %s", n, h.Followed(), heard)
		}
		h.join("b", 2)
		h.wantCheck(health.Snapshot, api.Passing, snapshotPasses)
		stop()

		h.Follower = h.newFollower(h.flaky, t.TempDir())
		if at := h.Followed(); !at.IsZero() {
			t.Errorf("followed %s before anything was read", at)
		}
		h.start()
		time.Sleep(time.Hour)
		h.wantCheck(health.Snapshot, api.Passing)
		if at := h.Followed(); !at.Equal(time.Now()) {
			t.Errorf("followed %s, want now", at)
		}
		failed := time.Now()
		h.flaky.fail(registry.ErrUnavailable)
		time.Sleep(time.Minute)
		h.wantCheck(health.Snapshot, api.Warning, ", peers keep their routes: "+registry.ErrUnavailable.Error())
		if at := h.Followed(); at.After(failed) {
			t.Errorf("followed %s, want it before %s", at, failed)
		}
	})
}
