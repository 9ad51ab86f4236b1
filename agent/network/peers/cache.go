package peers

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
)

// A peerCache is the file with the leases of other hosts, and what an earlier process wrote into it.
type peerCache struct {
	path    string
	written [sha256.Size]byte       // of the content of the file
	ranks   map[netip.Prefix]uint64 // of the leases in the file, see belief.Seniority
	belief.Remembered
}

// SettleTime returns how long leases stay that are missing from a store that was emptied or set back. That is longer
// than a session in such a store can live without its host, and longer than a host may wait for such a session to end
// before it writes its own lease.
func SettleTime(l config.Lease) time.Duration { return 3 * l.TTL }

// loadCache reads the file. If it is missing or damaged, the result has no leases.
func loadCache(dataDir string, n registry.Network, stays time.Duration) *peerCache {
	c := &peerCache{path: state.PeersPath(dataDir, n.Name), Remembered: belief.Remembered{Settle: stays}}
	if file, err := state.LoadPeers(dataDir, n.Name); err == nil {
		c.written, c.Created, c.Leases, c.ranks = file.Sum, file.Created, file.ParseLeases(n), file.Seniority()
	}
	return c
}

// save writes the leases to the file if they differ from its content.
func (c *peerCache) save(v *View) error {
	n := v.Network
	definition, err := registry.FormatNetwork(n)
	if err != nil {
		return fmt.Errorf("remember the network: %w", err)
	}
	now := state.Peers{
		Version:    registry.Version,
		Network:    n.Name,
		Created:    n.CreateIndex,
		Definition: definition,
		Leases:     []state.PeerLease{},
	}
	for _, l := range v.Leases {
		if l.NodeID == v.Own.NodeID || l.Subnet() == v.Own.Subnet() {
			continue
		}
		record, err := registry.FormatLease(l)
		if err != nil {
			return fmt.Errorf("remember the lease of %s: %w", l.Node, err)
		}
		now.Leases = append(now.Leases, state.PeerLease{
			Key:         registry.SubnetKey(l.Subnet()),
			Record:      record,
			Held:        l.Held(),
			Flannel:     l.Foreign,
			CreateIndex: l.CreateIndex,
			ModifyIndex: l.ModifyIndex,
			Seniority:   v.Seniority[l.Subnet()],
		})
	}
	data, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("remember the peers: %w", err)
	}
	sum := sha256.Sum256(data)
	if sum == c.written {
		return nil
	}
	if err := state.WriteFile(c.path, data, 0o600); err != nil {
		return fmt.Errorf("remember the peers: %w", err)
	}
	c.written = sum
	return nil
}
