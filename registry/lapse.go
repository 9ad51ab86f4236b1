package registry

import (
	"sync"
	"time"
)

// LapseClock records how long this process has watched each lapsed lease, by its own monotonic clock, because stores do
// not record when a session ended. The time of a lease that changed in any way starts again, so a restart or a doubtful
// record errs on the side of the lease's owner. LapseClock is safe for concurrent use; the zero value is ready.
type LapseClock struct {
	mu   sync.Mutex
	seen map[string]map[uint64]lapse // by network and slot
}

type lapse struct {
	index uint64
	since time.Time
}

// Observe sets Lapsed in every lease of one complete set of a network, and forgets leases that no longer exist or are
// held.
func (c *LapseClock) Observe(network string, leases []Lease, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := map[uint64]lapse{}
	for i := range leases {
		l := &leases[i]
		l.Lapsed = 0
		if l.Held() {
			continue
		}
		entry, ok := c.seen[network][l.Slot]
		if !ok || entry.index != l.ModifyIndex {
			entry = lapse{l.ModifyIndex, now}
		}
		next[l.Slot] = entry
		l.Lapsed = max(0, now.Sub(entry.since)) // calls may arrive in another order than their clocks were read
	}
	if c.seen == nil {
		c.seen = map[string]map[uint64]lapse{}
	}
	c.seen[network] = next
}

// Forget drops what is known about a network that is no longer watched.
func (c *LapseClock) Forget(network string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.seen, network)
}

// Former returns the lapsed leases of the host that has own, which are of no use any more: the host is elsewhere. Their
// routes would stay until they expire, so the host removes them.
func Former(leases []Lease, own Lease) (out []Lease) {
	for _, l := range leases {
		if l.NodeID == own.NodeID && l.Slot != own.Slot && !l.Held() && !l.Foreign {
			out = append(out, l)
		}
	}
	return out
}
