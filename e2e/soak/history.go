package soak

import (
	"net/netip"
	"time"
)

// History is everything that was seen of a run, from outside. Times count from
// its start. Lists are in the order in which things were seen.
type History struct {
	Rules    Rules
	Nodes    []Node
	Claims   []Claim
	Reads    []Read
	Silences []Silence
	Storms   []Storm
	Rewinds  []Rewind
	Routes   []RouteList
	Removals []Removal
	Losses   []Loss
	Notices  []Notice
	Endings  []Ending
}

// Rules are the times that were promised.
type Rules struct {
	TTL  time.Duration // of a lease's session, which lives up to twice that
	Hold time.Duration // a lapsed lease is kept for its host
	// Settle is how long after a fault everything is as it was.
	Settle time.Duration
}

// Node is one host of one network under one name. A machine that comes back
// under another name is another node.
type Node struct {
	Name    string
	Network string
	Carries bool // has a datapath and a container
	// Replaces is the node whose place and address it took, "" for none.
	Replaces string
}

// Span is a time from and to, both included.
type Span struct{ From, To time.Duration }

// forever is the end of what never ends.
const forever = time.Duration(1<<63 - 1)

func (s Span) overlaps(o Span) bool { return s.From <= o.To && o.From <= s.To }

// Claim is one look at a node's agent: what it says of itself between question
// and answer.
type Claim struct {
	Node string
	Span
	Process  int // pid
	Answered bool
	// Subnets it holds by its own word, the first decides on the slot.
	Subnets []netip.Prefix
	Status  string        // of /healthz
	Trouble string        // the checks that do not pass, with their reasons
	Renewed time.Duration // when it renewed its lease last
	View    []Entry       // all leases as it knows them, nil when it was not asked
}

func (c Claim) subnet() netip.Prefix {
	if len(c.Subnets) == 0 {
		return netip.Prefix{}
	}
	return c.Subnets[0]
}

// Entry says whose a subnet is.
type Entry struct {
	Subnet netip.Prefix
	Node   string
}

// Record is one lease in the store.
type Record struct {
	Entry
	Subnets []netip.Prefix
	Session string // "" when it lapsed
}

// Read is one consistent read of a network's leases: true at one moment between
// question and answer.
type Read struct {
	Span
	Network string
	Defined bool // the network's own record was there
	Records []Record
}

// Silence is a time in which a node's agent could not know of others, or others
// of it: it was dead, stopped, cut off, or without a right or a Consul to ask.
type Silence struct {
	Node string
	Span
	Why Kind
}

// Storm is a time in which no agent could rely on the store, by a fault on the
// servers or on everybody's rights.
type Storm struct {
	Span
	Why Kind
}

// Rewind is a time within which the store was emptied or set back.
type Rewind struct {
	Span
	Why Kind
}

// RouteList is one look at a node's routes to others' subnets.
type RouteList struct {
	Node string
	At   time.Duration
	To   []netip.Prefix
}

// Removal is a route that a node's kernel lost.
type Removal struct {
	Node string
	At   time.Duration
	To   netip.Prefix
}

// Loss is a ping from container to container that was never answered.
type Loss struct {
	From, To string // nodes
	At       time.Duration
}

// Notice is an agent's log line about having another subnet now.
type Notice struct {
	Node    string
	Process int
	Subnet  netip.Prefix
}

// Ending is an agent that ended although nobody ended it.
type Ending struct {
	Node string
	At   time.Duration
	Text string // its last words
}

// Kind is a kind of fault.
type Kind string

// The faults on one host.
const (
	KillAgent    Kind = "kill-agent"    // kill -9, started again seconds later
	RestartAgent Kind = "restart-agent" // SIGTERM, started again at once
	StopShort    Kind = "stop-agent"    // SIGSTOP, continued before its session ends
	StopPastTTL  Kind = "stop-past-ttl"
	StopPastHold Kind = "stop-past-hold"
	CutHost      Kind = "cut-host"     // its wire loses everything
	LeaveClient  Kind = "leave-client" // its Consul client agent leaves gracefully and comes back
	RevokeToken  Kind = "revoke-token" // its ACL token is deleted, and given back
	ReplaceHost  Kind = "replace-host" // its agent dies for good, a machine of another name comes
)

// The faults on the store.
const (
	KillLeader   Kind = "kill-leader"
	LoseQuorum   Kind = "lose-quorum" // two servers of three are killed
	CutServer    Kind = "cut-server"
	EmptyStore   Kind = "empty-store"   // everything below leno/ is deleted
	SaveStore    Kind = "save-snapshot" // no fault: what RestoreStore goes back to
	RestoreStore Kind = "restore-snapshot"
	RevokeTokens Kind = "revoke-all-tokens"
)
