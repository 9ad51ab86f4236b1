package registry_test

import (
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
)

func TestLapseClock(t *testing.T) {
	n := smallNetwork(t)
	lapsed := func(slot, index uint64) registry.Lease {
		l := lapsedFor(n, slot, int(slot), 77*time.Hour) // the value does not matter, the clock decides
		l.ModifyIndex = index
		return l
	}
	start := time.Now()
	var clock registry.LapseClock
	for _, step := range []struct {
		name    string
		network string
		at      time.Duration
		give    []registry.Lease
		want    []time.Duration
	}{
		{"first seen", "a", 0, []registry.Lease{lapsed(1, 10), held(n, 2, 2)}, []time.Duration{0, 0}},
		{"goes on, and one more lapses", "a", 5, []registry.Lease{lapsed(1, 10), lapsed(2, 11)}, []time.Duration{5, 0}},
		{"networks do not mix", "b", 6, []registry.Lease{lapsed(1, 10)}, []time.Duration{0}},
		{"order does not matter", "a", 7, []registry.Lease{lapsed(2, 11), lapsed(1, 10)}, []time.Duration{2, 7}},
		{"a changed record starts again", "a", 8, []registry.Lease{lapsed(1, 12), lapsed(2, 11)}, []time.Duration{0, 3}},
		{"a held one is forgotten", "a", 9, []registry.Lease{held(n, 1, 1)}, []time.Duration{0}},
		{"and starts again, as does one that was gone", "a", 10, []registry.Lease{lapsed(1, 12), lapsed(2, 11)}, []time.Duration{0, 0}},
		{"the other network went on", "b", 16, []registry.Lease{lapsed(1, 10)}, []time.Duration{10}},
		{"never negative", "b", 3, []registry.Lease{lapsed(1, 10)}, []time.Duration{0}},
	} {
		clock.Observe(step.network, step.give, start.Add(step.at))
		for i, l := range step.give {
			if l.Lapsed != step.want[i] {
				t.Errorf("%s: slot %d lapsed for %d, want %d", step.name, l.Slot, l.Lapsed, step.want[i])
			}
		}
	}
}
