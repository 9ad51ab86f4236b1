package registry

import "net/netip"

// The types below belong to what only some stores can do: show services in a catalogue, check rights, find all records
// of a host and tell which hosts are alive. The packages that use these abilities declare their interfaces.

// Service is one agent in the catalogue.
type Service struct {
	Name      string     // "leno"
	ID        string     // unique on the node
	Address   netip.Addr // where others reach the agent's host; invalid for the node's own address
	Port      int        // of the agent's HTTP API, 0 for none
	HealthURL string     // URL that the catalogue polls; "" for a TTL check fed by Announce
	Tags      []string
	Meta      map[string]string
	// Epoch is the time when the store was last seen to be set back, for example "2026-01-02T03:04:05Z". The catalogue
	// may have been set back with it, although everything looks right, so a new value registers the service again. It is
	// "" while that has not happened.
	Epoch string
}

// Verdict is the agent's health as shown in catalogues.
type Verdict struct {
	Status string // "passing", "warning" or "critical"
	Output string // reasons, a few lines
}

// RequiredRights describes what an agent does in a store, from which the rights follow that it needs.
type RequiredRights struct {
	Node     string   // the agent's name
	Named    bool     // the store need not tell the name
	Networks []string // networks that the agent takes part in
	Defines  []string // those of them that the agent defines itself where they are missing
	Service  string   // the agent's name in the catalogue, "" for none
}

// Right is one rule of a policy.
type Right struct {
	Rule    string // as the store writes it: `key_prefix "leno/leases/" { policy = "write" }`
	For     string // what it is needed for: "to write this host's lease"
	Granted bool
}

// Host identifies one host in a store.
type Host struct {
	Node     string   // name, "" when it is not known
	NodeID   string   // "" when it is not known
	Sessions []string // sessions that the host remembers
}

// HostRecords are the records that a host has in a store.
type HostRecords struct {
	// Leases name the node or the node id, or are locked by one of the sessions. The records may be unusable: only
	// network, the first subnet and the session are certain, other fields are filled in as far as they can be read.
	Leases []Lease
	// Sessions hold no lease, and carry the host's name or are among those that it remembers.
	Sessions []string
}

// Values of Member.Status.
const (
	MemberAlive  = "alive"
	MemberFailed = "failed" // it stopped answering the others
	MemberLeft   = "left"   // it said that it stops
)

// Member is a host as the agents of a store know it from each other.
type Member struct {
	Node   string // its name in the store, which may differ from leno's
	Addr   netip.Addr
	Status string
}
