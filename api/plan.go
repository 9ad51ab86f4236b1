package api

import (
	"context"
	"net/http"
	"net/netip"
)

// Values of NetworkPlan.Action.
const (
	ActionCreate = "create"
	ActionUpdate = "update"
	ActionSwitch = "switch" // to another backend, peer by peer, without a loss of packets
	ActionNone   = "none"
)

// NetworkPlan describes what storing a definition would change: the differences between the stored
// and the wanted definition, and the effect on each host. Lists are never null.
type NetworkPlan struct {
	Name        string       `json:"name"`
	Action      string       `json:"action"`       // create, update, switch or none
	ModifyIndex uint64       `json:"modify_index"` // of the stored definition, 0 for none
	Changes     []Change     `json:"changes"`      // sorted by field
	Hosts       []HostChange `json:"hosts"`        // all with a lease, sorted by slot; none if nothing changes
	Refused     []Refusal    `json:"refused"`      // why PutNetwork refuses it

	// Reservations exist in the store although the network does not, left by an interrupted
	// import. A network that is created gets them.
	Reservations []Reservation `json:"reservations,omitempty"`
}

// Change is one effective value that differs; "" means none.
type Change struct {
	Field string `json:"field"` // ipv4.prefix, backend.type, backend.port
	From  string `json:"from"`
	To    string `json:"to"`
}

// HostChange describes what happens to one host.
type HostChange struct {
	Node   string       `json:"node"`
	Subnet netip.Prefix `json:"subnet"` // the subnet that names its lease
	Held   bool         `json:"held"`   // false once lapsed: the host may be gone
	What   []string     `json:"what"`   // "keeps 10.5.34.0/24", "gains fd00:5:0:22::/64"
}

// Refusal is one reason to refuse a change.
type Refusal struct {
	Reason string `json:"reason"` // names fields and hosts
	Way    string `json:"way"`    // what to do instead
	Force  bool   `json:"force"`  // an operator may force it; otherwise the change could not work
}

// PlanNetwork returns what PutNetwork would do (POST /v1/network/:name/plan) and changes nothing.
// It ignores n.ModifyIndex. Code 400 means that the definition is unusable.
func (c *Client) PlanNetwork(ctx context.Context, n Network) (NetworkPlan, error) {
	in := Network{Name: n.Name, Pools: n.Pools, Backend: n.Backend, Encryption: n.Encryption}
	var out NetworkPlan
	_, err := c.do(ctx, http.MethodPost, path("v1", "network", n.Name, "plan"), in, &out)
	return out, err
}
