package claim

import (
	"errors"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
)

// TestLostLeasesWait checks how long a claim waits for hosts whose leases the store has lost: for lostLeasesWait TTLs
// from the last loss, because after each loss all hosts must claim again.
func TestLostLeasesWait(t *testing.T) {
	const ttl = 10 * time.Second
	claim := registry.Claim{Node: "new", TTL: ttl}
	holders := []registry.Holder{{Node: "old", Session: "s", CreateIndex: 5}}
	for _, tt := range []struct {
		name   string
		losses []time.Duration // after the first attempt
		want   time.Duration   // how long the claim waits in all
	}{
		{"one loss", nil, lostLeasesWait * ttl},
		{"a second loss", []time.Duration{20 * time.Second}, 20*time.Second + lostLeasesWait*ttl},
		{"a third loss just before the wait is over", []time.Duration{12 * time.Second, 30 * time.Second}, 30*time.Second + lostLeasesWait*ttl},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var lost LostLeases
			start := time.Unix(1e9, 0)
			made, stale := uint64(10), uint64(10)
			for at := time.Duration(0); ; at += time.Second {
				for _, loss := range tt.losses {
					if loss == at {
						stale, made = made, made+10
					}
				}
				now := start.Add(at)
				if at > 0 { // an old view still shows the tree of before
					lost.note("n", stale, claim, now, true)
				}
				lost.note("n", made, claim, now, false)
				err := lost.check("n", holders, nil, made, claim, now)
				if err != nil && !errors.Is(err, registry.ErrLeasesLost) {
					t.Fatal(err)
				}
				if err == nil {
					if at <= tt.want || at > tt.want+time.Second {
						t.Errorf("the claim waited %s, want %s", at, tt.want)
					}
					return
				}
				if at > tt.want+time.Minute {
					t.Fatalf("the claim still waits after %s", at)
				}
			}
		})
	}
}

// TestKnownLeases: a claim that knows how many leases the store has lost does not wait when as many are there again, unless
// the tree was lost once more.
func TestKnownLeases(t *testing.T) {
	const ttl = time.Minute
	now := time.Now()
	for _, tt := range []struct {
		name         string
		known, there int
		again        bool // the tree was created again during the claim
		waits        bool
	}{
		{"not known", 0, 3, false, true},
		{"one is missing", 3, 2, false, true},
		{"all are there", 3, 3, false, false},
		{"more are there", 3, 4, false, false},
		{"all are there, after another loss", 3, 3, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var lost LostLeases
			c := registry.Claim{Node: "new", TTL: ttl, Lost: now, Known: tt.known}
			lost.note("n", 10, c, now, false)
			made := uint64(10)
			if tt.again {
				made = 20
				lost.note("n", made, c, now.Add(time.Second), false)
			}
			err := lost.check("n", nil, make([]registry.Lease, tt.there), made, c, now.Add(2*time.Second))
			if errors.Is(err, registry.ErrLeasesLost) != tt.waits {
				t.Errorf("got %v, want it to wait: %t", err, tt.waits)
			}
			if err := lost.check("n", nil, nil, made, c, now.Add(ttl+time.Second)); err != nil {
				t.Errorf("after a TTL: %v", err)
			}
		})
	}
}
