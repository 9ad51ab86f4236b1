package agent

import (
	"os"
	"runtime"
	"sync"
)

// processors are those of Go's scheduler (GOMAXPROCS). They belong to the whole
// process: the agent, which is what the process is for, lends its backends'
// threads processors of their own.
//
// A thread that waits in a system call keeps its processor until the runtime's
// monitor takes it away, after 20 µs to 10 ms, and a thread that comes back and
// finds none free waits as long. Packets would. Whoever sets GOMAXPROCS in the
// environment decides himself.
type processors struct {
	mu   sync.Mutex
	base int // when none were lent
	lent int
}

// lend gives the runtime n more processors until the returned function is
// called, which is close and takes them back.
func (p *processors) lend(n int, close func() error) func() error {
	if n == 0 || os.Getenv("GOMAXPROCS") != "" {
		return close
	}
	p.add(n)
	return func() error {
		defer p.add(-n)
		return close()
	}
}

func (p *processors) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lent == 0 {
		p.base = runtime.GOMAXPROCS(0)
	}
	p.lent += n
	if p.lent == 0 {
		// As the runtime itself keeps it, by CPUs and cgroup.
		runtime.SetDefaultGOMAXPROCS()
		return
	}
	runtime.GOMAXPROCS(p.base + p.lent)
}
