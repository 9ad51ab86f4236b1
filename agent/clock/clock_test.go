package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestIsWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		for _, tt := range []struct {
			ago  time.Duration
			want bool
		}{
			{0, true},
			{59 * time.Minute, true},
			{time.Hour, false},
			{-Tolerance, true},
			{-Tolerance - time.Second, false},
			{-1000 * time.Hour, false},
		} {
			if got := IsWithin(now.Add(-tt.ago).Round(0), time.Hour); got != tt.want {
				t.Errorf("%s ago: %t", tt.ago, got)
			}
		}
		time.Sleep(time.Hour)
		if IsWithin(now, time.Hour) {
			t.Error("an hour later")
		}
	})
}

func TestJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead time.Duration
		j := Jumps{Wall: func() time.Time { return time.Now().Add(ahead) }}
		for _, tt := range []struct {
			by, want time.Duration
		}{
			{0, 0},
			{0, 0},
			{Tolerance - 1, 0},
			{Tolerance - 1, 0}, // small steps do not add up
			{time.Hour, time.Hour},
			{0, 0},
			{-time.Hour, 0},
			{Tolerance, Tolerance},
		} {
			ahead += tt.by
			time.Sleep(time.Minute)
			if got := j.Next(); got != tt.want {
				t.Errorf("after a step of %s: %s", tt.by, got)
			}
		}
	})
}
