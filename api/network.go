package api

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
)

// Networks lists every network in the store (GET /v1/networks), sorted by name.
func (c *Client) Networks(ctx context.Context, since ...Read) (NetworkList, error) {
	var out NetworkList
	h, err := c.do(ctx, http.MethodGet, "/v1/networks"+c.query(ctx, since), nil, &out)
	out.Index = index(h)
	return out, err
}

// Network returns one network (GET /v1/network/:name). The error with code 404 lists the networks
// that exist.
func (c *Client) Network(ctx context.Context, name string, since ...Read) (Network, error) {
	var out Network
	h, err := c.do(ctx, http.MethodGet, path("v1", "network", name)+c.query(ctx, since), nil, &out)
	out.Index = index(h)
	return out, err
}

// PutNetwork stores a network's pools and backend (PUT /v1/network/:name) and returns it with
// defaults filled in. If n.ModifyIndex is 0, PutNetwork only creates; any other value replaces
// exactly that version. Code 409 means that the network already exists or has changed in the
// meantime, or, unless force is set, that the change takes subnets or packets from hosts (see
// NetworkPlan.Refused). Code 400 means that the definition is unusable.
//
// A new network can be given reservations: they are in force before any host can take a subnet,
// and are removed again when the network cannot be created. If the agent or the store dies in
// between, the remaining reservations can be listed, and repeating the call takes them over.
func (c *Client) PutNetwork(ctx context.Context, n Network, force bool, reservations ...Reservation) (Network, error) {
	in := struct {
		Network
		Reservations []Reservation `json:"reservations,omitempty"`
	}{Network{Name: n.Name, Pools: n.Pools, Backend: n.Backend, Encryption: n.Encryption, ModifyIndex: n.ModifyIndex},
		reservations}
	p := path("v1", "network", n.Name)
	if force {
		p += "?force=true"
	}
	var out Network
	_, err := c.do(ctx, http.MethodPut, p, in, &out)
	return out, err
}

// DeleteNetwork removes a network and its reservations (DELETE /v1/network/:name), even when only
// reservations exist. Code 409 means that hosts still hold leases and force is not set.
func (c *Client) DeleteNetwork(ctx context.Context, name string, force bool) error {
	p := path("v1", "network", name)
	if force {
		p += "?force=true"
	}
	_, err := c.do(ctx, http.MethodDelete, p, nil, nil)
	return err
}

// NetworkSwitch returns how far the hosts have switched a network to another backend (GET /v1/network/:name/switch).
func (c *Client) NetworkSwitch(ctx context.Context, network string) (NetworkSwitch, error) {
	var out NetworkSwitch
	_, err := c.do(ctx, http.MethodGet, path("v1", "network", network, "switch"), nil, &out)
	return out, err
}

// ChangeSwitch stops, continues, reverses or ends the switch of a network to another backend, or begins one to new keys
// (PUT /v1/network/:name/switch); action is one of StopSwitch and the constants after it. Code 409 means that the
// network is not being switched, that its backend has no keys, or that the definition has changed at the same time.
func (c *Client) ChangeSwitch(ctx context.Context, network, action string) (NetworkSwitch, error) {
	var out NetworkSwitch
	in := struct {
		Action string `json:"action"`
	}{action}
	_, err := c.do(ctx, http.MethodPut, path("v1", "network", network, "switch"), in, &out)
	return out, err
}

// Leases lists the leases of a network (GET /v1/network/:name/leases), sorted
// by subnet.
func (c *Client) Leases(ctx context.Context, network string, since ...Read) (LeaseList, error) {
	var out LeaseList
	h, err := c.do(ctx, http.MethodGet, path("v1", "network", network, "leases")+c.query(ctx, since), nil, &out)
	out.Index = index(h)
	return out, err
}

// Lease returns the lease on subnet (GET /v1/network/:name/lease/:subnet). Code 404 means that
// there is none.
func (c *Client) Lease(ctx context.Context, network string, subnet netip.Prefix) (Lease, error) {
	var out Lease
	_, err := c.do(ctx, http.MethodGet, path("v1", "network", network, "lease", subnetKey(subnet)), nil, &out)
	return out, err
}

// RevokeLease takes a lease from the host that holds it (DELETE /v1/network/:name/lease/:subnet).
// That host, if it is alive, takes another subnet and continues, or exits, depending on its
// lease.on_lost.
func (c *Client) RevokeLease(ctx context.Context, network string, subnet netip.Prefix) error {
	_, err := c.do(ctx, http.MethodDelete, path("v1", "network", network, "lease", subnetKey(subnet)), nil, nil)
	return err
}

// ReleaseLease makes the agent give up its own lease and leave the network until it is restarted
// or reloaded (PUT /v1/network/:name/release). Code 404 means that this host takes no part in the
// network, 409 that it holds no lease; 403 and 503 come from the store.
func (c *Client) ReleaseLease(ctx context.Context, network string) error {
	_, err := c.do(ctx, http.MethodPut, path("v1", "network", network, "release"), nil, nil)
	return err
}

// RenewLease renews this host's session in a network as of now (PUT /v1/network/:name/renew) and
// returns the time until which the lease is safe. Code 404 means that this host takes no part in
// the network, 409 that it holds no lease or has just lost it; 403 and 503 come from the store.
func (c *Client) RenewLease(ctx context.Context, network string) (Renewal, error) {
	var out Renewal
	_, err := c.do(ctx, http.MethodPut, path("v1", "network", network, "renew"), nil, &out)
	return out, err
}

// Reservations lists the slots reserved for hosts (GET /v1/network/:name/reservations), sorted by
// subnet. It also works for a network that is not defined but has reservations.
func (c *Client) Reservations(ctx context.Context, network string, since ...Read) (ReservationList, error) {
	var out ReservationList
	h, err := c.do(ctx, http.MethodGet, path("v1", "network", network, "reservations")+c.query(ctx, since), nil, &out)
	out.Index = index(h)
	return out, err
}

// AddReservation reserves r.Subnet for the host that r names (PUT
// /v1/network/:name/reservation/:subnet). Adding the same reservation again is not an error. Code
// 409 means that the subnet is reserved for another host, that the host has another reservation,
// or, unless force is set, that another live host holds a lease on the subnet.
func (c *Client) AddReservation(ctx context.Context, network string, r Reservation, force bool) error {
	p := path("v1", "network", network, "reservation", subnetKey(r.Subnet))
	if force {
		p += "?force=true"
	}
	_, err := c.do(ctx, http.MethodPut, p, r, nil)
	return err
}

// RemoveReservation removes a reservation (DELETE /v1/network/:name/reservation/:subnet) and
// leaves any lease alone. Code 404 means that there is none.
func (c *Client) RemoveReservation(ctx context.Context, network string, subnet netip.Prefix) error {
	_, err := c.do(ctx, http.MethodDelete, path("v1", "network", network, "reservation", subnetKey(subnet)), nil, nil)
	return err
}

// Peers lists the other hosts as they are in this host's datapath (GET /v1/network/:name/peers),
// sorted by name.
func (c *Client) Peers(ctx context.Context, network string, since ...Read) (PeerList, error) {
	var out PeerList
	h, err := c.do(ctx, http.MethodGet, path("v1", "network", network, "peers")+c.query(ctx, since), nil, &out)
	out.Index = index(h)
	return out, err
}

// Hosts lists all hosts with a lease in a network, this one included, with what this agent knows of them (GET
// /v1/network/:name/hosts). Code 404 means that this host takes no part in the network.
func (c *Client) Hosts(ctx context.Context, network string, since ...Read) (HostList, error) {
	var out HostList
	h, err := c.do(ctx, http.MethodGet, path("v1", "network", network, "hosts")+c.query(ctx, since), nil, &out)
	out.Index = index(h)
	return out, err
}

// subnetKey returns a subnet as one path element, for example 10.5.34.0-24.
func subnetKey(p netip.Prefix) string { return fmt.Sprintf("%s-%d", p.Addr(), p.Bits()) }
