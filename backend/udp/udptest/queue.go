package udptest

import (
	"net/netip"
	"sync"
)

// depth is how many packets a queue holds; more are lost, as on a wire.
const depth = 1024

// queue is a bounded line of packets that reuses its memory.
type queue struct {
	mu     sync.Mutex
	filled sync.Cond
	slots  [depth]slot
	head   int // the oldest
	length int
	closed bool
}

type slot struct {
	pkt  []byte
	from netip.AddrPort
}

func newQueue() *queue {
	q := &queue{}
	q.filled.L = &q.mu
	return q
}

// put copies a packet to the end and says whether there was room for it.
func (q *queue) put(pkt []byte, from netip.AddrPort) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.length == depth {
		return false
	}
	s := &q.slots[(q.head+q.length)%depth]
	s.pkt = append(s.pkt[:0], pkt...)
	s.from = from
	q.length++
	q.filled.Signal()
	return true
}

// take waits for a packet and hands over those there are, oldest first, until
// to says that it has no room for the one it is shown. ok is false once the
// queue is closed.
func (q *queue) take(to func(pkt []byte, from netip.AddrPort) bool) (ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.length == 0 && !q.closed {
		q.filled.Wait()
	}
	if q.closed {
		return false
	}
	for ; q.length > 0; q.length-- {
		s := &q.slots[q.head]
		if !to(s.pkt, s.from) {
			break
		}
		q.head = (q.head + 1) % depth
	}
	return true
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.filled.Broadcast()
}
