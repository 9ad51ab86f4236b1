package state

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/lenonet/leno/registry"
)

// maxPeersFile bounds the size of a peers file, in bytes: ten times what a network of 10,000 hosts needs.
const maxPeersFile = 64 << 20

// Peers is the content of the file <data_dir>/peers/<network>.json: the other hosts' leases as this host used them
// last.
type Peers struct {
	Version int    `json:"version"`
	Network string `json:"network"`
	// Created differs if the network was deleted and defined again, or if the store was emptied.
	Created uint64 `json:"create_index"`
	// Definition is the network's record. The leases are parsed by its plan.
	Definition json.RawMessage `json:"definition"`
	Leases     []PeerLease     `json:"leases"`

	Sum [sha256.Size]byte `json:"-"` // of the file, as read
}

// A PeerLease is the lease of another host.
type PeerLease struct {
	Key         string          `json:"key"` // last component of the record's key, for example "10.5.34.0-24"
	Record      json.RawMessage `json:"record"`
	Held        bool            `json:"held"`
	Flannel     bool            `json:"flannel,omitempty"` // the host runs flannel
	CreateIndex uint64          `json:"create_index"`
	ModifyIndex uint64          `json:"modify_index"`
	// of two leases that contradict each other, the lower one counts
	Seniority uint64 `json:"seniority,omitempty"`
}

// PeersPath returns the path of a network's peers file.
func PeersPath(dataDir, network string) string {
	return filepath.Join(dataDir, "peers", network+".json")
}

// LoadPeers reads a network's peers file.
func LoadPeers(dataDir, network string) (p Peers, err error) {
	f, err := os.Open(PeersPath(dataDir, network))
	if err != nil {
		return p, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxPeersFile))
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return Peers{}, fmt.Errorf("%s is broken: %w", f.Name(), err)
	}
	if p.Version != registry.Version || p.Network != network {
		return Peers{}, fmt.Errorf("%s is of version %d and network %q", f.Name(), p.Version, p.Network)
	}
	p.Sum = sha256.Sum256(data)
	return p, nil
}

// ParseLeases returns the leases that fit the plan of n, which may have changed since the file was written.
func (p Peers) ParseLeases(n registry.Network) (out []registry.Lease) {
	for _, r := range p.Leases {
		parse := registry.ParseLease
		if r.Flannel {
			parse = registry.ParseForeignLease
		}
		l, err := parse(n, r.Key, r.Record)
		if err != nil {
			continue // of another plan
		}
		if r.Held {
			l.Session = "of an earlier process"
		}
		l.CreateIndex, l.ModifyIndex = r.CreateIndex, r.ModifyIndex
		out = append(out, l)
	}
	return out
}

// Seniority returns the ranks of the leases that have one, by the first subnet.
func (p Peers) Seniority() map[netip.Prefix]uint64 {
	out := map[netip.Prefix]uint64{}
	for _, r := range p.Leases {
		if subnet, err := registry.ParseSubnetKey(r.Key); err == nil && r.Seniority != 0 {
			out[subnet] = r.Seniority
		}
	}
	return out
}

// RemovePeers removes a network's peers file, and the directory if it is empty then.
func RemovePeers(dataDir, network string) error {
	return removeWithDir(PeersPath(dataDir, network))
}
