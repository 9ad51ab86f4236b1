package api

import (
	"context"
	"net/http"
	"net/netip"
)

// What a plan does to a network.
const (
	ActionCreate = "create"
	ActionUpdate = "update"
	ActionNone   = "none"
)

// NetworkPlan is what putting a definition would change: the way from what the
// store has to what is wanted, host by host. Lists are never null.
type NetworkPlan struct {
	Name        string       `json:"name"`
	Action      string       `json:"action"`       // create, update or none
	ModifyIndex uint64       `json:"modify_index"` // of what the store has, 0 for nothing
	Changes     []Change     `json:"changes"`      // sorted by field
	Hosts       []HostChange `json:"hosts"`        // all with a lease, sorted by slot; none when nothing changes
	Refused     []Refusal    `json:"refused"`      // why PutNetwork does not do it

	// Reservations stand in the store already, although the network does not: of
	// an import that was interrupted. A network that is created has them.
	Reservations []Reservation `json:"reservations,omitempty"`
}

// Change is one effective value that differs; "" stands for none.
type Change struct {
	Field string `json:"field"` // ipv4.prefix, backend.type, backend.port
	From  string `json:"from"`
	To    string `json:"to"`
}

// HostChange is what happens to one host.
type HostChange struct {
	Node   string       `json:"node"`
	Subnet netip.Prefix `json:"subnet"` // the one its lease is named by
	Held   bool         `json:"held"`   // false once lapsed: the host may be gone
	What   []string     `json:"what"`   // "keeps 10.5.34.0/24", "gains fd00:5:0:22::/64"
}

// Refusal is one reason against a change.
type Refusal struct {
	Reason string `json:"reason"` // names fields and hosts
	Way    string `json:"way"`    // what to do instead
	Force  bool   `json:"force"`  // an operator may insist; else it could not work
}

// PlanNetwork tells what PutNetwork would do (POST /v1/network/:name/plan) and
// changes nothing; n.ModifyIndex is not looked at. Code 400 when the definition
// is unusable.
func (c *Client) PlanNetwork(ctx context.Context, n Network) (NetworkPlan, error) {
	in := Network{Name: n.Name, Pools: n.Pools, Backend: n.Backend}
	var out NetworkPlan
	_, err := c.do(ctx, http.MethodPost, path("v1", "network", n.Name, "plan"), in, &out)
	return out, err
}
