package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Info is the severity of an event that is no trouble; the others are Warning and
// Critical.
const Info = "info"

// Kinds of events.
const (
	EventAgent   = "agent"   // the agent started
	EventCheck   = "check"   // a check of health fails, or passes again
	EventLease   = "lease"   // this host's lease was taken, lost, revoked, released, or is another
	EventNetwork = "network" // joined, left, changed, deleted
	EventPeer    = "peer"    // another host appeared, left, lapsed, returned, moved, or has another subnet
	EventDrift   = "drift"   // the datapath was changed by somebody else, and healed
	EventStore   = "store"   // the store was emptied or set back
	EventReload  = "reload"  // the configuration was read again, or refused
)

// Event is one thing that happened on the agent's host or was seen from there.
type Event struct {
	Index    uint64            `json:"index"` // grows with every event, over restarts too
	Time     time.Time         `json:"time"`
	Network  string            `json:"network,omitempty"` // "" for the agent's own
	Kind     string            `json:"kind"`
	Severity string            `json:"severity"` // info, warning or critical
	Message  string            `json:"message"`  // one line for people, which may change
	Fields   map[string]string `json:"fields,omitempty"`
}

// EventList is the answer of GET /v1/agent/events.
type EventList struct {
	Events []Event `json:"events"` // oldest first
	Index  uint64  `json:"-"`      // header X-Leno-Index: of the newest event
}

// Events lists what happened lately (GET /v1/agent/events), in one network or, with
// "", in all and to the agent itself. With an index it is what happened after that.
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
