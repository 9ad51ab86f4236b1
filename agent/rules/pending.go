package rules

import (
	"context"
	"sync"
	"time"
)

// expectTime is how long the first network that is ready after a start waits for others. They need the store as it did,
// so they are not far behind.
const expectTime = 5 * time.Second

// pendingNetworks are the networks whose rules exist in the firewall while nothing tells what they are, because the
// state directory was lost: to write only the rules of the others would drop their packets. The zero value is ready,
// and safe for concurrent use.
type pendingNetworks struct {
	mu    sync.Mutex
	names map[string]bool
	none  chan struct{} // closed when no network is left; nil if there never was one
}

func (p *pendingNetworks) add(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.names) == 0 {
		p.names, p.none = map[string]bool{}, make(chan struct{})
	}
	p.names[name] = true
}

// resolve removes a network, if it is there.
func (p *pendingNetworks) resolve(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.names[name] {
		return
	}
	if delete(p.names, name); len(p.names) == 0 {
		close(p.none)
	}
}

// any reports whether there is a network.
func (p *pendingNetworks) any() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.names) > 0
}

// wait blocks until there is no network, for expectTime at most. It then gives up those that are left, so that only the
// first call waits that long.
func (p *pendingNetworks) wait(ctx context.Context) {
	p.mu.Lock()
	none, count := p.none, len(p.names)
	p.mu.Unlock()
	if count == 0 {
		return
	}
	select {
	case <-none:
	case <-ctx.Done():
	case <-time.After(expectTime):
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.names) > 0 {
			clear(p.names)
			close(p.none)
		}
	}
}
