package agent

import (
	"testing"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// follower is a store that says when it last confirmed the leases.
type follower struct {
	registry.Registry
	at time.Time
}

func (f *follower) Followed(string) time.Time { return f.at }

func (f *follower) Forget(string) {}

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
		{"a failure has said so", ago(24 * time.Hour), ago(time.Hour), true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, memory.New(), "a")
			h.catalog = &follower{h.registry, tt.heard}
			r := h.part()
			if !tt.read.IsZero() {
				r.snapshot.Set(snapshot{read: tt.read})
			}
			r.unfollowed.Store(tt.failing)
			r.checkAge()
			report, _ := h.agent.env.health.Report()
			status := ""
			for _, c := range report.Networks[0].Checks {
				if c.Name == health.Snapshot {
					status = c.Status
				}
			}
			if status != tt.status {
				t.Errorf("%+v", report.Networks[0].Checks)
			}
		})
	}
}
