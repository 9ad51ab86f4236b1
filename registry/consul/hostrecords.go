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

// HostRecords returns the records that name a host in one network, or in all networks if network is "", including
// networks that no longer exist. It returns only sessions that the token may see. The error is ErrUncertain when the
// answer may be incomplete.
func (c *Client) HostRecords(ctx context.Context, network string, h registry.Host) (registry.HostRecords, error) {
	prefix := c.layout.prefix + "/leases/"
	if network != "" {
		prefix = c.layout.leases(network)
	}
	found, _, err := c.kv.list(ctx, prefix, read{consistent: true})
	if err != nil {
		return registry.HostRecords{}, err
	}
	var out registry.HostRecords
	locks := map[string]bool{} // sessions that hold a lease
	for _, pair := range found {
		l, ok := c.anyLease(pair)
		if !ok {
			continue
		}
		locks[l.Session] = true
		sameHost := h.NodeID != "" && l.NodeID == h.NodeID || h.Node != "" && l.Node == h.Node
		if sameHost || slices.Contains(h.Sessions, l.Session) {
			out.Leases = append(out.Leases, l)
		}
	}
	opts, cancel := c.kv.query(ctx, read{consistent: true})
	defer cancel()
	sessions, _, err := c.api.Session().List(opts)
	if err != nil {
		return registry.HostRecords{}, fmt.Errorf("list sessions: %w", classify(err))
	}
	for _, s := range sessions {
		in, node, ok := strings.Cut(strings.TrimPrefix(s.Name, c.layout.prefix+"/"), "/")
		named := ok && h.Node != "" && node == h.Node && s.Name == c.sessionName(in, node) && (network == "" || network == in)
		if (named || slices.Contains(h.Sessions, s.ID)) && !locks[s.ID] {
			out.Sessions = append(out.Sessions, s.ID)
		}
	}
	return out, nil
}

// anyLease returns the record of a lease as far as it can be read without the definition of its network. It returns
// false if the key is not that of a lease.
func (c *Client) anyLease(pair *api.KVPair) (registry.Lease, bool) {
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

// EndSession ends a session that holds no lease. If the session has already ended, that is no error.
func (c *Client) EndSession(ctx context.Context, id string) error { return c.destroySession(ctx, id) }

// RegisteredService returns the service with the given ID as the local Consul agent has it, and false when it has none.
func (c *Client) RegisteredService(ctx context.Context, id string) (registry.Service, bool, error) {
	opts, cancel := c.kv.query(ctx, read{})
	defer cancel()
	found, _, err := c.api.Agent().Service(id, opts)
	if isNotFound(err) {
		return registry.Service{}, false, nil
	}
	if err != nil {
		return registry.Service{}, false, fmt.Errorf("look up service %s: %w", id, classify(err))
	}
	return serviceOf(found), true, nil
}
