package agent

import (
	"runtime"
	"sync"
	"testing"

	"github.com/lenonet/leno/registry/memory"
)

func TestProcessors(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	var p processors
	before := runtime.GOMAXPROCS(0)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { p.add(3) })
	}
	wg.Wait()
	if got := runtime.GOMAXPROCS(0); got != before+24 {
		t.Errorf("%d processors, want %d", got, before+24)
	}
	for range 8 {
		wg.Go(func() { p.add(-3) })
	}
	wg.Wait()
	if got := runtime.GOMAXPROCS(0); got != before {
		t.Errorf("%d processors, want %d", got, before)
	}
}

// TestAgentGivesThreadsProcessors: while a backend runs whose threads wait in the kernel, the process has processors
// for these threads.
func TestAgentGivesThreadsProcessors(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
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
}

// TestProcessorsAreTheOperators: an operator who sets GOMAXPROCS decides.
func TestProcessorsAreTheOperators(t *testing.T) {
	t.Setenv("GOMAXPROCS", "3")
	before := runtime.GOMAXPROCS(0)
	var p processors
	closed := false
	close := p.lend(4, func() error { closed = true; return nil })
	if got := runtime.GOMAXPROCS(0); got != before {
		t.Errorf("%d processors, want %d", got, before)
	}
	if err := close(); err != nil || !closed {
		t.Errorf("closed %t, %v", closed, err)
	}
}
