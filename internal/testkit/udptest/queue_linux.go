package udptest

import (
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// depth is the number of packets that a queue holds; more are lost, as on a wire.
const depth = 1024

// queue is a bounded queue of packets that reuses its memory. Its descriptor is readable while it
// holds packets, or after close.
type queue struct {
	mu     sync.Mutex
	filled sync.Cond
	fd     int // eventfd; -1 once it is closed, or if it could not be created
	slots  [depth]slot
	head   int // the oldest
	length int
	closed bool
	count  [8]byte // buffer for reading and writing fd; the value does not matter
}

type slot struct {
	pkt  []byte
	from netip.AddrPort
}

func newQueue() *queue {
	q := &queue{fd: -1}
	if fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		q.fd = fd
	}
	q.filled.L = &q.mu
	return q
}

// ring makes the descriptor readable.
func (q *queue) ring() {
	if q.fd >= 0 {
		q.count = [8]byte{0: 1, 7: 1} // not zero in either byte order
		_, _ = unix.Write(q.fd, q.count[:])
	}
}

// free closes the descriptor.
func (q *queue) free() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fd >= 0 {
		_ = unix.Close(q.fd)
		q.fd = -1
	}
}

// put appends a copy of a packet and reports whether there was room for it.
func (q *queue) put(pkt []byte, from netip.AddrPort) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.length == depth {
		return false
	}
	s := &q.slots[(q.head+q.length)%depth]
	s.pkt = append(s.pkt[:0], pkt...)
	s.from = from
	if q.length++; q.length == 1 {
		q.ring()
	}
	q.filled.Signal()
	return true
}

// wait blocks until there is a packet. ok is false once the queue is closed.
func (q *queue) wait() (ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.length == 0 && !q.closed {
		q.filled.Wait()
	}
	return !q.closed
}

// take passes the waiting packets to to, oldest first, until to returns false because it has no
// room for the packet. ok is false once the queue is closed.
func (q *queue) take(to func(pkt []byte, from netip.AddrPort) bool) (ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	for ; q.length > 0; q.length-- {
		s := &q.slots[q.head]
		if !to(s.pkt, s.from) {
			return true
		}
		q.head = (q.head + 1) % depth
	}
	if q.fd >= 0 {
		_, _ = unix.Read(q.fd, q.count[:])
	}
	return true
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.ring()
	q.filled.Broadcast()
}
