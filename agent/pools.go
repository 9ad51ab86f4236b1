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

// poolClaims records the addresses and ports that each of this host's networks uses. Two networks that overlap would
// remove each other's routes, so the second one waits. It is safe for concurrent use.
type poolClaims struct {
	mu     sync.Mutex
	claims map[string]hostClaim // by network
}

// hostClaim holds what one network uses on a host.
type hostClaim struct {
	pools []netip.Prefix
	port  backend.Port // of its backend
}

func newPoolClaims() *poolClaims { return &poolClaims{claims: map[string]hostClaim{}} }

// take replaces a network's claim, unless it conflicts with that of another network. It returns the conflict, or "" if
// there is none.
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

// give removes a network's claim.
func (p *poolClaims) give(network string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.claims, network)
}

// claimed returns what a network uses on this host with a backend of these effective options.
func claimed(n registry.Network, kind backend.Type, options json.RawMessage) hostClaim {
	return hostClaim{pools: n.Plan.Prefixes(), port: kind.Uses(options)}
}

// awaitPools blocks until no other network of this host uses what n needs. A datapath that was only resumed gives up
// its claim while it waits. Otherwise two networks that exchanged their pools while no agent was running would wait for
// each other.
func (r *runner) awaitPools(ctx context.Context, n registry.Network, kind backend.Type, options json.RawMessage) error {
	mine := claimed(n, kind, options)
	backoff := retry.NewBackoff()
	for {
		reason := r.env.pools.take(n.Name, mine)
		if reason == "" {
			return nil
		}
		if r.datapath.StopResumed() {
			r.datapath.Close()
			r.settled()
			r.env.pools.give(n.Name)
		}
		r.report.Wait(health.Network, reason)
		if err := backoff.Wait(ctx); err != nil {
			return err
		}
	}
}
