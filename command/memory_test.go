package command

import (
	"testing"

	"github.com/prometheus/procfs"
)

// TestUnmapProgram checks that pages that nothing uses any more no longer count as resident, and that the program goes
// on: its pages come back when it uses them.
func TestUnmapProgram(t *testing.T) {
	self, err := procfs.Self()
	if err != nil {
		t.Fatal(err)
	}
	resident := func() uint64 {
		t.Helper()
		maps, err := self.ProcSMapsRollup()
		if err != nil {
			t.Fatal(err)
		}
		return maps.Rss
	}
	before := resident()
	if err := unmapProgram(); err != nil {
		t.Fatal(err)
	}
	if after := resident(); after >= before {
		t.Errorf("%d bytes are resident, %d before", after, before)
	}
}

// TestHeap: the more is in use, the smaller is the part that garbage may add to it, and the part that may stay unused.
func TestHeap(t *testing.T) {
	const mb = 1 << 20
	for _, tt := range []struct {
		live, unused uint64 // MiB
		most         int
		growth       int
		isUnused     bool
	}{
		{0, 0, 100, 100, false},
		{0, 3, 100, 100, true},
		{8, 4, 100, 100, false},
		{8, 5, 100, 100, true},
		{16, 8, 100, 100, false},
		{64, 8, 100, 25, false},
		{64, 9, 100, 25, true},
		{64, 9, 20, 20, true},
		{1000, 0, 100, 10, false},
	} {
		h := heap{resident: (tt.live + tt.unused) * mb, live: tt.live * mb}
		if got := h.growth(tt.most); got != tt.growth {
			t.Errorf("%d MiB in use: grows by %d %%, want %d %%", tt.live, got, tt.growth)
		}
		if got := h.isUnused(); got != tt.isUnused {
			t.Errorf("%d MiB in use, and %d MiB more: unused %t", tt.live, tt.unused, got)
		}
	}
	if h := readHeap(); h.live == 0 || h.resident < h.live/2 {
		t.Errorf("read %+v", h)
	}
}
