package kubernetes

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/registry"
)

// HostRecords returns the leases that leno has written to Nodes and that name a host, or are in the Node of this host.
// The leases of hosts that run flannel are not among them. Other networks than that of the configuration have none.
func (c *Client) HostRecords(ctx context.Context, network string, h registry.Host) (registry.HostRecords, error) {
	if network != "" && network != c.conf.Network {
		return registry.HostRecords{}, nil
	}
	t, err := c.own.mirror.Refresh(ctx)
	if err != nil {
		return registry.HostRecords{}, registry.Wrap(err, "leases of this host")
	}
	var out registry.HostRecords
	for _, nd := range t.Records {
		l, ok := nd.anyLease(c.conf.Network, c.own.names)
		if !ok {
			continue
		}
		sameHost := h.NodeID != "" && l.NodeID == h.NodeID || h.Node != "" && l.Node == h.Node ||
			nd.name == c.conf.NodeName
		// Of a record that cannot be read, the session lacks the node id.
		i := slices.IndexFunc(h.Sessions, func(s string) bool {
			return s == l.Session || l.NodeID == "" && strings.HasPrefix(s, l.Session)
		})
		if i >= 0 {
			l.Session = h.Sessions[i]
		}
		if sameHost || i >= 0 {
			out.Leases = append(out.Leases, l)
		}
	}
	slices.SortFunc(out.Leases, func(a, b registry.Lease) int {
		return cmp.Or(a.Subnet().Compare(b.Subnet()), cmp.Compare(a.Session, b.Session))
	})
	return out, nil
}

// anyLease returns the lease that leno has written to a Node, as far as it can be read without the definition of the
// network. A lease that names no host counts as that of the Node's host, at the address in flannel's annotations. It
// returns false if leno has written none.
func (n *node) anyLease(network string, a names) (registry.Lease, bool) {
	record, ok := n.annotations[lenoAnnotation]
	if !ok {
		return registry.Lease{}, false
	}
	l := registry.ReadableLease([]byte(record))
	l.Network, l.Session, l.CreateIndex, l.ModifyIndex = network, n.session(l.NodeID), n.created, n.modified
	if implied := n.impliedPlan(); len(implied) > 0 {
		l.Subnets = implied.Prefixes()
	}
	if l.Node == "" && l.NodeID == "" {
		l.Node = n.name
	}
	if len(l.PublicIPs) == 0 {
		for _, name := range []string{a.publicIP, a.publicIPv6} {
			if ip, err := netip.ParseAddr(n.annotations[name]); err == nil {
				l.PublicIPs = append(l.PublicIPs, ip)
			}
		}
	}
	return l, true
}

// impliedPlan returns a plan with the Node's subnets alone, IPv4 first.
func (n *node) impliedPlan() (plan registry.Plan) {
	for _, text := range n.podCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			plan = append(plan, registry.Pool{Prefix: p.Masked(), SubnetLen: p.Bits()})
		}
	}
	slices.SortStableFunc(plan, func(a, b registry.Pool) int {
		return cmp.Compare(a.Prefix.Addr().BitLen(), b.Prefix.Addr().BitLen())
	})
	return plan
}

// EndSession does nothing: a session is a Node, which leno does not delete.
func (c *Client) EndSession(context.Context, string) error { return nil }
