package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// Left implements registry.Sweeper. It returns only sessions that the token may see.
func (c *Client) Left(ctx context.Context, network string, h registry.Host) (registry.Left, error) {
	prefix := c.layout.prefix + "/leases/"
	if network != "" {
		prefix = c.layout.leases(network)
	}
	found, _, err := c.list(ctx, prefix, read{consistent: true})
	if err != nil {
		return registry.Left{}, err
	}
	var left registry.Left
	locks := map[string]bool{} // sessions that hold a lease
	for _, pair := range found {
		l, ok := c.leftLease(pair)
		if !ok {
			continue
		}
		locks[l.Session] = true
		sameHost := h.NodeID != "" && l.NodeID == h.NodeID || h.Node != "" && l.Node == h.Node
		if sameHost || slices.Contains(h.Sessions, l.Session) {
			left.Leases = append(left.Leases, l)
		}
	}
	opts, cancel := c.query(ctx, read{consistent: true})
	defer cancel()
	sessions, _, err := c.api.Session().List(opts)
	if err != nil {
		return registry.Left{}, fmt.Errorf("list sessions: %w", classify(err))
	}
	for _, s := range sessions {
		in, node, ok := strings.Cut(strings.TrimPrefix(s.Name, c.layout.prefix+"/"), "/")
		named := ok && h.Node != "" && node == h.Node && s.Name == c.sessionName(in, node) && (network == "" || network == in)
		if (named || slices.Contains(h.Sessions, s.ID)) && !locks[s.ID] {
			left.Sessions = append(left.Sessions, s.ID)
		}
	}
	return left, nil
}

// leftLease returns the record of a lease as far as it can be read without the definition of its network. It returns
// false if the key is not that of a lease.
func (c *Client) leftLease(pair *api.KVPair) (registry.Lease, bool) {
	network, key, ok := strings.Cut(strings.TrimPrefix(pair.Key, c.layout.prefix+"/leases/"), "/")
	if !ok {
		return registry.Lease{}, false
	}
	subnet, err := registry.ParseSubnetKey(key)
	if err != nil {
		return registry.Lease{}, false
	}
	var r struct {
		Node      string       `json:"node"`
		NodeID    string       `json:"node_id"`
		PublicIPs []netip.Addr `json:"public_ips"`
	}
	_ = json.Unmarshal(pair.Value, &r) // a partial result is enough
	l := registry.Lease{
		Network:   network,
		Subnets:   []netip.Prefix{subnet},
		Node:      r.Node,
		NodeID:    r.NodeID,
		PublicIPs: r.PublicIPs,
	}
	return stored(l, pair), true
}

// EndSession implements registry.Sweeper.
func (c *Client) EndSession(ctx context.Context, id string) error { return c.destroySession(ctx, id) }

// Shown implements registry.Sweeper.
func (c *Client) Shown(ctx context.Context, id string) (registry.Service, bool, error) {
	opts, cancel := c.query(ctx, read{})
	defer cancel()
	found, _, err := c.api.Agent().Service(id, opts)
	if isNotFound(err) {
		return registry.Service{}, false, nil
	}
	if err != nil {
		return registry.Service{}, false, fmt.Errorf("look up service %s: %w", id, classify(err))
	}
	return shown(found), true, nil
}
