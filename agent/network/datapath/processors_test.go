package datapath

import (
	"runtime"
	"sync"
	"testing"
)

func TestProcessors(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	var p Processors
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

// TestProcessorsAreTheOperators: an operator who sets GOMAXPROCS decides.
func TestProcessorsAreTheOperators(t *testing.T) {
	t.Setenv("GOMAXPROCS", "3")
	before := runtime.GOMAXPROCS(0)
	var p Processors
	added := lent{from: &p}
	added.set(4)
	if got := runtime.GOMAXPROCS(0); got != before {
		t.Errorf("%d processors, want %d", got, before)
	}
}
