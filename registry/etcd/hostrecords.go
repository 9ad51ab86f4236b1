package etcd

import (
	"context"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/flannel"
)

// HostRecords returns the records that name a host in one network, or in all networks if network is "", including
// networks that no longer exist.
func (c *Client) HostRecords(ctx context.Context, network string, h registry.Host) (registry.HostRecords, error) {
	t, err := c.own.mirror.Refresh(ctx)
	if err != nil {
		return registry.HostRecords{}, err
	}
	var out registry.HostRecords
	holding := map[string]bool{} // sessions that hold a lease
	for _, r := range t.Below(c.own.keys.root()) {
		l, ok := c.own.anyLease(t, r)
		if !ok || network != "" && l.Network != network {
			continue
		}
		holding[l.Session] = true
		sameHost := h.NodeID != "" && l.NodeID == h.NodeID || h.Node != "" && l.Node == h.Node
		if sameHost || l.Held() && slices.Contains(h.Sessions, l.Session) {
			out.Leases = append(out.Leases, l)
		}
	}
	prefix := c.own.keys.sessions(network)
	if network == "" {
		prefix = strings.TrimSuffix(prefix, "/")
	}
	for _, r := range t.Below(prefix) {
		kept, ok := parseLeaseID(path.Base(r.key))
		if !ok || r.lease == 0 {
			continue
		}
		id := session{r.lease, kept}.String()
		named := h.Node != "" && nodeOfSession(r) == h.Node
		if (named || slices.Contains(h.Sessions, id)) && !holding[id] {
			out.Sessions = append(out.Sessions, id)
		}
	}
	return out, nil
}

// anyLease returns the record of a lease as far as it can be read without the definition of its network. It returns
// false if the key is not that of a lease.
func (c *connection) anyLease(t *tree, r *record) (registry.Lease, bool) {
	l := registry.Lease{Network: c.keys.network}
	name, ok := strings.CutPrefix(r.key, c.keys.leases(l.Network))
	if !ok {
		l.Network, name, ok = strings.Cut(strings.TrimPrefix(r.key, c.keys.networks()), "/"+flannel.SubnetsDir+"/")
		ok = ok && strings.HasPrefix(r.key, c.keys.networks())
	}
	subnets, err := flannel.ParseSubnetKey(name)
	if !ok || err != nil {
		return l, false
	}
	var v struct {
		Leno json.RawMessage `json:"leno"`
	}
	_ = json.Unmarshal(r.value, &v)
	network := l.Network
	l = registry.ReadableLease(v.Leno)
	l.Network, l.Subnets = network, subnets
	return stored(l, r, held{r, t.Get(c.keys.session(l.Network, r.lease))}.id()), true
}

// EndSession ends a session that holds no lease. If it has already ended, that is no error.
func (c *Client) EndSession(ctx context.Context, id string) error {
	s, ok := parseSession(id)
	if !ok {
		return nil
	}
	return c.own.sessions.end(ctx, s)
}
