package api

import (
	"context"
	"net/http"
	"net/netip"
)

// ProbeRequest is the body of POST /v1/network/:name/probe. Fields that are zero
// take their defaults, so that {} probes every peer. Sizes are those of the whole
// IP packet, headers included, in bytes.
type ProbeRequest struct {
	Peers      []string `json:"peers,omitempty"`       // node names; none for every peer
	Count      int      `json:"count,omitempty"`       // packets of each size on each way: 1 to 100, default 3
	IntervalMS int      `json:"interval_ms,omitempty"` // from one packet to the next: 10 to 10,000, default 100
	TimeoutMS  int      `json:"timeout_ms,omitempty"`  // for each answer: 10 to 10,000, default 1,000
	Small      int      `json:"small,omitempty"`       // 64 to 1,280, default 64
	Full       int      `json:"full,omitempty"`        // 64 to 65,000, default the MTU of each way
}

// Probe is the response of POST /v1/network/:name/probe.
type Probe struct {
	Network string      `json:"network"`
	Peers   []PeerProbe `json:"peers"` // in the order of GET /v1/network/:name/peers

	// Findings lists what is wrong and how to fix it, as Doctor reports it for the same packets:
	// faults and warnings, the worst first. A fault that all paths share is one finding about this
	// host.
	Findings []Finding `json:"findings"`
}

// PeerProbe is the result for one peer.
type PeerProbe struct {
	Node    string `json:"node"`
	Held    bool   `json:"held"`              // false: its lease has lapsed and its host may be gone
	Skipped string `json:"skipped,omitempty"` // why it is not in the datapath; the overlay is not probed then

	// Reached reports whether small packets crossed the overlay in every family in which the peer
	// has a subnet. If leno carries no packets (alloc), it refers to the underlay.
	Reached bool `json:"reached"`

	Ways []ProbedWay `json:"ways"`

	// ToPeer and FromPeer show which direction of the tunnel loses packets when the overlay does not
	// respond and the underlay does; nil when there was nothing to distinguish. Both pass if the
	// peer's rules drop echo requests but its kernel responds about packets for the containers
	// behind it: the peer is reached in that case.
	ToPeer   *ProbedDirection `json:"to_peer,omitempty"`
	FromPeer *ProbedDirection `json:"from_peer,omitempty"`
}

// Values of ProbedWay.Path.
const (
	PathOverlay  = "overlay"
	PathUnderlay = "underlay"
)

// ProbedWay is one path to a peer: the overlay or the underlay, in one address family. Packets are
// ICMP echo requests that must not be fragmented on their way to the peer.
type ProbedWay struct {
	Path string     `json:"path"` // overlay or underlay
	From netip.Addr `json:"from,omitzero"`
	To   netip.Addr `json:"to"`
	MTU  int        `json:"mtu"` // bytes; determines the size of the full packets

	// NotProbed is the reason why this path was not probed; the fields below are zero then.
	NotProbed string `json:"not_probed,omitempty"`

	// Answer is the response of the peer's host: "echo reply", or its own error about an address
	// for which it has no device, as with routes that need no device ("time exceeded from
	// 192.0.2.12"). Both show that packets arrived. It is "" when no response came.
	Answer string `json:"answer,omitempty"`

	Small ProbedSize `json:"small"`
	Full  ProbedSize `json:"full"` // nothing is sent if no small packet was answered

	// Largest is the size of the largest packet that was answered, 0 for none. If Full is not
	// answered, the limit between the two sizes is searched to the byte.
	Largest int `json:"largest"`

	// Errors lists what this host, routers and the peer reported about packets that did not
	// arrive, each error once.
	Errors []ProbeError `json:"errors,omitempty"`
}

// ProbedSize is the result for the packets of one size.
type ProbedSize struct {
	Bytes    int     `json:"bytes"`
	Sent     int     `json:"sent"`
	Answered int     `json:"answered"`
	MinMS    float64 `json:"min_ms"` // round trip of the answered packets, milliseconds
	AvgMS    float64 `json:"avg_ms"`
	MaxMS    float64 `json:"max_ms"`
}

// Lost returns the number of packets that were not answered.
func (s ProbedSize) Lost() int { return s.Sent - s.Answered }

// ProbeError is one error reported about packets that did not arrive.
type ProbeError struct {
	Reason string     `json:"reason"`          // "fragmentation needed", "host unreachable", or this host's own error
	From   netip.Addr `json:"from,omitzero"`   // the reporting host; absent when this host did not send
	MTU    int        `json:"mtu,omitempty"`   // bytes; the requested MTU
	About  string     `json:"about,omitempty"` // "udp port 8472" when it is about the packets of the tunnel
	Count  int        `json:"count"`           // how often it was reported
}

// Values of ProbedDirection.State.
const (
	DirectionPasses  = "passes"
	DirectionLost    = "lost"
	DirectionUnknown = "unknown"
)

// ProbedDirection reports whether the tunnel carries packets in one direction.
type ProbedDirection struct {
	State  string `json:"state"`  // passes, lost or unknown
	Reason string `json:"reason"` // how that is known, or why it is unknown
}

// ProbePeers sends packets to the peers of a network through the overlay and the underlay and
// reports the responses (POST /v1/network/:name/probe). It takes a second or a few, up to 2 min
// for many peers that do not respond; peers not done by then are marked as such. An unreachable
// peer is not an error. Code 400 names the field that is out of range, or too large for that many
// peers; 404 a node that is not a peer. Code 409 means that a probe of that network is already
// running, 501 that the agent lacks the capability (CAP_NET_RAW). The probe ends when ctx ends.
func (c *Client) ProbePeers(ctx context.Context, network string, r ProbeRequest) (Probe, error) {
	var out Probe
	_, err := c.do(ctx, http.MethodPost, path("v1", "network", network, "probe"), r, &out)
	return out, err
}
