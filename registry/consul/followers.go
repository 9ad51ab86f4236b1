package consul

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lenonet/leno/registry/consul/keys"
)

// followers contains a follower for every network whose leases are known. All clients of one New share them.
type followers struct {
	layout keys.Layout
	idle   time.Duration // a follower that is not used for this long is dropped
	settle atomic.Int64  // Config.Settle, a time.Duration

	mu        sync.Mutex
	byNetwork map[string]*usedFollower
}

type usedFollower struct {
	follower *follower
	users    int       // calls in progress
	lastUse  time.Time // when the last one ended
}

// use returns the follower of a network, and a function to call at the end of its use.
func (s *followers) use(network string) (f *follower, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropIdleLocked()
	u, ok := s.byNetwork[network]
	if !ok {
		u = &usedFollower{follower: newFollower(s.layout, network, &s.settle)}
		s.byNetwork[network] = u
	}
	u.users++
	return u.follower, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		u.users--
		u.lastUse = time.Now()
	}
}

// dropIdleLocked drops the followers that have not been used for the idle time.
func (s *followers) dropIdleLocked() {
	maps.DeleteFunc(s.byNetwork, func(_ string, u *usedFollower) bool {
		return u.users == 0 && time.Since(u.lastUse) >= s.idle
	})
}

// find returns the follower of a network, or nil when there is none.
func (s *followers) find(network string) *follower {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.byNetwork[network]; u != nil {
		return u.follower
	}
	return nil
}

// drop drops the follower of a network. Calls in progress continue with what they know.
func (s *followers) drop(network string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byNetwork, network)
}
