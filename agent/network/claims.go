package network

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// HostClaims records the addresses and ports that each of this host's networks uses. Two networks that overlap would
// remove each other's routes, so the second one waits. It is safe for concurrent use.
type HostClaims struct {
	mu     sync.Mutex
	claims map[string]hostClaim // by network
}

// hostClaim holds what one network uses on a host.
type hostClaim struct {
	pools []netip.Prefix
	ports []backend.Port // of its backends
}

// NewHostClaims returns an empty record.
func NewHostClaims() *HostClaims { return &HostClaims{claims: map[string]hostClaim{}} }

// take replaces a network's claim, unless it conflicts with that of another network. The
// error says what the conflict is.
func (p *HostClaims) take(network string, mine hostClaim) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, theirs := range p.claims {
		if name == network {
			continue
		}
		for _, pool := range mine.pools {
			if i := slices.IndexFunc(theirs.pools, pool.Overlaps); i >= 0 {
				return fmt.Errorf("its pool %s overlaps %s of network %q on this host", pool, theirs.pools[i], name)
			}
		}
		for _, port := range mine.ports {
			if i := slices.IndexFunc(theirs.ports, port.Collides); i >= 0 {
				return fmt.Errorf("it needs %s on this host", port.Against(theirs.ports[i], strconv.Quote(name)))
			}
		}
	}
	p.claims[network] = mine
	return nil
}

// others returns the pools that the other networks use.
func (p *HostClaims) others(network string) (pools []netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, theirs := range p.claims {
		if name != network {
			pools = append(pools, theirs.pools...)
		}
	}
	return pools
}

// release removes a network's claim.
func (p *HostClaims) release(network string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.claims, network)
}

// overlapPatience is how long a conflict with another network of this host may last before the subnet is withdrawn: the
// other network may be about to leave what this one needs.
const overlapPatience = time.Second

// awaitClaims blocks until no other network of this host uses what n needs. While a subnet is in use, it only waits for
// overlapPatience, and then returns a *lease.WithdrawnError. Otherwise the network claims nothing while it waits, so
// that two networks that exchange their pools do not wait for each other.
func (r *Runner) awaitClaims(ctx context.Context, n registry.Network, mine hostClaim) error {
	backoff, began := retry.NewBackoff(), time.Now()
	for {
		conflict := r.deps.Claims.take(n.Name, mine)
		switch {
		case conflict == nil:
			return nil
		case !r.withdrawn.isDue(r.previous):
			r.deps.Claims.release(n.Name)
		case time.Since(began) > overlapPatience:
			return r.lease.Withdraw(r.previous, fmt.Sprintf("%s cannot be used: %v", r.previous, conflict), "")
		}
		r.report.Wait(health.Network, conflict.Error())
		if err := backoff.Wait(ctx); err != nil {
			return err
		}
	}
}
