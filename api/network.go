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

// Network returns one network (GET /v1/network/:name). Code 404 names the
// networks there are.
func (c *Client) Network(ctx context.Context, name string, since ...Read) (Network, error) {
	var out Network
	h, err := c.do(ctx, http.MethodGet, path("v1", "network", name)+c.query(ctx, since), nil, &out)
	out.Index = index(h)
	return out, err
}

// PutNetwork stores a network's pools and backend (PUT /v1/network/:name) and
// returns it with defaults filled in. n.ModifyIndex 0 only creates; any other
// value replaces exactly that version. Code 409 when the network exists
// already or has changed meanwhile, and, unless force is set, when the change
// takes subnets or packets from hosts (see NetworkPlan.Refused); 400 when the
// definition is unusable.
//
// A network that is created may be given reservations: they are in force before
// any host can take a subnet, and are taken back when it cannot be created. What
// stays behind when the agent or the store dies meanwhile can be listed, and taken
// over by doing the same again.
func (c *Client) PutNetwork(ctx context.Context, n Network, force bool, reservations ...Reservation) (Network, error) {
	in := struct {
		Network
		Reservations []Reservation `json:"reservations,omitempty"`
	}{Network{Name: n.Name, Pools: n.Pools, Backend: n.Backend, ModifyIndex: n.ModifyIndex}, reservations}
	p := path("v1", "network", n.Name)
	if force {
		p += "?force=true"
	}
	var out Network
	_, err := c.do(ctx, http.MethodPut, p, in, &out)
	return out, err
}

// DeleteNetwork removes a network and its reservations (DELETE
// /v1/network/:name), also when there are only reservations. While hosts hold leases it is code 409 unless force is
// set.
func (c *Client) DeleteNetwork(ctx context.Context, name string, force bool) error {
	p := path("v1", "network", name)
	if force {
		p += "?force=true"
	}
	_, err := c.do(ctx, http.MethodDelete, p, nil, nil)
	return err
}

// Leases lists the leases of a network (GET /v1/network/:name/leases), sorted
// by subnet.
func (c *Client) Leases(ctx context.Context, network string, since ...Read) (LeaseList, error) {
	var out LeaseList
	h, err := c.do(ctx, http.MethodGet, path("v1", "network", network, "leases")+c.query(ctx, since), nil, &out)
	out.Index = index(h)
	return out, err
}

// Lease returns the lease on subnet (GET /v1/network/:name/lease/:subnet), code
// 404 when there is none.
func (c *Client) Lease(ctx context.Context, network string, subnet netip.Prefix) (Lease, error) {
	var out Lease
	_, err := c.do(ctx, http.MethodGet, path("v1", "network", network, "lease", subnetKey(subnet)), nil, &out)
	return out, err
}

// RevokeLease takes a lease from whichever host has it (DELETE
// /v1/network/:name/lease/:subnet). The host, if it lives, takes another
// subnet and goes on or exits, as its lease.on_lost says.
func (c *Client) RevokeLease(ctx context.Context, network string, subnet netip.Prefix) error {
	_, err := c.do(ctx, http.MethodDelete, path("v1", "network", network, "lease", subnetKey(subnet)), nil, nil)
	return err
}

// ReleaseLease makes the agent give up its own lease and leave the network
// until it is restarted or reloaded (PUT /v1/network/:name/release). Code 404 when
// this host takes no part in the network, 409 when it holds no lease, 403 and 503 as
// the store says.
func (c *Client) ReleaseLease(ctx context.Context, network string) error {
	_, err := c.do(ctx, http.MethodPut, path("v1", "network", network, "release"), nil, nil)
	return err
}

// RenewLease makes this host's session in a network live on from now (PUT
// /v1/network/:name/renew) and says until when the lease is safe. Code 404 when
// this host takes no part in the network, 409 when it holds no lease or has just
// lost it, 403 and 503 as the store says.
func (c *Client) RenewLease(ctx context.Context, network string) (Renewal, error) {
	var out Renewal
	_, err := c.do(ctx, http.MethodPut, path("v1", "network", network, "renew"), nil, &out)
	return out, err
}

// Reservations lists the slots kept for hosts (GET
// /v1/network/:name/reservations), sorted by subnet; also of a network that is
// not defined, when there are any.
func (c *Client) Reservations(ctx context.Context, network string, since ...Read) (ReservationList, error) {
	var out ReservationList
	h, err := c.do(ctx, http.MethodGet, path("v1", "network", network, "reservations")+c.query(ctx, since), nil, &out)
	out.Index = index(h)
	return out, err
}

// AddReservation keeps r.Subnet for the host that r names (PUT
// /v1/network/:name/reservation/:subnet). Adding it again is no error; code 409
// when the subnet is kept for somebody else, the host has another one, or,
// unless force is set, another live host holds a lease on it.
func (c *Client) AddReservation(ctx context.Context, network string, r Reservation, force bool) error {
	p := path("v1", "network", network, "reservation", subnetKey(r.Subnet))
	if force {
		p += "?force=true"
	}
	_, err := c.do(ctx, http.MethodPut, p, r, nil)
	return err
}

// RemoveReservation drops a reservation (DELETE
// /v1/network/:name/reservation/:subnet) and leaves any lease alone. Code 404
// when there is none.
func (c *Client) RemoveReservation(ctx context.Context, network string, subnet netip.Prefix) error {
	_, err := c.do(ctx, http.MethodDelete, path("v1", "network", network, "reservation", subnetKey(subnet)), nil, nil)
	return err
}

// Peers lists the other hosts as this host's datapath has them (GET
// /v1/network/:name/peers), sorted by name.
func (c *Client) Peers(ctx context.Context, network string, since ...Read) (PeerList, error) {
	var out PeerList
	h, err := c.do(ctx, http.MethodGet, path("v1", "network", network, "peers")+c.query(ctx, since), nil, &out)
	out.Index = index(h)
	return out, err
}

// subnetKey is a subnet as one element of a path: 10.5.34.0-24.
func subnetKey(p netip.Prefix) string { return fmt.Sprintf("%s-%d", p.Addr(), p.Bits()) }
