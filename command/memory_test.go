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
