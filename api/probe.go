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

// Probe is the answer of POST /v1/network/:name/probe.
type Probe struct {
	Network string      `json:"network"`
	Peers   []PeerProbe `json:"peers"` // in the order of GET /v1/network/:name/peers

	// Findings are what is wrong and what to do, as Doctor tells them of the same
	// packets: faults and warnings, the worst first. A fault that all paths share is one
	// finding about this host.
	Findings []Finding `json:"findings"`
}

// PeerProbe is what one peer answered.
type PeerProbe struct {
	Node    string `json:"node"`
	Held    bool   `json:"held"`              // false: its lease has lapsed, its host may be gone
	Skipped string `json:"skipped,omitempty"` // why it is not in the datapath; the overlay is not probed then

	// Reached says that small packets crossed the overlay in every family the peer
	// has a subnet of; where leno carries no packets (alloc), the underlay.
	Reached bool `json:"reached"`

	Ways []ProbedWay `json:"ways"`

	// There and Back tell which direction of the tunnel loses packets, when the
	// overlay does not answer and the underlay does; nil when there was nothing to
	// tell apart. Both pass where the peer's rules keep echo requests from it, and its
	// kernel speaks of packets for containers behind it: it is reached then.
	There *ProbedDirection `json:"there,omitempty"`
	Back  *ProbedDirection `json:"back,omitempty"`
}

// Values of ProbedWay.Path.
const (
	PathOverlay  = "overlay"
	PathUnderlay = "underlay"
)

// ProbedWay is one way to a peer: the overlay or the underlay, in one address
// family. Packets are ICMP echo requests that nobody may fragment on their way
// to the peer.
type ProbedWay struct {
	Path string     `json:"path"` // overlay or underlay
	From netip.Addr `json:"from,omitzero"`
	To   netip.Addr `json:"to"`
	MTU  int        `json:"mtu"` // bytes, what the full packets were sized by

	// NotProbed is why nothing is known of this way; the fields below are zero then.
	NotProbed string `json:"not_probed,omitempty"`

	// Answer is what the peer's host answered with: "echo reply", or an error of
	// its own about an address it has no device for, as with routes that need no
	// device ("time exceeded from 192.0.2.12"). Both show that packets got there.
	// "" when nothing came.
	Answer string `json:"answer,omitempty"`

	Small ProbedSize `json:"small"`
	Full  ProbedSize `json:"full"` // nothing is sent when no small packet was answered

	// Largest is the size of the largest packet that was answered, 0 for none. When
	// Full is not answered it is looked for between the two, to the byte.
	Largest int `json:"largest"`

	// Errors are what this host, routers and the peer said about packets that did
	// not arrive, each told once.
	Errors []ProbeError `json:"errors,omitempty"`
}

// ProbedSize is what became of the packets of one size.
type ProbedSize struct {
	Bytes    int     `json:"bytes"`
	Sent     int     `json:"sent"`
	Answered int     `json:"answered"`
	MinMS    float64 `json:"min_ms"` // round trip, milliseconds, of those answered
	AvgMS    float64 `json:"avg_ms"`
	MaxMS    float64 `json:"max_ms"`
}

// Lost is how many packets were not answered.
func (s ProbedSize) Lost() int { return s.Sent - s.Answered }

// ProbeError is one thing said about packets that did not arrive.
type ProbeError struct {
	Reason string     `json:"reason"`          // "fragmentation needed", "host unreachable", or this host's own error
	From   netip.Addr `json:"from,omitzero"`   // who said so; absent when this host did not send
	MTU    int        `json:"mtu,omitempty"`   // bytes, that was asked for
	About  string     `json:"about,omitempty"` // "udp port 8472" when it is about the packets of the tunnel
	Count  int        `json:"count"`           // how often it was said
}

// Values of ProbedDirection.State.
const (
	DirectionPasses  = "passes"
	DirectionLost    = "lost"
	DirectionUnknown = "unknown"
)

// ProbedDirection is whether the tunnel carries packets in one direction.
type ProbedDirection struct {
	State  string `json:"state"`  // passes, lost or unknown
	Reason string `json:"reason"` // how that is known, or why it is not
}

// ProbePeers sends packets to the peers of a network through the overlay and the
// underlay and tells what came back (POST /v1/network/:name/probe). It takes a
// second or a few, up to 2 min for many peers that do not answer; peers that
// were not done by then say so. A peer that cannot be reached is no error. Code
// 400 names the field that is out of its range, or is too much for so many peers,
// 404 a node that is no peer; 409 says that a probe of that network is running
// already; 501 that the agent lacks the right to it (CAP_NET_RAW). The end of ctx
// ends the probe.
func (c *Client) ProbePeers(ctx context.Context, network string, r ProbeRequest) (Probe, error) {
	var out Probe
	_, err := c.do(ctx, http.MethodPost, path("v1", "network", network, "probe"), r, &out)
	return out, err
}
