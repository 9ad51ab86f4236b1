package agent

import (
	"runtime"
	"sync"
)

// processors are those of Go's scheduler (GOMAXPROCS). They belong to the whole
// process: the agent, which is what the process is for, gives its backends'
// threads processors of their own.
//
// A thread that waits in a system call keeps its processor until the runtime's
// monitor takes it away, after 20 µs to 10 ms, and a thread that comes back and
// finds none free waits as long. Packets would.
type processors struct{ mu sync.Mutex }

// lend gives the runtime n more processors until the returned function is
// called, which is close and takes them back.
func (p *processors) lend(n int, close func() error) func() error {
	p.add(n)
	return func() error {
		defer p.add(-n)
		return close()
	}
}

func (p *processors) add(n int) {
	if n == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
}
