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

// take waits for a packet and copies as many as there are. ok is false once
// the queue is closed.
func (q *queue) take(bufs [][]byte, sizes []int, from []netip.AddrPort) (n int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.length == 0 && !q.closed {
		q.filled.Wait()
	}
	if q.closed {
		return 0, false
	}
	for n < len(bufs) && q.length > 0 {
		s := &q.slots[q.head]
		sizes[n] = copy(bufs[n], s.pkt)
		if from != nil {
			from[n] = s.from
		}
		q.head = (q.head + 1) % depth
		q.length--
		n++
	}
	return n, true
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.filled.Broadcast()
}
