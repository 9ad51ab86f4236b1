package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/lenonet/leno/backend"
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

// release removes a network's claim.
func (p *HostClaims) release(network string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.claims, network)
}
