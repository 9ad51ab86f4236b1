// Package backend is the contract between the agent and the ways packets cross
// between hosts. It holds types only.
//
// A backend is given the whole truth again and again and makes the kernel (or
// its own forwarder) agree with it. It never hears of events, and refuses to
// know where the truth comes from.
package backend

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/hashicorp/go-hclog"
)

// Type is one kind of backend: a line in the agent's map.
type Type struct {
	Name string

	// Normalize decodes a network's options (a JSON object without "type"),
	// checks them and returns the effective ones, no default left out. Errors
	// about one option are an *OptionError; several are joined. Pure.
	Normalize func(options json.RawMessage) (json.RawMessage, error)

	// Port is the UDP port that a network with these effective options receives on.
	// nil for a backend without one: see Uses. Pure.
	Port func(options json.RawMessage) Port

	// Interrupts names the options whose change stops packets, and says why:
	// "the device is made anew". A change of any other, and of the pools where
	// every host keeps its subnets, loses no packet.
	Interrupts map[string]string

	// Device says that the backend keeps a device of the network's name.
	Device bool

	// OwnFamily says that a host needs an underlay address of the family of
	// each pool, because packets are not wrapped.
	OwnFamily bool

	// Threads is how many goroutines of one network wait in system calls of their
	// own, beside the Go runtime's poller. Each keeps its processor (GOMAXPROCS)
	// for a while when it waits, and may find none when it is woken: whoever runs
	// the backend gives the runtime as many more. 0 for none.
	Threads int

	// Drops are the reasons under which the backend counts packets that it drops, as
	// Counters.Drops has them; nil for none.
	Drops []string

	// New builds a backend for one network. It touches nothing outside the
	// process.
	New func(Config) (Backend, error)
}

// Uses returns the UDP port that a network with these effective options receives on, the
// zero Port for none.
func (t Type) Uses(options json.RawMessage) Port {
	if t.Port == nil {
		return Port{}
	}
	return t.Port(options)
}

// Port is a UDP port of the host, or the part of one that a network needs.
type Port struct {
	Number int    // 0 for none
	Socket string // networks can have a socket of the same kind together: "vxlan"
	Part   string // what one of them alone has on that socket, "" for all of it: "vni 1"
}

// Collides says that a host cannot give both.
func (p Port) Collides(o Port) bool {
	return p.Number != 0 && p.Number == o.Number && (p.Socket != o.Socket || p.Part == o.Part)
}

// String is for a sentence: "udp port 8285", "vxlan vni 1 on port 8472".
func (p Port) String() string {
	if p.Part == "" {
		return fmt.Sprintf("%s port %d", p.Socket, p.Number)
	}
	return fmt.Sprintf("%s %s on port %d", p.Socket, p.Part, p.Number)
}

// Against names the port and the network that has one it collides with.
func (p Port) Against(o Port, network string) string {
	if p == o {
		return fmt.Sprintf("%s, which network %s uses", p, network)
	}
	return fmt.Sprintf("%s, and network %s uses %s", p, network, o)
}

// OptionError names the option that is wrong.
type OptionError struct {
	Option string
	Reason string
}

func (e *OptionError) Error() string { return e.Option + ": " + e.Reason }

// OptionName lets a reader of configuration files, which does not import this
// package, find the line to point at.
func (e *OptionError) OptionName() string { return e.Option }

// Config is what stays the same for the life of one backend, but see Changer.
type Config struct {
	Network string
	Link    string          // name of the device, at most 15 bytes
	NodeID  string          // stable attributes are derived from it
	DataDir string          // for key files; may not exist yet
	Pools   []netip.Prefix  // the whole network, one a family
	Options json.RawMessage // as Normalize returned them
	Logger  hclog.Logger
}

// Underlay is the host's place on the network between hosts.
type Underlay struct {
	Interface string       // the device that was chosen
	Index     int          // its ifindex
	MTU       int          // bytes, the least on the ways packets leave
	Addrs     []netip.Addr // public addresses, one a family; the first is the one peers send to
	Devices   []string     // that packets leave through, Interface and what it stands on among them
	Own       []netip.Addr // the host's own address behind each of Addrs: another one behind NAT, zero for none; nil: they are its own
}

// Advertisement is what a host publishes about its end of the network.
type Advertisement struct {
	MTU        int             // of the overlay, bytes
	Overhead   string          // what takes the difference to the underlay's MTU: "50 for VXLAN over IPv4"; "" for none
	Attributes json.RawMessage // JSON object without "type", stable over restarts
}

// State is the whole truth about one network on this host. The zero State says
// that the host takes no part in it.
type State struct {
	Subnets  []netip.Prefix // our own, one a pool
	MTU      int            // of the overlay, bytes
	Underlay Underlay
	Peers    []Peer // every other host, never ourselves

	// Partial says that the peers may not be all there are, nor what they are now:
	// what is missing is put, and what stands is neither changed nor taken away.
	Partial bool
}

// Zero says whether the state asks for nothing to exist.
func (s State) Zero() bool { return len(s.Subnets) == 0 }

// Equal says whether two states ask for the same, peers in the same order.
func (s State) Equal(o State) bool {
	mine, others := s.Peers, o.Peers
	s.Peers, o.Peers = nil, nil
	return reflect.DeepEqual(s, o) && slices.EqualFunc(mine, others, Peer.Equal)
}

// Peer is another host's validated lease.
type Peer struct {
	Node       string
	Subnets    []netip.Prefix
	PublicIPs  []netip.Addr // the first is the one to send to
	Backend    string       // type its host runs
	Attributes json.RawMessage
	Precedence uint64 // of two peers that contradict each other the one with the lower is used
}

// Equal says whether two peers are the same in every respect.
func (p Peer) Equal(o Peer) bool {
	return p.Node == o.Node && p.Backend == o.Backend && p.Precedence == o.Precedence && slices.Equal(p.Subnets, o.Subnets) &&
		slices.Equal(p.PublicIPs, o.PublicIPs) && bytes.Equal(p.Attributes, o.Attributes)
}

// Report is what one Apply found and did.
type Report struct {
	Writes  int      // changes made to the kernel or forwarder; 0 when all agreed
	Healed  []Repair // differences that were not caused by a changed State, healed
	Skipped []Skip   // peers that could not be used
	Peers   int      // peers in place
	Notes   []string // what the backend chose by itself, and why, for people
}

// Repair is one thing that somebody else had changed.
type Repair struct {
	Part   Part
	Fault  string // what was wrong, in the same words each time: "device was down"
	Detail string // which and how, for people; "" when the fault says it all
}

func (r Repair) String() string {
	if r.Detail == "" {
		return r.Fault
	}
	return r.Fault + ": " + r.Detail
}

// Skip names a peer that was left out and why.
type Skip struct {
	Node   string
	Reason string
}

// Backend carries one network. Its methods are called by one goroutine at a
// time and all system calls they make are made on the calling thread, so that
// a test may lock it to a network namespace.
type Backend interface {
	// Advertise derives what to publish before any device exists. Same
	// underlay, same answer, also after a restart. It may read and write key
	// files in DataDir, nothing else. It refuses an underlay the backend
	// cannot work on.
	Advertise(u Underlay) (Advertisement, error)

	// Apply makes the host agree with the whole state: it lists what the
	// kernel has, puts what is missing or different, then deletes what is this
	// network's and unwanted. Repeating it changes nothing, and it heals what
	// somebody else changed. The zero State removes everything. It goes on
	// past single failures and joins them, each with the part it is About; a peer
	// it cannot use is skipped, named in the report, and no error. On an interrupted or failed listing it
	// deletes nothing of that kind.
	Apply(ctx context.Context, s State) (Report, error)

	// Close ends goroutines and descriptors and waits for them. It leaves the
	// datapath in the kernel as it is. It may be repeated.
	Close() error
}

// Changer is the optional ability to go on under another definition, with what
// the backend has in the process: a forwarder, a socket. Change takes over pools
// and options, valid as New's, for the calls that follow, and touches nothing
// else. A backend without it is closed and built anew, which leaves its datapath
// to the kernel meanwhile.
type Changer interface {
	Change(Config) error
}

// Counter is the optional ability to tell what passed, by peer node name. It
// may be called at any time, also beside the backend's other methods.
type Counter interface {
	Counters() map[string]Counters
}

// Meter is the optional ability to tell what passed in all, where nobody knows by
// peer. It may be called at any time, also beside the backend's other methods. The
// numbers may begin before the backend was built, and begin anew with a new device.
type Meter interface {
	Totals() (Counters, error)
}

// Counters are since the backend was built.
type Counters struct {
	RxPackets, RxBytes, TxPackets, TxBytes uint64
	Drops                                  map[string]uint64 // by reason
}
