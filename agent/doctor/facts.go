package doctor

import (
	"net/netip"
	"time"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// Facts are what was seen of a host.
type Facts struct {
	Node     string
	Active   bool   // packets were sent, where that was possible
	Inactive string // why none could be sent though it was asked for, "" for nothing

	Capabilities []string // that are missing; nil for none, or not known
	Store        Store
	Health       []api.Check // of the whole agent, what Store tells left out
	Networks     []Network
	// Alone is what is seen of a host on which no agent answers, nil where one does.
	Alone *Alone
}

// Alone is what the command finds out by itself.
type Alone struct {
	Address string // where no agent answered
	Err     error  // why
	Files   []string
	Config  error  // why they cannot be used, nil otherwise
	Owner   string // another agent that has this host or its state directory, "" for none
	Taken   string // why the address of its API cannot be had, "" when it can
}

// Store is what was seen of Consul.
type Store struct {
	Name   string // "consul at 127.0.0.1:8500"
	Err    error  // of one consistent read
	Rights []registry.Right
	// RightsErr is why they are not known. ErrDenied: there is no such token.
	RightsErr error
}

// Network is this host's part in one network.
type Network struct {
	Name    string
	Backend string // type
	Pools   []netip.Prefix
	Subnets []netip.Prefix // this host's, as it carries them
	MTU     int            // of the overlay
	Link    string
	Port    int  // UDP, that packets cross by; 0 for none
	Same    bool // they are sent from that port, too
	Checks  Checks

	Underlay Underlay
	Lease    Lease
	Device   Device

	Obstacles []firewall.Obstacle
	Blockades []firewall.Blockade
	RulesErr  error   // not all rules could be read
	Routes    []Route // of others, to addresses that hosts are given
	RoutesErr error

	Forwarding    []forwarding.State // the kernel's switches, of each family
	ForwardingErr error
	Forward       bool // the agent switches them on

	Peers []Peer
	Asked int // of how many peers more was asked; fewer than all where there are many
}

// Checks is what the agent's own health says of the network.
type Checks struct {
	Network, Underlay, Lease, Conflict, Device, Routes api.Check
	Others                                             []api.Check // that nothing else here is about
}

// Underlay is where the host stands between hosts.
type Underlay struct {
	Interface string
	MTU       int
	Public    []netip.Addr   // that others send to
	Own       []netip.Addr   // the host's own behind each; the zero address for none
	OnLink    []netip.Prefix // of its interface
}

// translated says whether others reach the host by an address that is not its own.
func (u Underlay) translated() bool {
	return len(u.Public) > 0 && len(u.Own) > 0 && u.Own[0] != u.Public[0]
}

// Lease is what the agent holds, and what the store has.
type Lease struct {
	Held      bool // an agent does, or says so
	Mine      registry.Lease
	Renewed   time.Time // last
	TTL       time.Duration
	Record    *registry.Lease // the record as it was just read; nil when there is none
	RecordErr error           // why it could not be
	Now       time.Time
}

// Device is the network's own.
type Device struct {
	Wanted bool // the backend has one
	Exists bool
	Up     bool
	Kind   string
	MAC    string // "" where it has none
	MTU    int
	Err    error
	Module error // why the kernel cannot have one, as far as that is known
	TUN    error // why /dev/net/tun could not be opened, where the backend needs it
}

// Route is one of somebody else's.
type Route struct {
	Dst  netip.Prefix
	Link string
	// Connected says that the host has an address there.
	Connected bool
	// Serves says that it leads to containers of this host: the bridge of one of its
	// own subnets.
	Serves bool
}

// Peer is another host and the ways to it.
type Peer struct {
	Node     string
	Held     bool
	Skipped  string
	Subnets  []netip.Prefix
	Public   netip.Addr
	Refusals []Refusal
	Probe    *api.PeerProbe // nil where nothing was sent
	// Datagrams says whether UDP and TCP come through the overlay where pings do; Unknown
	// where any of them could not be sent.
	Datagrams Answer
}

// Refusal is a kind of packet of a peer that the kernel does not take from a device,
// by its reverse path filter.
type Refusal struct {
	Source, Dest netip.Addr
	Link         string // by which it comes
	Mode         string // "1", strict, or "2", loose
	By           string // device by which the host reaches the source; "" for none
	// Perhaps says that packets come by that device only where the peer sees the way
	// between both otherwise than this host does.
	Perhaps bool
}

// Answer is what a question came to.
type Answer int

// The answers.
const (
	Unknown Answer = iota
	Yes
	No
)
