package doctor

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/registry"
)

// Facts hold what is known of a host.
type Facts struct {
	Node           string
	Active         bool   // packets were sent, where that was possible
	InactiveReason string // why none could be sent although it was requested, "" for no reason

	Capabilities []string // missing ones; nil for none, or not known
	DataDir      string   // the agent's state directory
	Connections  forwarding.Connections
	Store        Store
	Health       []api.Check // of the whole agent, without those that Store covers
	// directories of a Nomad client in which no CNI configuration uses leno; nil if that is no fault
	DirsWithoutCNI []string
	Networks       []Network
	// FlannelChains are flannel's chains of firewall rules, such as "iptables chain FLANNEL-FWD".
	FlannelChains []string
	// Offline holds the facts of a host on which no agent answers; nil where one does.
	Offline *Offline
}

// Offline holds what the command finds out by itself.
type Offline struct {
	Address        string // where no agent answered
	Err            error  // why
	Files          []string
	Config         error  // why the configuration files are invalid, nil otherwise
	Owner          string // another agent that has this host or its state directory, "" for none
	AddressProblem string // why the address of its API cannot be used, "" when it can
}

// Store holds what is known of the store.
type Store struct {
	Kind string // such as config.StoreConsul, "" for that
	Name string // "consul at 127.0.0.1:8500"
	Err  error  // of one consistent read
	// NoToken means that nothing gives the agent a token of Consul, so that it has the rights of the anonymous one.
	NoToken bool
	Rights  []registry.Right
	// RightsErr is why the rights are not known. ErrDenied means that there is no such token.
	RightsErr error
}

// Network describes this host's part in one network.
type Network struct {
	Name     string
	Backend  string // type
	Pools    []netip.Prefix
	Subnets  []netip.Prefix // of this host
	MTU      int            // of the overlay
	Link     string
	Notes    []string // what the backend chose by itself, and what it does without
	Port     int      // UDP, of the tunnel; 0 for none
	SamePort bool     // packets are also sent from that port
	Checks   Checks

	Underlay Underlay
	Lease    Lease
	Device   Device

	Obstacles []foreign.Obstacle
	Blockades []foreign.Blockade
	RulesErr  error   // not all rules could be read
	Routes    []Route // of other programs, to addresses that hosts are given
	RoutesErr error

	Forwarding    []forwarding.State // the kernel's switches, one for each family
	ForwardingErr error
	Forward       bool // the agent switches them on

	Peers  []Peer
	Probed int // how many peers were probed; fewer than all where there are many
	// Filtered is the number of packets that this host's reverse path filter dropped while peers were probed.
	Filtered int
}

// Checks holds the agent's own health of the network.
type Checks struct {
	Network, Underlay, Lease, Conflict, Device, Routes api.Check
	Others                                             []api.Check // those that no other finding covers
}

// Underlay describes the host's connection to the other hosts.
type Underlay struct {
	Interface string
	MTU       int
	Public    []netip.Addr   // the addresses that other hosts send to
	Own       []netip.Addr   // the host's own address for each; the zero address for none
	OnLink    []netip.Prefix // of its interface

	Ports map[uint16]uint16 // of Public, by the port of this host to which a NAT passes them on; others are the same
}

// publicPort returns the port of the public address that leads to a UDP port of this host.
func (u Underlay) publicPort(port int) int {
	return cmp.Or(int(u.Ports[uint16(port)]), port)
}

// isTranslated reports whether others reach the host by an address that is not its own.
func (u Underlay) isTranslated() bool {
	return len(u.Public) > 0 && len(u.Own) > 0 && u.Own[0] != u.Public[0]
}

// Lease holds what the agent holds, and what the store has.
type Lease struct {
	Held      bool // an agent holds it, or says so
	Own       registry.Lease
	Renewed   time.Time // last
	TTL       time.Duration
	Record    *registry.Lease // the record as it was just read; nil when there is none
	RecordErr error           // why it could not be read
	Now       time.Time
}

// Device describes the network's device.
type Device struct {
	Wanted bool // the backend has one
	Exists bool
	Up     bool
	Kind   string
	MAC    string // "" where it has none
	Key    string // public key, in base64; "" where it has none or it could not be read
	MTU    int
	Err    error
	Module error // why the kernel cannot create one, as far as known
	TUN    error // why /dev/net/tun could not be opened, where the backend needs it
}

// Route is a route of another program.
type Route struct {
	Dst     netip.Prefix
	Link    string     // "" if it refuses packets
	Refuses string     // its type if it refuses packets: blackhole, unreachable or prohibit
	Gateway netip.Addr // zero for none
	Flannel bool       // Link has a name that flannel gives
	// Connected means that the host has an address in Dst.
	Connected bool
	// Serves means that it leads to containers of this host: the bridge of one of its own subnets.
	Serves bool
}

// Peer is another host and the paths to it.
type Peer struct {
	Node      string
	Held      bool
	Flannel   bool // it runs flannel
	Skipped   string
	Subnets   []netip.Prefix
	Public    netip.Addr
	BehindNAT bool // packets do not go to its public address, but to another one, past a NAT
	Port      int  // UDP port to which packets go; 0 for a backend without ports
	Refusals  []Refusal
	Detour    *kernel.Detour // of packets to it, nil for none
	Path      *api.PeerPath  // by the continuous tests; nil if they are off
	Probe     *api.PeerProbe // nil where nothing was sent
	// Datagrams tells whether UDP and TCP get through the overlay where pings do; Unknown where any of them could not
	// be sent.
	Datagrams Answer
}

// Refusal is a kind of packet of a peer that the kernel does not accept from a device, because of its reverse path
// filter.
type Refusal struct {
	Source, Dest netip.Addr
	Link         string // by which it arrives
	Mode         string // "1", strict, or "2", loose
	ReturnLink   string // device by which the host reaches the source; "" for none
	// IfAsymmetric means that packets arrive by that device only if the peer uses another path between both hosts than
	// this host does.
	IfAsymmetric bool
	// OtherLinks means that Link names devices that are neither the underlay's nor the network's: packets arrive by one
	// of them only if the peer's path to this host is another one than this host's path to the peer.
	OtherLinks bool
}

// Answer is the answer to a question about the host.
type Answer int

// The answers.
const (
	Unknown Answer = iota
	Yes
	No
)
