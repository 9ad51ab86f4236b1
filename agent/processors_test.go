package agent

import (
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/lenonet/leno/registry/memory"
)

// TestAgentGivesThreadsProcessors: while a backend runs whose threads wait in the kernel, the process has processors
// for these threads.
func TestAgentGivesThreadsProcessors(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	synctest.Test(t, func(t *testing.T) {
		before := runtime.GOMAXPROCS(0)
		h := newHost(t, memory.New(), "a")
		h.recorder.threads = 3
		h.start().ready()
		if got := runtime.GOMAXPROCS(0); got != before+3 {
			t.Errorf("%d processors, want %d", got, before+3)
		}
		if err := h.stop(); err != nil {
			t.Fatal(err)
		}
		if got := runtime.GOMAXPROCS(0); got != before {
			t.Errorf("%d processors after the end, want %d", got, before)
		}
	})
}
