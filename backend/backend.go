// Package backend defines the contract between the agent and the backends, which carry packets
// between hosts. It holds types only.
//
// A backend is given the complete state on every call and makes the kernel (or its own forwarder)
// agree with it. It never receives events and does not know where the state comes from.
package backend

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Type describes one kind of backend. The agent keeps a map of them.
type Type struct {
	Name string

	// Normalize decodes a network's options (a JSON object without "type"), checks them and returns
	// the effective options with all defaults filled in. Each error about a single option is an
	// *OptionError; several errors are joined. Pure.
	Normalize func(options json.RawMessage) (json.RawMessage, error)

	// Port returns the UDP port that a network with these effective options receives on. It is nil
	// for a backend without a port; see Uses. Pure.
	Port func(options json.RawMessage) Port

	// Interrupts maps each option whose change interrupts traffic to the reason, in words for
	// users. Changing any other option loses no packet, and neither does changing the pools as long
	// as every host keeps its subnets.
	Interrupts map[string]string

	// Overhead returns the bytes that the backend adds to a packet for a peer that is reached at the given address. It is
	// nil for a backend that adds none. Pure.
	Overhead func(outer netip.Addr) int

	// Rotate returns the options with which the backend runs after an odd number of key rotations. They do not collide
	// with the given ones on a host that has both. It is nil for a backend without keys. The error says why the keys are
	// not leno's to rotate. Pure.
	Rotate func(options json.RawMessage) (json.RawMessage, error)

	// SparePort names the option with the UDP port of the next keys, "" if there is none.
	SparePort string

	// RotateEvery returns how often a network with these effective options is to get new keys, 0 for never. It is nil for
	// a backend without keys. Pure.
	RotateEvery func(options json.RawMessage) time.Duration

	// Device reports whether the backend keeps a device named after the network.
	Device bool

	// SamePort reports whether the backend sends from the port that it receives on.
	SamePort bool

	// NeedsTUN reports whether the process that carries the packets on this host needs /dev/net/tun. It is nil for a
	// backend that never does.
	NeedsTUN func() bool

	// Encrypts reports whether no packet between hosts can be read or forged on its way.
	Encrypts bool

	// Tunnels reports whether packets of other hosts arrive by the network's device only, whatever the options.
	Tunnels bool

	// SharedAddress reports whether hosts can have the same public address, with different ports. They publish the ports
	// as the registry describes it.
	SharedAddress bool

	// CheckFiles checks the files of this host that effective options name, and returns an error for each option whose
	// file is missing or unusable. It is nil for a backend whose options name no files.
	CheckFiles func(options json.RawMessage) map[string]error

	// OwnFamily reports whether a host needs an underlay address of each pool's family, because
	// packets are not encapsulated.
	OwnFamily bool

	// Threads is the number of goroutines per network that block in system calls of their own
	// instead of in the Go runtime's poller. Each keeps its processor (GOMAXPROCS) for a while when
	// it blocks, and may find none when it wakes up, so the program that runs the backend gives the
	// runtime that many more. It is 0 for a backend without such goroutines.
	Threads int

	// Drops lists the reasons under which the backend counts dropped packets, as used in
	// Counters.Drops. It is nil if the backend counts none.
	Drops []string

	// New builds a backend for one network. It touches nothing outside the process.
	New func(Config) (Backend, error)
}

// Uses returns the UDP port that a network with these effective options receives on, or the zero
// Port if it uses none.
func (t Type) Uses(options json.RawMessage) Port {
	if t.Port == nil {
		return Port{}
	}
	return t.Port(options)
}

// Rotates returns how often a network with these effective options is to get new keys, 0 for never; see RotateEvery.
func (t Type) Rotates(options json.RawMessage) time.Duration {
	if t.RotateEvery == nil {
		return 0
	}
	return t.RotateEvery(options)
}

// UsesTUN reports whether the backend needs /dev/net/tun on this host; see NeedsTUN.
func (t Type) UsesTUN() bool { return t.NeedsTUN != nil && t.NeedsTUN() }

// A Port is a UDP port of the host, or the part of one that a network needs.
type Port struct {
	Number int    // 0 for none
	Socket string // kind of socket; networks with the same kind can share it: "vxlan"
	Part   string // the part of the socket that one network uses alone, "" for all of it: "vni 1"
}

// Collides reports whether one host cannot provide both ports.
func (p Port) Collides(o Port) bool {
	return p.Number != 0 && p.Number == o.Number && (p.Socket != o.Socket || p.Part == o.Part)
}

// String returns the port as used in a sentence: "udp port 8285", "vxlan vni 1 on port 8472".
func (p Port) String() string {
	if p.Part == "" {
		return fmt.Sprintf("%s port %d", p.Socket, p.Number)
	}
	return fmt.Sprintf("%s %s on port %d", p.Socket, p.Part, p.Number)
}

// Against describes the port and the network whose port o collides with it.
func (p Port) Against(o Port, network string) string {
	if p == o {
		return fmt.Sprintf("%s, which network %s uses", p, network)
	}
	return fmt.Sprintf("%s, and network %s uses %s", p, network, o)
}

// OptionError is an error about a single option.
type OptionError struct {
	Option string
	Reason string
}

func (e *OptionError) Error() string { return e.Option + ": " + e.Reason }

// OptionName returns the option's name. It lets a parser of configuration files, which does not
// import this package, find the line to point at.
func (e *OptionError) OptionName() string { return e.Option }

// Config holds what stays the same for the lifetime of a backend, unless it has the ability Change.
type Config struct {
	Network string
	Link    string          // name of the device, at most 15 bytes
	Alias   string          // of the device; "": LinkAlias of the network
	NodeID  string          // stable attributes are derived from it
	DataDir string          // for key files; may not exist yet
	Pools   []netip.Prefix  // the whole network, one pool per family
	Except  []netip.Prefix  // what other networks of this host use: the zero State removes no routes there
	Options json.RawMessage // as returned by Normalize
	Logger  hclog.Logger
}

// DeviceAlias returns the alias of the device: Alias or its default.
func (c Config) DeviceAlias() string { return cmp.Or(c.Alias, LinkAlias(c.Network)) }

// Underlay describes the host's attachment to the network between hosts.
type Underlay struct {
	Interface string       // the selected device
	Index     int          // its ifindex
	MTU       int          // bytes; the smallest on the paths packets leave by
	Addrs     []netip.Addr // public addresses, one per family; peers send to the first
	Devices   []string     // devices that packets leave through, including Interface and the devices below it
	// the host's own address behind each of Addrs, which differs behind NAT; zero: none; nil: as Addrs
	Own []netip.Addr
	VRF int // ifindex of the VRF that the device is in, whose routing table its packets use; 0 for none

	// Ports are the UDP ports of the public addresses that lead to this host behind a NAT that other hosts share, by the
	// port on which the host receives. Others are the same on both sides.
	Ports map[uint16]uint16
}

// Advertisement is what a host publishes about its end of the network.
type Advertisement struct {
	MTU        int             // of the overlay, in bytes
	Overhead   string          // the difference to the underlay's MTU: "50 for VXLAN over IPv4"; "" for none
	Attributes json.RawMessage // JSON object without "type", stable across restarts
}

// State is the complete state of one network on this host. The zero State means that the host does
// not take part in the network.
type State struct {
	Subnets  []netip.Prefix // this host's, one per pool
	MTU      int            // of the overlay, in bytes
	Underlay Underlay
	Peers    []Peer // every other host, never this one

	// Published is what this host's lease says of its backend in the store, an Advertisement's Attributes: at times still
	// an earlier one's, and nil if that is not known.
	Published json.RawMessage

	// Precedence is this host's among its peers; see Peer. It is 0 if that is not known.
	Precedence uint64

	// Partial reports whether the peers may be incomplete or out of date. Missing entries are then
	// added, but existing ones are neither changed nor removed.
	Partial bool

	// Elsewhere lists the destinations whose routes belong to another backend that carries the same network on this host,
	// while the network is switched from one to the other: subnets of peers, or whole pools. The backend neither adds,
	// changes nor removes a route to exactly one of these destinations, no matter which program made it. Apart from its
	// routes, a peer in Peers with such a subnet is set up like any other: its packets are accepted, and with a route they
	// could be sent.
	//
	// Such a peer may lack Attributes, if its host has not published any for this backend yet. A backend that can receive
	// from it without them does so, and others leave it out without naming it in Report.Skipped.
	//
	// With the zero State, everything is removed but routes to these destinations.
	//
	// A destination moves from one backend to another without a moment in which neither has a route to it, and without a
	// moment in which a strict reverse path filter drops its packets, if the backend that gives it up is applied first.
	Elsewhere []netip.Prefix
}

// Zero reports whether the state asks for nothing to exist.
func (s State) Zero() bool { return len(s.Subnets) == 0 }

// Equal reports whether two states ask for the same, with the peers in the same order.
func (s State) Equal(o State) bool {
	mine, others := s.Peers, o.Peers
	s.Peers, o.Peers = nil, nil
	return reflect.DeepEqual(s, o) && slices.EqualFunc(mine, others, Peer.Equal)
}

// Peer is the validated lease of another host.
type Peer struct {
	Node       string
	Subnets    []netip.Prefix
	PublicIPs  []netip.Addr // packets are sent to the first
	MTU        int          // of the overlay on the peer's host, in bytes; 0 if it is not known
	Backend    string       // the backend type that the peer's host runs
	Attributes json.RawMessage
	Precedence uint64 // of two peers that contradict each other, the one with the lower value is used
}

// Equal reports whether two peers are equal in every field.
func (p Peer) Equal(o Peer) bool {
	return p.Node == o.Node && p.MTU == o.MTU && p.Backend == o.Backend && p.Precedence == o.Precedence &&
		slices.Equal(p.Subnets, o.Subnets) &&
		slices.Equal(p.PublicIPs, o.PublicIPs) && bytes.Equal(p.Attributes, o.Attributes)
}

// Report describes what one Apply found and did.
type Report struct {
	Writes   int      // changes made to the kernel or forwarder; 0 when everything already agreed
	Repaired []Repair // repaired differences that were not caused by a changed State
	Skipped  []Skip   // peers that could not be used
	Peers    int      // peers in place
	// Unproven names the peers in place, sorted, from which no packet has arrived since they were set up, for a backend
	// that can tell: one that encrypts, and needs a handshake before it carries anything.
	Unproven []string
	// Endpoints are the public addresses of peers in place, with the UDP ports at which they receive there if these are
	// not this host's own.
	Endpoints []netip.AddrPort
	// Direct are the subnets of peers in place to which packets leave by the underlay, for a backend with a device.
	Direct []netip.Prefix
	// Uncarried names the pools of which this host carries no packets because it lacks what their family needs. The
	// network's other pool works.
	Uncarried []Uncarried
	Switch    *Switch  // nil unless the network is being switched to another backend
	Notes     []string // for users: what the backend chose by itself, and why
}

// Uncarried is a pool of which a host carries no packets. It is an error for a network without another pool.
type Uncarried struct {
	Pool   netip.Prefix
	Reason string
}

func (u Uncarried) Error() string { return fmt.Sprintf("pool %s is not carried: %s", u.Pool, u.Reason) }
func (u Uncarried) Unwrap() error { return ErrUncarried }

// Repair is one thing that another program had changed.
type Repair struct {
	Part   Part
	Fault  string // what was wrong, always in the same words: "device was down"
	Detail string // for users: which entries and how; "" when Fault is sufficient
}

func (r Repair) String() string {
	if r.Detail == "" {
		return r.Fault
	}
	return r.Fault + ": " + r.Detail
}

// Switch is how far this host has switched a network from one backend to another.
type Switch struct {
	From, To string // the types of the backends
	Moved    int    // peers to which packets go over the backend To
	Waiting  []Skip // the other peers, and why
	Stopped  bool   // by an operator

	// Unassigned is the number of peers to which this process has made no route yet, because an earlier process may have
	// made one over either backend.
	Unassigned int
	Fault      string // why this host cannot use the backend To, "" if it can
}

// Skip names a peer that was left out, and why.
type Skip struct {
	Node   string
	Reason string
}

// Backend carries the packets of one network. Its methods are called by one goroutine at a time and
// make all their system calls on the calling thread, so that a test can lock that thread to a
// network namespace.
type Backend interface {
	// Advertise derives what to publish before any device exists. The same underlay gives the same
	// result, also after a restart. It may read and write key files in DataDir, nothing else. It
	// rejects an underlay that the backend cannot work on.
	Advertise(u Underlay) (Advertisement, error)

	// Apply makes the host agree with the whole state: it lists the kernel's entries, adds or
	// corrects those that are missing or different, then deletes entries that belong to this
	// network but are not wanted. Repeating it changes nothing, and it repairs what another program
	// changed. The zero State removes everything. It continues past single failures and joins the
	// errors, each marked by About with the part it concerns. A peer it cannot use is skipped and
	// named in the report; that is not an error. After an interrupted or failed listing it deletes
	// nothing of that kind.
	Apply(ctx context.Context, s State) (Report, error)

	// Abilities returns what this backend can do beyond that.
	Abilities() Abilities

	// Close stops goroutines, closes descriptors and waits for them. It leaves the datapath in the
	// kernel as it is. It may be called more than once.
	Close() error
}

// Abilities are what only some backends can do. Those that a backend lacks are nil.
type Abilities struct {
	// Counters returns the traffic per peer, keyed by node name. It may be called at any time, also concurrently with the
	// backend's methods.
	Counters func() map[string]Counters

	// Totals returns the traffic in total, for a backend that does not count all of it per peer. It may be called at any
	// time, also concurrently with the backend's methods. The counters may start before the backend was built, and start
	// again from zero with a new device.
	Totals func() (Counters, error)

	// Rekey gives up the key, unless it is the operator's. The next Advertise has another one.
	Rekey func() error

	// Change switches to another definition while keeping what the backend has in the process, such as a forwarder or a
	// socket. It takes over the pools and options, which are valid as for New, for the calls that follow, and touches
	// nothing else. A backend without it is closed and rebuilt; in the meantime its datapath is left to the kernel.
	Change func(Config) error
}

// Counters count from the moment the backend was built.
type Counters struct {
	RxPackets, RxBytes, TxPackets, TxBytes uint64
	Drops                                  map[string]uint64 // by reason

	// Handshake is when the last handshake with the peer was completed, by the wall clock. It is zero if there was none so
	// far, and for a backend that does not encrypt.
	Handshake time.Time

	// Endpoint is where packets to the peer are sent at the moment. It is zero for a backend that sends to the first
	// public address.
	Endpoint netip.AddrPort
}

// Plus returns the sum of both, with the later handshake and its endpoint.
func (c Counters) Plus(o Counters) Counters {
	c.RxPackets += o.RxPackets
	c.RxBytes += o.RxBytes
	c.TxPackets += o.TxPackets
	c.TxBytes += o.TxBytes
	if o.Handshake.After(c.Handshake) || !c.Endpoint.IsValid() {
		c.Endpoint = o.Endpoint
	}
	if o.Handshake.After(c.Handshake) {
		c.Handshake = o.Handshake
	}
	if len(o.Drops) > 0 {
		drops := maps.Clone(c.Drops)
		if drops == nil {
			drops = map[string]uint64{}
		}
		for reason, n := range o.Drops {
			drops[reason] += n
		}
		c.Drops = drops
	}
	return c
}
