package datapath

import (
	"os"
	"runtime"
	"sync"
)

// Processors manages the processors of Go's scheduler (GOMAXPROCS). Only the agent changes them, since they belong to
// the whole process: it adds processors for the threads of its backends.
//
// A thread that waits in a system call keeps its processor until the runtime's monitor takes it away, after 20 µs to 10
// ms. A thread that returns from a system call and finds no free processor waits as long, and so would packets. If
// GOMAXPROCS is set in the environment, that value stays in force.
type Processors struct {
	mu   sync.Mutex
	base int // the number of processors before any were added
	lent int
}

// lent is the number of processors that were added for one backend.
type lent struct {
	from *Processors
	n    int
}

// set changes the number to n.
func (l *lent) set(n int) {
	if n == l.n || os.Getenv("GOMAXPROCS") != "" {
		return
	}
	l.from.add(n - l.n)
	l.n = n
}

func (p *Processors) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lent == 0 {
		p.base = runtime.GOMAXPROCS(0)
	}
	p.lent += n
	if p.lent == 0 {
		// The runtime chooses the number itself, from the CPUs and the cgroup.
		runtime.SetDefaultGOMAXPROCS()
		return
	}
	runtime.GOMAXPROCS(p.base + p.lent)
}
