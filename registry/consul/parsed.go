package consul

import (
	"bytes"
	"slices"
	"sync"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// parsed remembers what the records of one tree were read as. A list brings
// every record each time and seldom a new one, and reading a record costs more
// than all else that is done with it.
type parsed struct {
	mu      sync.Mutex
	network registry.Network
	leases  map[string]parsedLease // by key
}

type parsedLease struct {
	value []byte
	lease registry.Lease
	err   error
}

// read parses every pair of one list of leases of n, the marker left out. What
// the lists before had and this one lacks is forgotten. The leases share memory
// with those of other lists.
func (p *parsed) read(n registry.Network, prefix string, pairs []*api.KVPair) []parsedLease {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.network.Name != n.Name || !slices.Equal(p.network.Plan, n.Plan) {
		p.network, p.leases = n, nil
	}
	next := make(map[string]parsedLease, len(pairs))
	out := make([]parsedLease, len(pairs))
	for i, pair := range pairs {
		entry, ok := p.leases[pair.Key]
		if !ok || !bytes.Equal(entry.value, pair.Value) {
			entry.lease, entry.err = registry.ParseLease(n, pair.Key[len(prefix):], pair.Value)
		}
		entry.value = pair.Value // the newer copy, so that the older can go
		next[pair.Key] = entry
		entry.lease = stored(entry.lease, pair)
		out[i] = entry
	}
	p.leases = next
	return out
}
