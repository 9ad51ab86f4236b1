// Package api is the Go client of the agent's HTTP API, with the types that it sends and receives.
// It imports nothing else of leno, so other programs can use it on its own.
package api

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"
)

// Statuses of checks, networks and agents, best first.
const (
	Passing  = "passing"  // all is well
	Warning  = "warning"  // packets flow, but something needs to recover: Consul away, a skipped record
	Critical = "critical" // packets may not flow, or an operator has to act
)

// Check is one named health check.
type Check struct {
	Name   string    `json:"name"` // consul, lease, device, routes, snapshot, …
	Status string    `json:"status"`
	Reason string    `json:"reason"` // the state, and what to do when it is not passing
	Since  time.Time `json:"since"`  // when it got this status
}

// Health is the response of /healthz and /readyz.
type Health struct {
	Status   string          `json:"status"`
	Ready    bool            `json:"ready"`
	Checks   []Check         `json:"checks"`   // of the whole agent
	Networks []NetworkHealth `json:"networks"` // of each network
}

// NetworkHealth is one network's part of Health.
type NetworkHealth struct {
	Network string  `json:"network"`
	Status  string  `json:"status"`
	Ready   bool    `json:"ready"`
	Checks  []Check `json:"checks"`
}

// Self is the response of GET /v1/agent/self.
type Self struct {
	Version     string    `json:"version"`
	NodeName    string    `json:"node_name"`
	NodeID      string    `json:"node_id"`
	DataDir     string    `json:"data_dir"`
	ConfigFiles []string  `json:"config_files"`
	Registry    string    `json:"registry"` // "consul at 127.0.0.1:8500" or "memory"
	Started     time.Time `json:"started"`
	PID         int       `json:"pid"`
	Networks    []string  `json:"networks"` // that this agent takes part in

	// The kernel whose tables the agent sees; "" when it is unknown.
	BootID           string `json:"boot_id,omitempty"`           // of the kernel; changes at every boot
	NetworkNamespace string `json:"network_namespace,omitempty"` // "net:[4026531840]"

	Firewall *Firewall `json:"firewall,omitempty"` // nil when this host has no rules
}

// Configuration is the response of GET /v1/agent/config.
type Configuration struct {
	Files    []string  `json:"files"` // in the order they were read
	Dev      bool      `json:"dev"`   // a development agent
	Settings []Setting `json:"settings"`
}

// Setting is one option in force, in the syntax of a configuration file; for a secret only "set"
// or "not set".
type Setting struct {
	Name  string `json:"name"` // consul.kv_prefix, network.blue.ip_masq
	Value string `json:"value"`
}

// Firewall describes which firewall holds this host's rules.
type Firewall struct {
	Kind   string `json:"kind"`   // iptables-nft, iptables-legacy or nftables
	Reason string `json:"reason"` // why this kind is used
}

// Pool is one address family of a network.
type Pool struct {
	Prefix    netip.Prefix `json:"prefix"`
	SubnetLen int          `json:"subnet_len,omitempty"`
	Min       netip.Addr   `json:"min,omitzero"`
	Max       netip.Addr   `json:"max,omitzero"`
}

// Network is a network's definition in the store, and this host's part in it.
type Network struct {
	Name        string          `json:"name"`
	Pools       []Pool          `json:"pools"`
	Backend     json.RawMessage `json:"backend"`              // object with "type"; during a switch, the one before
	SwitchTo    json.RawMessage `json:"switch_to,omitempty"`  // during a switch: the other backend; see Client.Switch
	Encryption  string          `json:"encryption,omitempty"` // "required": no packet may leave a host unencrypted
	ModifyIndex uint64          `json:"modify_index"`
	Local       *Local          `json:"local,omitempty"` // nil when this agent takes no part
	Index       uint64          `json:"-"`               // header X-Leno-Index: changes whenever the answer does
}

// Local is this host's part in a network.
type Local struct {
	State      string         `json:"state"`             // one sentence: "running", or what it waits for
	Subnets    []netip.Prefix `json:"subnets"`           // empty until leased
	MTU        int            `json:"mtu"`               // bytes, 0 until known
	MTUReason  string         `json:"mtu_reason"`        // the arithmetic behind it, "" until known
	Backend    string         `json:"backend"`           // type
	Link       string         `json:"link"`              // device
	SubnetFile string         `json:"subnet_file"`       //
	Underlay   Underlay       `json:"underlay"`          //
	Peers      int            `json:"peers"`             // in the datapath
	Notes      []string       `json:"notes,omitempty"`   // what the backend chose automatically, and why
	Switch     *Switch        `json:"switch,omitempty"`  // while the network is being switched to another backend
	Differs    []string       `json:"differs,omitempty"` // where the agent's file and the store's definition differ
	Applied    time.Time      `json:"applied,omitzero"`  // last successful Apply
	Renewed    time.Time      `json:"renewed,omitzero"`  // last successful renewal of the lease
	Followed   time.Time      `json:"followed,omitzero"` // when the store last confirmed the list of leases

	// ModifyIndex is the version of the definition that the datapath was built from, 0 for none
	// yet. It is lower than Network's while this host applies a change.
	ModifyIndex uint64 `json:"modify_index"`
}

// Switch is how far one host has switched a network from one backend to another.
type Switch struct {
	From    string        `json:"from"`              // type
	To      string        `json:"to"`                // type
	Moved   int           `json:"moved"`             // peers to which this host sends over To
	Waiting []WaitingPeer `json:"waiting,omitempty"` // the other peers
	Stopped bool          `json:"stopped,omitempty"` // by an operator
	Fault   string        `json:"fault,omitempty"`   // why this host cannot use To
}

// WaitingPeer names a peer to which a host does not send over the new backend yet, and why.
type WaitingPeer struct {
	Node   string `json:"node"`
	Reason string `json:"reason"`
}

// NetworkSwitch is how far all hosts have switched a network from one backend to another.
type NetworkSwitch struct {
	From        string       `json:"from"`         // the type before, or the present one if it is not being switched
	To          string       `json:"to"`           // type; "" if the network is not being switched
	Direction   string       `json:"direction"`    // forward, stopped or back; "" if the network is not being switched
	Moved       int          `json:"moved"`        // hosts that send to all others over To
	Hosts       []HostChange `json:"hosts"`        // all with a lease, sorted by slot
	ModifyIndex uint64       `json:"modify_index"` // of the definition
}

// Values of NetworkSwitch.Direction.
const (
	SwitchForward = "forward"
	SwitchStopped = "stopped"
	SwitchBack    = "back"
)

// What Client.ChangeSwitch does.
const (
	StopSwitch     = "stop"        // peers stay with the backend that they have
	ContinueSwitch = "continue"    // after StopSwitch or ReverseSwitch
	ReverseSwitch  = "reverse"     // back to the backend that the network had before
	EndSwitch      = "end"         // at once: hosts that have not moved are cut off until they follow
	RotateKeys     = "rotate-keys" // begin a switch to the same backend with new keys
)

// Underlay is the device and addresses that carry traffic between hosts.
type Underlay struct {
	Interface string       `json:"interface"`
	MTU       int          `json:"mtu"`
	Addresses []netip.Addr `json:"addresses"`     // to which other hosts send
	Own       []netip.Addr `json:"own,omitempty"` // the host's own addresses behind them, if different (NAT)
	Reason    string       `json:"reason"`        // why it was chosen

	// PublicPorts are the ports of the addresses that lead to this host behind a NAT, by the port of this host. Others are
	// the same on both sides.
	PublicPorts map[uint16]uint16 `json:"public_ports,omitempty"`
}

// NetworkList is the response of GET /v1/networks.
type NetworkList struct {
	Networks []Network `json:"networks"`
	Skipped  []Skipped `json:"skipped"`
	Index    uint64    `json:"-"` // header X-Leno-Index: changes whenever the answer does
}

// Lease is one host's lease.
type Lease struct {
	Subnet        netip.Prefix    `json:"subnet"`
	Subnets       []netip.Prefix  `json:"subnets"`
	Node          string          `json:"node"`
	NodeID        string          `json:"node_id"`
	PublicIPs     []netip.Addr    `json:"public_ips"`
	MTU           int             `json:"mtu"`
	Backend       json.RawMessage `json:"backend"` // object with "type"
	Held          bool            `json:"held"`
	LapsedSeconds int64           `json:"lapsed_seconds"` // how long this agent has watched it lapsed
	Own           bool            `json:"own"`            // this agent's
	ModifyIndex   uint64          `json:"modify_index"`
}

// Renewal is the response of PUT /v1/network/:n/renew.
type Renewal struct {
	Subnet    netip.Prefix `json:"subnet"`
	Renewed   time.Time    `json:"renewed"`
	SafeUntil time.Time    `json:"safe_until"` // the lease is held at least until then, even without another renewal
}

// Skipped names a record that could not be used, and why.
type Skipped struct {
	Key    string `json:"key"`
	Reason string `json:"reason"`
}

// LeaseList is the response of GET /v1/network/:n/leases.
type LeaseList struct {
	Leases  []Lease   `json:"leases"`
	Skipped []Skipped `json:"skipped"`
	Index   uint64    `json:"-"` // header X-Leno-Index: changes whenever the answer does
}

// Reservation is a slot reserved for a host: exactly one of Node and NodeID is set.
type Reservation struct {
	Subnet netip.Prefix `json:"subnet"`
	Node   string       `json:"node,omitempty"`
	NodeID string       `json:"node_id,omitempty"`
}

// Host returns the host that the subnet is kept for: "node host-a", or "node id " and the id.
func (r Reservation) Host() string {
	if r.NodeID != "" {
		return "node id " + r.NodeID
	}
	return "node " + r.Node
}

// ReservationList is the response of GET /v1/network/:n/reservations.
type ReservationList struct {
	Reservations []Reservation `json:"reservations"`
	Skipped      []Skipped     `json:"skipped"`
	Index        uint64        `json:"-"` // header X-Leno-Index: changes whenever the answer does
}

// Peer is another host as it is in the datapath.
type Peer struct {
	Node      string         `json:"node"`
	Subnets   []netip.Prefix `json:"subnets"`
	PublicIPs []netip.Addr   `json:"public_ips"`
	Backend   string         `json:"backend"`
	Held      bool           `json:"held"`
	Flannel   bool           `json:"flannel,omitempty"`   // the host runs flannel
	Skipped   string         `json:"skipped,omitempty"`   // why it is not in the datapath
	Encrypted bool           `json:"encrypted,omitempty"` // packets to it and from it are encrypted
	// LastHandshake is when this host and the peer last agreed on session keys. It is zero if they have not so far, or
	// if packets are not encrypted.
	LastHandshake time.Time `json:"last_handshake,omitzero"`
	// Endpoint is where packets to the peer go, for a backend that chooses that by itself, such as wireguard. With the
	// others, it is zero, and they go to one of the public addresses.
	Endpoint netip.AddrPort `json:"endpoint,omitzero"`
	Counters *Counters      `json:"counters,omitempty"`
	// Path is what the continuous tests say of the path to the peer. It is nil if they are off, if the peer is not in the
	// datapath, or if the backend carries no packets.
	Path *PeerPath `json:"path,omitempty"`
	// Member is what Consul's agents say of the host: alive, failed or left; "" if they do not know it.
	Member string `json:"member,omitempty"`
}

// Values of Member.
const (
	MemberAlive  = "alive"
	MemberFailed = "failed" // the host's Consul agent has stopped answering the others
)

// Values of PeerPath.State.
const (
	PathReached = "reached" // small and full packets are answered
	PathLossy   = "lossy"   // more than 2 of the last 20 small packets were lost
	PathShort   = "short"   // small packets are answered, full ones are not
	PathLost    = "lost"    // no packet is answered, in some address family
)

// PeerPath is what the continuous tests say of the path to a peer. Its state changes when three tests in a row agree.
type PeerPath struct {
	State  string    `json:"state"`            // reached, lossy, short or lost; "" before the first test
	Reason string    `json:"reason,omitempty"` // what was lost, or what is not known of a path that is reached
	Since  time.Time `json:"since,omitzero"`   // when the state began
	Tested time.Time `json:"tested,omitzero"`  // when the last packets were sent
	Loss   float64   `json:"loss"`             // lost ones of the last 20 small packets, 0 to 1
	RTT    float64   `json:"rtt_seconds"`      // mean round trip of the last small packets, 0 before the first answer
	MTU    int       `json:"mtu,omitempty"`    // bytes; the largest packet that was answered

	// The loss of each direction alone, 0 to 1, by the last 20 messages of the agents to each other. It is nil if it is
	// not known.
	ToPeer   *float64 `json:"to_peer,omitempty"`
	FromPeer *float64 `json:"from_peer,omitempty"`

	History *PathHistory `json:"history,omitempty"` // nil where it is not asked for, and before the first test
}

// PathHistory is the loss on a path over the last hours, since the agent started or the path changed.
type PathHistory struct {
	StepSeconds int       `json:"step_seconds"` // the time from one point to the next
	Last        time.Time `json:"last"`         // when the step of the last point began, which has not ended
	Loss        []int8    `json:"loss_percent"` // of small packets in each step, the oldest first; -1 where none was sent
}

// Summary returns the state of a path with the number that describes it, and the loss of each direction that has one.
// It is "-" for none.
func (p *PeerPath) Summary() string {
	if p == nil {
		return "-"
	}
	out := p.State
	switch {
	case p.State == "":
		out = "untested"
	case p.State == PathLossy:
		out = fmt.Sprintf("lossy, %.0f %%", 100*p.Loss)
	case p.State == PathShort:
		out = fmt.Sprintf("short, %d bytes", p.MTU)
	case p.State == PathReached && p.RTT > 0:
		out = fmt.Sprintf("reached, %.1f ms", 1000*p.RTT)
	}
	if p.ToPeer != nil && *p.ToPeer > 0 {
		out += fmt.Sprintf(", to peer %.0f %% lost", 100**p.ToPeer)
	}
	if p.FromPeer != nil && *p.FromPeer > 0 {
		out += fmt.Sprintf(", from peer %.0f %% lost", 100**p.FromPeer)
	}
	return out
}

// HostSummary is what a host's agent says of itself in one network.
type HostSummary struct {
	Version  string   `json:"version"`          // of leno
	Health   string   `json:"health"`           // the worst of its checks: passing, warning or critical
	Reason   string   `json:"reason,omitempty"` // of that check
	Backend  string   `json:"backend"`
	PublicIP string   `json:"public_ip"`
	MTU      int      `json:"mtu"`            // bytes, of its containers
	Peers    int      `json:"peers"`          // that hold a lease
	Reached  int      `json:"reached"`        // of these, by its own tests
	Lost     []string `json:"lost,omitempty"` // names of peers that it does not reach, at most 10

	// Impaired is the number of reached peers that full packets do not reach, Short, or to which some packets are lost,
	// Lossy. These name at most 10 of them together.
	Impaired int      `json:"impaired,omitempty"`
	Short    []string `json:"short,omitempty"`
	Lossy    []string `json:"lossy,omitempty"`

	At time.Time `json:"at"` // when this host received it
}

// Host is a host with a lease in a network, and what this agent knows of it.
type Host struct {
	Node      string         `json:"node"`
	Subnets   []netip.Prefix `json:"subnets"`
	PublicIPs []netip.Addr   `json:"public_ips"`
	Backend   string         `json:"backend"`
	MTU       int            `json:"mtu"`              // bytes, of its containers
	Held      bool           `json:"held"`             // its lease
	Own       bool           `json:"own,omitempty"`    // it is this host
	State     string         `json:"state"`            // the worst that is known of it, one of HostStates
	Reason    string         `json:"reason"`           // what that is, "" if there is nothing to say
	Member    string         `json:"member,omitempty"` // what Consul's agents say: alive, failed or left; "" if unknown

	Path    *PeerPath    `json:"path,omitempty"`    // from this host to it; nil where that is not tested
	Summary *HostSummary `json:"summary,omitempty"` // what its agent says of itself; nil if it sent nothing
	Seen    time.Time    `json:"seen,omitzero"`     // when this host last received something from it
}

// Values of Host.State besides the statuses of checks and the states of paths.
const (
	HostFailed  = "failed"  // Consul's agents do not reach its Consul agent
	HostLapsed  = "lapsed"  // its lease is not held
	HostUnknown = "unknown" // its agent sent no summary
)

// HostStates are the values of Host.State, the worst first.
var HostStates = []string{
	HostFailed, PathLost, Critical, PathShort, PathLossy, Warning, HostLapsed, HostUnknown, Passing,
}

// HostList is the response of GET /v1/network/:n/hosts.
type HostList struct {
	Hosts []Host `json:"hosts"` // those with a problem first, then by name
	// Index is the header X-Leno-Index. It changes whenever the answer does, except for times and measured values.
	Index uint64 `json:"-"`
}

// Counters count the traffic since the agent started.
type Counters struct {
	RxPackets uint64            `json:"rx_packets"`
	RxBytes   uint64            `json:"rx_bytes"`
	TxPackets uint64            `json:"tx_packets"`
	TxBytes   uint64            `json:"tx_bytes"`
	Drops     map[string]uint64 `json:"drops,omitempty"`
}

// PeerList is the response of GET /v1/network/:n/peers.
type PeerList struct {
	Peers  []Peer            `json:"peers"`
	Drops  map[string]uint64 `json:"drops,omitempty"`  // by reason: packets that belong to no peer
	Totals *Counters         `json:"totals,omitempty"` // since the device was made, with vxlan and wireguard
	Index  uint64            `json:"-"`                // header X-Leno-Index: changes whenever the answer does
}

// Error is the body of every response that is not 2xx, and the client's error for it.
type Error struct {
	Code    int    `json:"code"` // HTTP status
	Message string `json:"error"`
}

func (e *Error) Error() string { return e.Message }

// Errorf returns an Error with the code.
func Errorf(code int, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}
