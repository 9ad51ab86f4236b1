package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/registry"
)

// BadSuffix is appended to the names of unusable files, which are kept for the operator.
const BadSuffix = ".bad"

// A Network is what an agent remembers of a network between processes, in <data_dir>/<network>.json.
type Network struct {
	Version int            `json:"version"`
	Network string         `json:"network"`
	NodeID  string         `json:"node_id,omitzero"` // of this host, in case its own file is lost
	Subnets []netip.Prefix `json:"subnets"`
	Session string         `json:"session"`
	Store   string         `json:"store,omitzero"` // config.Config.StoreLocation of the process that wrote the file
	// Lease is the version of the lease's record, and Definition the index at which the network's record was created.
	// They show whether the store was set back or created again. LeaseCreated is the index at which the lease's record was
	// created.
	Lease        uint64 `json:"lease_index,omitzero"`
	LeaseCreated uint64 `json:"lease_create_index,omitzero"`
	Definition   uint64 `json:"network_index,omitzero"`
	// Record is the last definition in force, and RecordIndex its version. A host that remembers a network restores its
	// definition if the store has lost it.
	Record      json.RawMessage `json:"definition,omitempty"`
	RecordIndex uint64          `json:"definition_index,omitzero"`
	// Renewed is when the lease was last renewed, accurate to a tenth of lease.hold. When it is older than lease.hold,
	// other hosts may have taken the subnet.
	Renewed time.Time `json:"renewed,omitzero"`
	// Revoked is the subnet that was revoked from this host, which must not claim it again. It is cleared when the host
	// has another subnet.
	Revoked netip.Prefix `json:"revoked,omitzero"`
	// Refused are the pools to which packets are refused because this host has withdrawn its subnet, none with the
	// backend alloc; nil if it has not. Subnets are the withdrawn ones, or those that this host has got since and does not
	// use yet.
	Refused []netip.Prefix `json:"refused,omitzero"`
	// MTU is that of the overlay, in bytes, for a host that starts without an underlay; 0 if it is not known.
	MTU int `json:"mtu,omitzero"`
	// SubnetFile is where the subnet file was written. It is removed there when the network's block is gone.
	SubnetFile        string         `json:"subnet_file"`
	Pools             []netip.Prefix `json:"pools"` // of the datapath, which is removed when they change; nil: removed
	registry.Carriage                // of the datapath, likewise
	// Underlay is the device between hosts, and Addresses are this host's public ones. Packets leave by Devices, and
	// Endpoints are where tunnels of peers receive at other ports: backend.Underlay and backend.Report have them.
	Underlay  string           `json:"underlay,omitempty"`
	Addresses []netip.Addr     `json:"addresses,omitempty"`
	Devices   []string         `json:"underlay_devices,omitempty"`
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"`
}

// LeaseOf returns the remembered lease of the host id, with the fields that a release needs.
func (s Network) LeaseOf(id Identity) registry.Lease {
	return registry.Lease{Network: s.Network, Subnets: s.Subnets, Session: s.Session, Node: id.Node, NodeID: id.NodeID}
}

// Reach returns the pools of the datapath, and those to which packets are refused.
func (s Network) Reach() []netip.Prefix {
	pools := slices.Concat(s.Pools, s.Refused)
	slices.SortFunc(pools, netip.Prefix.Compare)
	return slices.Compact(pools)
}

// Networks returns the names of the networks with a usable state file.
func Networks(dataDir string) (names []string) {
	files, err := filepath.Glob(Path(dataDir, "*"))
	if err != nil {
		return nil // only for an invalid pattern
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		if s, err := Load(dataDir, name); err == nil && s.Network != "" {
			names = append(names, name)
		}
	}
	return names
}

// Path returns the path of a network's state file.
func Path(dataDir, network string) string { return filepath.Join(dataDir, network+".json") }

// Load reads a network's state file. It returns the zero value if there is none, and the zero value and an error if the
// file cannot be read or used.
func Load(dataDir, network string) (Network, error) {
	path := Path(dataDir, network)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return Network{}, nil
	}
	if err != nil {
		return Network{}, err
	}
	var s Network
	if err := json.Unmarshal(data, &s); err != nil {
		return Network{}, fmt.Errorf("state file %s is broken: %w", path, err)
	}
	if s.Version != registry.Version || s.Network != network {
		return Network{}, fmt.Errorf("state file %s is of version %d and network %q", path, s.Version, s.Network)
	}
	var record bytes.Buffer // the file has it indented
	if len(s.Record) > 0 && json.Compact(&record, s.Record) == nil {
		s.Record = record.Bytes()
	}
	return s, nil
}

// Save writes the state file of the network s.Network.
func Save(dataDir string, s Network) error {
	s.Version = registry.Version
	return writeJSON(Path(dataDir, s.Network), s)
}
