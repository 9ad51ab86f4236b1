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

// TestProcessorsOfABackend: while a backend runs whose threads wait in the kernel, the process has processors for these
// threads.
func TestProcessorsOfABackend(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	l := newLab(t)
	kind := l.kind("recorder")
	kind.Threads = 3
	l.options.Host.Backends["recorder"] = kind
	before := runtime.GOMAXPROCS(0)
	l.built()
	if got := runtime.GOMAXPROCS(0); got != before+3 {
		t.Errorf("%d processors, want %d", got, before+3)
	}
	l.r.Close()
	if got := runtime.GOMAXPROCS(0); got != before {
		t.Errorf("%d processors after the end, want %d", got, before)
	}
}
