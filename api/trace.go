package api

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"
)

// TraceRequest is the body of POST /v1/agent/trace: packets from one address to another. Each is of a container or of a
// host, and one of them is on the agent's host.
type TraceRequest struct {
	Source      netip.Addr `json:"source"`
	Destination netip.Addr `json:"destination"`
	Protocol    string     `json:"protocol,omitempty"` // icmp, tcp or udp; default icmp
	Port        int        `json:"port,omitempty"`     // of the destination, 1 to 65,535, with tcp and udp
}

// Trace is the response of POST /v1/agent/trace: what this host's kernel does with the packets.
type Trace struct {
	Node        string     `json:"node"`
	Network     string     `json:"network"`
	Source      TraceEnd   `json:"source"`
	Destination TraceEnd   `json:"destination"`
	Protocol    string     `json:"protocol"`
	Port        int        `json:"port,omitempty"`
	Arrived     string     `json:"arrived"`       // yes, no or unknown: whether packets from the source were answered
	Why         string     `json:"why,omitempty"` // what was sent and seen, or why nothing was sent
	Stages      []TraceHop `json:"stages"`        // in the order in which packets pass them
}

// TraceEnd is one end of a trace.
type TraceEnd struct {
	Address   netip.Addr   `json:"address"`
	Node      string       `json:"node"`                // its host
	PublicIPs []netip.Addr `json:"public_ips"`          // of its host
	Container bool         `json:"container,omitempty"` // it is in the host's subnet and not an address of the host itself
}

// Values of Trace.Arrived.
const (
	ArrivedYes     = "yes"
	ArrivedNo      = "no"
	ArrivedUnknown = "unknown"
)

// TraceHop is one stage of the path of a packet.
type TraceHop struct {
	Stage  string `json:"stage"`        // container, route, bridge, rules, …
	Node   string `json:"node"`         // the host whose kernel was asked
	Where  string `json:"where"`        // the namespace, device or table
	Saw    string `json:"saw"`          // what the kernel does there
	Status string `json:"status"`       // ok, lost, warning or unknown
	Do     string `json:"do,omitempty"` // how to repair it, "" when there is nothing to do
}

// Statuses of a stage.
const (
	HopOK      = "ok"
	HopLost    = "lost"    // packets end here
	HopWarning = "warning" // they pass, or only some of them do
	HopUnknown = "unknown" // the kernel could not be asked, and Saw has the reason
)

// Lost returns the first stage at which packets are lost: the verdict. ok is false if there is none.
func (t Trace) Lost() (hop TraceHop, ok bool) {
	for _, h := range t.Stages {
		if h.Status == HopLost {
			return h, true
		}
	}
	return TraceHop{}, false
}

// Arguments returns the arguments of `leno trace` that ask for the same packets: "10.5.1.2 10.5.2.2 tcp/80".
func (t Trace) Arguments() string {
	out := t.Source.Address.String() + " " + t.Destination.Address.String()
	if t.Port > 0 {
		out += " " + t.Protocol + "/" + strconv.Itoa(t.Port)
	}
	return out
}

// Trace makes the agent follow packets between two addresses through its host (POST /v1/agent/trace). It sends a few of
// them from the source if that is there, takes seconds and changes nothing. Code 400 names the field that is wrong; 404
// means that neither address is on this host, or that no network has them; 409 that a trace is already running.
func (c *Client) Trace(ctx context.Context, r TraceRequest) (Trace, error) {
	var out Trace
	_, err := c.do(ctx, http.MethodPost, "/v1/agent/trace", r, &out)
	return out, err
}
