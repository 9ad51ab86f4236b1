package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Info is the severity of an event that needs no attention; the others are Warning and Critical.
const Info = "info"

// Kinds of events.
const (
	EventAgent   = "agent"   // the agent started
	EventCheck   = "check"   // a health check started to fail, or passes again
	EventLease   = "lease"   // this host's lease was taken, lost, revoked, released, or replaced by another
	EventNetwork = "network" // joined, left, changed, deleted, or its underlay moved
	EventPeer    = "peer"    // what another host did or reports: see the field change
	EventPath    = "path"    // packets to another host began to be lost, or arrive again
	EventDrift   = "drift"   // another program changed the datapath, and the agent repaired it
	EventStore   = "store"   // the store was emptied or restored to an older state
	EventReload  = "reload"  // the configuration was read again, or rejected
)

// EventKinds are the values of Event.Kind.
var EventKinds = []string{EventAgent, EventCheck, EventLease, EventNetwork, EventPeer, EventPath, EventDrift,
	EventStore, EventReload}

// Event is something that happened on the agent's host or was observed from it.
type Event struct {
	Index    uint64            `json:"index"` // grows with every event, across restarts too
	Time     time.Time         `json:"time"`
	Network  string            `json:"network,omitempty"` // "" for events of the agent itself
	Kind     string            `json:"kind"`
	Severity string            `json:"severity"` // info, warning or critical
	Message  string            `json:"message"`  // one line for people; its wording may change
	Fields   map[string]string `json:"fields,omitempty"`
}

// EventList is the response of GET /v1/agent/events.
type EventList struct {
	Events []Event `json:"events"` // oldest first
	Index  uint64  `json:"-"`      // header X-Leno-Index: of the newest event
}

// Events lists recent events (GET /v1/agent/events) of one network or, with "", of all networks
// and the agent itself. With an index it lists the events after that index.
func (c *Client) Events(ctx context.Context, network string, since ...Read) (EventList, error) {
	q := c.query(ctx, since)
	if network != "" {
		join := "?"
		if q != "" {
			join = "&"
		}
		q += join + url.Values{"network": {network}}.Encode()
	}
	var out EventList
	h, err := c.do(ctx, http.MethodGet, "/v1/agent/events"+q, nil, &out)
	out.Index = index(h)
	return out, err
}
