package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/lenonet/leno/registry"
)

// poolClaims is which of this host's networks uses which addresses. Two that
// overlap would take each other's routes away, so the second waits. Safe for
// concurrent use.
type poolClaims struct {
	mu    sync.Mutex
	pools map[string][]netip.Prefix
}

func newPoolClaims() *poolClaims { return &poolClaims{pools: map[string][]netip.Prefix{}} }

// take claims pools for a network, in place of what it had. It returns the
// network that stands in the way, "" when none does.
func (p *poolClaims) take(network string, pools []netip.Prefix) (other string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, theirs := range p.pools {
		if name != network && slices.ContainsFunc(pools, func(a netip.Prefix) bool { return slices.ContainsFunc(theirs, a.Overlaps) }) {
			return name
		}
	}
	p.pools[network] = pools
	return ""
}

// give gives a network's pools back.
func (p *poolClaims) give(network string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pools, network)
}

// awaitPools blocks until no other network of this host uses n's addresses.
func (r *runner) awaitPools(ctx context.Context, n registry.Network) error {
	retry := newPause()
	for {
		other := r.env.pools.take(n.Name, n.Plan.Prefixes())
		if other == "" {
			return nil
		}
		r.wait(checkNetwork, fmt.Sprintf("its addresses %v overlap those of network %q on this host", n.Plan.Prefixes(), other))
		if err := retry.wait(ctx); err != nil {
			return err
		}
	}
}
