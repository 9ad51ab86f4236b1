package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// poolClaims is which of this host's networks uses which addresses, ports and
// the like. Two that overlap would take each other's routes away, so the second
// waits. Safe for concurrent use.
type poolClaims struct {
	mu     sync.Mutex
	claims map[string]hostClaim // by network
}

// hostClaim is what one network uses on a host.
type hostClaim struct {
	pools []netip.Prefix
	port  backend.Port // of its backend
}

func newPoolClaims() *poolClaims { return &poolClaims{claims: map[string]hostClaim{}} }

// take claims for a network, in place of what it had. It says what stands in
// the way, "" when nothing does.
func (p *poolClaims) take(network string, mine hostClaim) (reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, theirs := range p.claims {
		if name == network {
			continue
		}
		for _, pool := range mine.pools {
			if i := slices.IndexFunc(theirs.pools, pool.Overlaps); i >= 0 {
				return fmt.Sprintf("its pool %s overlaps %s of network %q on this host", pool, theirs.pools[i], name)
			}
		}
		if mine.port.Collides(theirs.port) {
			return fmt.Sprintf("it needs %s on this host", mine.port.Against(theirs.port, strconv.Quote(name)))
		}
	}
	p.claims[network] = mine
	return ""
}

// give gives a network's pools back.
func (p *poolClaims) give(network string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.claims, network)
}

// claimed is what a network needs of this host with a backend of these effective
// options.
func claimed(n registry.Network, kind backend.Type, options json.RawMessage) hostClaim {
	return hostClaim{pools: n.Plan.Prefixes(), port: kind.Uses(options)}
}

// awaitPools blocks until no other network of this host uses what n needs. What
// was only carried on gives way, or two networks that took each other's place
// while no agent ran would wait for each other.
func (r *runner) awaitPools(ctx context.Context, n registry.Network, kind backend.Type, options json.RawMessage) error {
	mine := claimed(n, kind, options)
	backoff := retry.NewBackoff()
	for {
		reason := r.env.pools.take(n.Name, mine)
		if reason == "" {
			return nil
		}
		if r.relief != nil {
			r.relieve()
			r.close()
			r.settled()
			r.env.pools.give(n.Name)
		}
		r.wait(health.Network, reason)
		if err := backoff.Wait(ctx); err != nil {
			return err
		}
	}
}
