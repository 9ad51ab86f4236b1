package soak

import (
	"compress/gzip"
	"encoding/gob"
	"errors"
	"net/netip"
	"os"
	"time"
)

// History is everything that was seen of a run, from outside. Times count from
// its start. Lists are in the order in which things were seen.
type History struct {
	Rules    Rules
	Networks []NetworkInfo
	Nodes    []Node
	Claims   []Claim
	Reads    []Read
	Silences []Silence
	Storms   []Storm
	Rewinds  []Rewind
	Changes  []Change
	Options  []OptionChange
	Routes   []RouteList
	Removals []Removal
	Devices  []DeviceLoss
	Losses   []Loss
	Notices  []Notice
	Endings  []Ending
}

// Rules are the times that were promised.
type Rules struct {
	TTL  time.Duration // of a lease's session, which lives up to twice that
	Hold time.Duration // a lapsed lease is kept for its host
	// Settle is how long after a fault everything is as it was, on a machine that
	// gives every program a processor when it wants one.
	Settle time.Duration
}

// NetworkInfo is what the rules need to know of one of the run's networks.
type NetworkInfo struct {
	Name string
	// Definers are the first names of the machines whose configurations define it. In a store that has lost the
	// record of a deletion, one that does not remember it defines the network again.
	Definers []string
}

// Node is one host in one network under one name. A machine that comes back
// under another name is another node.
type Node struct {
	Name    string
	Network string
	Carries bool // has a datapath and, in a network that stays, a container
	// Replaces are the nodes whose place and address it took, one after another.
	Replaces []string
}

// Span is a time from and to, both included.
type Span struct{ From, To time.Duration }

// forever is the end of what never ends.
const forever = time.Duration(1<<63 - 1)

func (s Span) overlaps(o Span) bool { return s.From <= o.To && o.From <= s.To }

// Claim is one look at a node's agent about one network: what the agent says
// between question and answer.
type Claim struct {
	Node    string
	Network string
	Span
	Process  int // pid
	Answered bool
	// Subnets it holds by its own word, the first decides on the slot.
	Subnets []netip.Prefix
	Status  string         // of the agent's own checks and the network's, the worst
	Trouble string         // the checks that do not pass, with their reasons
	Renewed time.Duration  // when it renewed its lease last
	View    []Entry        // all leases as it knows them, nil when it was not asked
	File    []netip.Prefix // what the subnet file says, nil when there is none
	OldFile bool           // the file that options named before is still there
	// Waited is for how long, since the beginning of the run, threads of the agent
	// and of its Consul agent were ready to run and had no processor.
	Waited time.Duration
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

// Record is one lease in the store. Of one that cannot be read only the subnet is
// known, by its key.
type Record struct {
	Entry
	Subnets []netip.Prefix
	Session string // "" when it lapsed
}

func (r Record) readable() bool { return r.Node != "" }

// Read is one consistent read of a network's records: true at one moment between
// question and answer.
type Read struct {
	Span
	Network string
	// State of the network's own record: missing, defined, deleted or unreadable.
	State string
	// Definition is the plan and backend in one order and without spaces, "" when
	// the network is not defined.
	Definition string
	Records    []Record
	// Waited is for how long, since the beginning of the run, this reader waited
	// for the store's answers.
	Waited time.Duration
}

// States of a network's record.
const (
	stateMissing    = "missing"
	stateDefined    = "defined"
	stateDeleted    = "deleted"
	stateUnreadable = "unreadable"
)

// Silence is a time in which a node's agent could not know of others, or others
// of it: it was dead, stopped, cut off, or without a right or a Consul to ask.
type Silence struct {
	Node string
	Span
	Why Kind
}

// Storm is a time in which no agent could rely on the store, by a fault on the
// servers, on everybody's rights or on the records.
type Storm struct {
	Span
	Why Kind
}

// Rewind is a time within which the store was emptied or set back, or lost one
// network's definition.
type Rewind struct {
	Span
	Why Kind
	// Saved is when the snapshot was made that the store was set back to.
	Saved time.Duration
	// Network is the one that lost its definition, "" when it was the whole store.
	Network string
}

// setBack reports whether the store has older records of leases since, not none.
func (r Rewind) setBack() bool { return r.Why == RestoreStore || r.Why == RestoreBad }

// restored reports whether the store was set back to a snapshot, of any age.
func (r Rewind) restored() bool { return r.setBack() || r.Why == RestoreOldest }

// Change is a time within which an operator wrote a network's record.
type Change struct {
	Span
	Network string
	Why     Kind // DefineNetwork, DeleteNetwork, ChangeNetwork or RewriteNetwork
	// Definition it has since, as in Read.
	Definition string
	// Recorded says of a deletion that its record was seen in the store. There is
	// none when the store had lost the network before.
	Recorded bool
}

// OptionChange is a time within which an agent took over other options of one
// network from its configuration.
type OptionChange struct {
	Span
	Node, Network string
}

// RouteList is one look at the kernel of a node that carries.
type RouteList struct {
	Node    string
	At      time.Duration
	To      []netip.Prefix // others' subnets that there are routes to, in any network
	Devices []string       // networks that have their device
}

// Removal is a route that a node's kernel lost.
type Removal struct {
	Node string
	At   time.Duration
	To   netip.Prefix
}

// DeviceLoss is a network's device that a node's kernel lost.
type DeviceLoss struct {
	Node    string
	Network string
	At      time.Duration
}

// Loss is a ping from container to container that was never answered.
type Loss struct {
	Network  string
	From, To string // nodes
	At       time.Duration
}

// Notice is an agent's log line about having another subnet now.
type Notice struct {
	Node    string
	Network string
	Process int
	Subnet  netip.Prefix
}

// Ending is an agent that ended although nobody ended it, or not as it should.
type Ending struct {
	Node string
	At   time.Duration
	Text string // its last words
}

// save writes the history to a file, for a later look.
func (h History) save(path string) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	packed := gzip.NewWriter(file)
	return errors.Join(gob.NewEncoder(packed).Encode(h), packed.Close())
}

// Load reads a history that a run has kept.
func Load(path string) (h History, err error) {
	file, err := os.Open(path)
	if err != nil {
		return h, err
	}
	defer file.Close()
	packed, err := gzip.NewReader(file)
	if err != nil {
		return h, err
	}
	return h, gob.NewDecoder(packed).Decode(&h)
}
