package paths

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestRoundTrips: each answered test of a path is in the histogram of its network, and no other.
func TestRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, 2)
		answers := func() (count uint64) {
			synctest.Wait()
			all, err := s.metrics.Now()
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range all.Times {
				if m.Name == "leno_paths_probe_seconds" && m.Labels["network"] == "n" {
					count = m.Count
					if mean := m.Sum / float64(m.Count); mean < 0.0019 || mean > 0.0021 {
						t.Errorf("the mean is %v s, want 2 ms", mean)
					}
				}
			}
			return count
		}
		s.run(func() {
			time.Sleep(time.Minute)
			both := answers()
			if both < 8 || both > 14 {
				t.Errorf("%d answers of two hosts in a minute, one each 10 s", both)
			}
			s.change(func() { s.gone["host-0000"], s.gone["host-0001"] = true, true })
			time.Sleep(time.Second) // a test that began before
			before := answers()
			time.Sleep(time.Minute)
			if now := answers(); now != before {
				t.Errorf("%d answers of hosts that are gone", now-before)
			}
		})
	})
}
