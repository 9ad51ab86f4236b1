//go:build long

package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/probe"
)

// most is the maximum number of bytes that each of leno's watchers may receive. All leases take 110
// kB. On a slow machine a burst is read in many parts, and after a lapse it may be a host's turn to
// compare all leases with its own view.
var most = map[string]float64{
	"first read":         400e3,
	"one change":         8e3,
	"20 changes at once": 200e3,
	"200 leases lapse":   20e3,
}

// mostWithEtcd is the same with etcd, which sends each change by itself, and each lapse too.
var mostWithEtcd = map[string]float64{
	"first read":         400e3,
	"one change":         2e3,
	"20 changes at once": 30e3,
	"200 leases lapse":   40e3,
}

// TestShort runs the short form of `make scale`. Every watcher must see every change, and at the
// end the same leases as a consistent read. It does not check times, which depend on the load of
// the machine.
func TestShort(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 19*time.Minute)
	defer cancel()
	binary, err := lab.FindConsul()
	if err != nil {
		t.Fatal(err)
	}
	c, err := startConsul(ctx, binary, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	testShort(ctx, t, c, most, leno, uncompressed)
}

// TestShortWithEtcd does the same with etcd.
func TestShortWithEtcd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 19*time.Minute)
	defer cancel()
	binary, err := lab.FindEtcd()
	if err != nil {
		t.Fatal(err)
	}
	e, err := startEtcd(ctx, binary, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	testShort(ctx, t, e, mostWithEtcd, leno)
}

func testShort(ctx context.Context, t *testing.T, c store, most map[string]float64, layouts ...layout) {
	t.Helper()
	t.Cleanup(c.kill)
	r := &result{Machine: &probe.Machine{}}
	m := &measurement{
		store:   c,
		result:  r,
		rounds:  1,
		burst:   20,
		spread:  time.Second,
		minute:  time.Second,
		layouts: layouts,
		log:     t.Logf,
	}
	s := size{200, 20}
	if err := m.watching(ctx, s, false); err != nil {
		t.Fatal(err)
	}
	if err := silence(ctx, m, s); err != nil {
		t.Fatal(err)
	}
	if err := m.starts(ctx, 40, time.Second, []size{s, {400, 0}}); err != nil {
		t.Fatal(err)
	}
	r.finish()
	var text strings.Builder
	if err := r.table(&text); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text.String())

	found := 0
	for _, row := range r.Watching {
		limit, ok := most[row.Event]
		if !ok || row.Layout != c.label(leno.name) {
			continue
		}
		found++
		if row.Median.Each > limit {
			t.Errorf("%s: a watcher received %.0f bytes, at most %.0f are due", row.Event, row.Median.Each, limit)
		}
		if row.Median.Each == 0 && row.Event != "200 leases lapse" {
			t.Errorf("%s: nothing was counted", row.Event)
		}
	}
	if found != len(most) {
		t.Errorf("%d events with a limit were measured, want %d:\n%s", found, len(most), text.String())
	}
}

// silence makes all hosts of a network fall silent at once.
func silence(ctx context.Context, m *measurement, s size) error {
	w, err := newWorld(ctx, m.store, "silence", s.leases, 1)
	if err != nil {
		return err
	}
	f, _, err := launch(ctx, w, leno, s.watchers)
	if err != nil {
		return err
	}
	defer f.close()
	return (&run{measurement: m, world: w, fleet: f, how: leno, size: s}).lapses(ctx)
}
