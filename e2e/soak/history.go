package soak

import (
	"compress/gzip"
	"encoding/gob"
	"errors"
	"net/netip"
	"os"
	"time"
)

// A History holds everything that was seen of a run from outside. Times count from its start. Lists
// are in the order of the observations.
type History struct {
	Rules    Rules
	Networks []NetworkInfo
	Nodes    []Node
	Claims   []Claim
	Reads    []Read
	Silences []Silence
	// Disturbances are the faults of hosts' own networks.
	Disturbances []Disturbance
	Storms       []Storm
	Rewinds      []Rewind
	Forgeries    []Forgery
	Changes      []Change
	// Compactions are the times by which the store had discarded the history of its records.
	Compactions []time.Duration
	Options     []OptionChange
	Departures  []Departure
	Routes      []RouteList
	Firewalls   []Jumps
	Attacks     []Attack
	Removals    []Removal
	Devices     []DeviceLoss
	Losses      []Loss
	Notices     []Notice
	Endings     []Ending
	// InProcess are the backends whose packets an agent forwards itself on this machine.
	InProcess []string
}

// Rules are the times that leno promises.
type Rules struct {
	TTL  time.Duration // of a lease's session, which lives up to twice as long
	Hold time.Duration // how long a lapsed lease is kept for its host
	// Settle is how long after a fault everything must be as before, on a machine on which every
	// program gets a CPU when it needs one.
	Settle time.Duration
}

// NetworkInfo is what the rules need to know about one of the run's networks.
type NetworkInfo struct {
	Name string
	// Definers are the first names of the machines whose configurations define the network. If the
	// store has lost the record of a deletion, one of them that does not remember the deletion
	// defines the network again.
	Definers []string
}

// A Node is one host in one network under one name. A machine that comes back under another name is
// another node.
type Node struct {
	Name    string
	Network string
	Carries bool // it has a datapath and, in a permanent network, a container
	// Replaces are the nodes whose place and address it took, in order.
	Replaces []string
}

// A Span is a time including both ends.
type Span struct{ From, To time.Duration }

// forever is the end of a span that does not end.
const forever = time.Duration(1<<63 - 1)

func (s Span) overlaps(o Span) bool { return s.From <= o.To && o.From <= s.To }

// A Claim is one look at a node's agent about one network: what the agent said between request and
// response.
type Claim struct {
	Node    string
	Network string
	Span
	Process  int // process id
	Answered bool
	Ready    bool // the agent says that the network is ready
	// Subnets are the subnets that it holds according to its agent. The first one determines the
	// slot.
	Subnets []netip.Prefix
	Status  string         // the worst status of the agent's own checks and the network's
	Trouble string         // the checks that are not passing, with their reasons
	Renewed time.Duration  // time of the last renewal of its lease
	View    []Entry        // all leases known to it, or nil if it was not asked
	File    []netip.Prefix // content of the subnet file, or nil if there is none
	OldFile bool           // the file at the previous path still exists
	// Waited is how long, since the start of the run, threads of the agent and of its Consul agent
	// were ready to run and had no CPU.
	Waited time.Duration
}

func (c Claim) subnet() netip.Prefix {
	if len(c.Subnets) == 0 {
		return netip.Prefix{}
	}
	return c.Subnets[0]
}

// An Entry is a subnet and its node.
type Entry struct {
	Subnet netip.Prefix
	Node   string
}

// A Record is one lease in the store. Of an invalid one, only the subnet in its key is known.
type Record struct {
	Entry
	Subnets []netip.Prefix
	Session string // "" if it has lapsed
}

func (r Record) readable() bool { return r.Node != "" }

// A Read is one consistent read of a network's records, valid at one moment between request and
// response.
type Read struct {
	Span
	Network string
	// State is the state of the network's own record: missing, defined, deleted or unreadable.
	State string
	// Definition is the plan and backend in a fixed order and without spaces, or "" if the network
	// is not defined. While the network is switched, it has the backend to which it goes alone.
	Definition string
	// Backends are the backends in the definition: the current one and, while the network is switched, the next one.
	Backends []Backend
	Slots    int // number of subnets in the pool
	Records  []Record
	// Waited is how long, since the start of the run, this reader waited for the store's responses.
	Waited time.Duration
}

// A Backend carries a network's packets.
type Backend struct {
	Type  string
	Other bool // it uses the network's other device
}

// These are the states of a network's record.
const (
	stateMissing    = "missing"
	stateDefined    = "defined"
	stateDeleted    = "deleted"
	stateUnreadable = "unreadable"
)

// A Silence is a time in which a node's agent could not know of others, or others of it: it was
// dead, stopped or cut off, or lacked its rights or its Consul agent.
type Silence struct {
	Node string
	Span
	Why Kind
}

// A Disturbance is a time in which another program or an operator disturbs the network of a node, whose agent goes on.
type Disturbance struct {
	Node string
	Span
	Why Kind
	// A routing rule takes the packets of Network, or those to the address of the host Peer.
	Network, Peer string
}

// A Storm is a time in which no agent could rely on the store, because of a fault on the servers,
// on all agents' rights or on the records.
type Storm struct {
	Span
	Why Kind
}

// A Forgery is a time in which the store has records that a stranger wrote about running hosts of a network.
type Forgery struct {
	Span
	Network string
	Leases  []Entry // those of them that are leases
}

// A Rewind is a time within which the store was emptied or set back, or lost the definition of one
// network.
type Rewind struct {
	Span
	Why Kind
	// Saved is when the snapshot was taken to which the store was set back.
	Saved time.Duration
	// Network is the network that lost its definition, or "" for the whole store.
	Network string
}

// setBack reports whether the store has older lease records since then, not none.
func (r Rewind) setBack() bool { return r.Why == RestoreStore || r.Why == RestoreBad }

// restored reports whether the store was set back to a snapshot of any age.
func (r Rewind) restored() bool { return r.setBack() || r.Why == RestoreOldest }

// A Change is a time within which an operator wrote a network's record.
type Change struct {
	Span
	Network string
	Why     Kind // a kind of fault on one network
	// Definition is the definition since then, as in Read.
	Definition string
	// Recorded says that the record of a deletion was seen in the store. There is none if the store
	// had lost the network before.
	Recorded bool
}

// An OptionChange is a time within which an agent loaded other options of one network from its
// configuration.
type OptionChange struct {
	Span
	Node, Network string
}

// A Departure is a time in which a host has left a network, or within which an operator revoked its lease.
type Departure struct {
	Span
	Node, Network string
	Why           Kind
}

// A RouteList is one look at the kernel of a node that carries packets.
type RouteList struct {
	Node    string
	At      time.Duration
	To      []netip.Prefix // subnets of other nodes to which there are routes, in any network
	Devices []string       // networks whose device exists; with otherDevice, the other device
	// Direct are those of the destinations to which packets go without a device of leno's.
	Direct []netip.Prefix
	Keys   []string // the devices, as in Devices, for which there is a key of WireGuard in the agent's directory
	// MTUs are those of the routes to the destinations in To, or of their devices, DeviceMTUs those of Devices.
	MTUs        map[netip.Prefix]int
	DeviceMTUs  map[string]int
	UnderlayMTU int
}

// Jumps are the numbers of jumps to leno's chains in the kernel's rules of a node, each by the table, the chain that has
// the jump and the chain to which it leads.
type Jumps struct {
	Node  string
	At    time.Duration
	Count map[string]int
	// Foreign is the number of rules that the suite added as another program.
	Foreign int
}

// An Attack is what a container without privileges achieved that sent packets to the tunnels of other hosts.
type Attack struct {
	Node    string
	Network string
	Span
	Sent int
	// Forgotten are the times at which the suite emptied the connection tracking of the node.
	Forgotten []time.Duration
	Injected  int // forged packets that arrived at other hosts' containers
	Stolen    int // packets of its host's tunnel that arrived at the container
}

// A Removal is a route that disappeared from a node's kernel.
type Removal struct {
	Node string
	At   time.Duration
	To   netip.Prefix
}

// otherDevice follows the name of a network, as in the device's own name, where the device is meant that the network has
// while it is switched to another backend, and after every other switch.
const otherDevice = "~b"

// A DeviceLoss is a network's device that disappeared from a node's kernel.
type DeviceLoss struct {
	Node    string
	Network string // as in RouteList.Devices
	At      time.Duration
}

// A Loss is a ping between containers that was never answered.
type Loss struct {
	Network  string
	From, To string // nodes
	At       time.Duration
	IPv6     bool
}

// A Notice is an agent's log line about its new subnet.
type Notice struct {
	Node    string
	Network string
	Process int
	Subnet  netip.Prefix
}

// An Ending is an agent that ended without a fault, or failed when it was stopped.
type Ending struct {
	Node string
	At   time.Duration
	Text string // last lines of its output
}

// save writes the history to a file for later analysis.
func (h History) save(path string) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	packed := gzip.NewWriter(file)
	return errors.Join(gob.NewEncoder(packed).Encode(h), packed.Close())
}

// Load reads a history that a run has saved.
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
