package consul

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/transport"
)

// HostRecords returns the records that name a host in one network, or in all networks if network is "", including
// networks that no longer exist. It returns only sessions that the token may see. The error is ErrUncertain when the
// answer may be incomplete.
func (c *Client) HostRecords(
	ctx context.Context, network string, h registry.Host,
) (out registry.HostRecords, err error) {
	prefix := c.kv.keys.Prefix + "/leases/"
	if network != "" {
		prefix = c.kv.keys.Leases(network)
	}
	found, _, err := c.kv.List(ctx, prefix, transport.Read{Consistent: true})
	if err != nil {
		return out, err
	}
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
	entries, _, err := c.sessions.List(ctx)
	if err != nil {
		return out, err
	}
	for _, s := range entries {
		in, node, ok := c.sessions.Of(s)
		named := ok && h.Node != "" && node == h.Node && (network == "" || network == in)
		if (named || slices.Contains(h.Sessions, s.ID)) && !locks[s.ID] {
			out.Sessions = append(out.Sessions, s.ID)
		}
	}
	return out, nil
}

// anyLease returns the record of a lease as far as it can be read without the definition of its network. It returns
// false if the key is not that of a lease.
func (c *Client) anyLease(pair *api.KVPair) (registry.Lease, bool) {
	network, key, ok := strings.Cut(strings.TrimPrefix(pair.Key, c.kv.keys.Prefix+"/leases/"), "/")
	if !ok {
		return registry.Lease{}, false
	}
	subnet, err := registry.ParseSubnetKey(key)
	if err != nil {
		return registry.Lease{}, false
	}
	l := registry.ReadableLease(pair.Value)
	l.Network, l.Subnets = network, []netip.Prefix{subnet}
	return stored(l, pair), true
}

// EndSession ends a session that holds no lease. If the session has already ended, that is no error.
func (c *Client) EndSession(ctx context.Context, id string) error { return c.sessions.Destroy(ctx, id) }
