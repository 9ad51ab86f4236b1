package catalog

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul/transport"
)

// maxMembers bounds how many members are read. Consul's gossip is made for fewer.
const maxMembers = 20_000

// Statuses of a member in the answer of the Consul agent, which are those of serf.
const (
	serfAlive = iota + 1
	serfLeaving
	serfLeft
	serfFailed
)

// Members returns what the Consul agent knows from its gossip, which it answers from memory. A Consul agent on another
// host is not asked: it would have to answer all hosts.
func (a Agent) Members(ctx context.Context) ([]registry.Member, error) {
	local, err := a.isOnThisHost(ctx)
	if err != nil || !local {
		return nil, err
	}
	opts, cancel := a.client.Query(ctx, transport.Read{})
	defer cancel()
	var found []*api.AgentMember
	if _, err := a.client.API.Raw().Query("/v1/agent/members", &found, opts); err != nil {
		return nil, fmt.Errorf("consul members: %w", transport.Classify(err))
	}
	return membersOf(found), nil
}

// membersOf returns the members that have a usable name, address and status.
func membersOf(found []*api.AgentMember) (out []registry.Member) {
	for _, m := range found[:min(len(found), maxMembers)] {
		addr, err := netip.ParseAddr(m.Addr)
		if m.Name == "" || err != nil {
			continue
		}
		status := ""
		switch m.Status {
		case serfAlive:
			status = registry.MemberAlive
		case serfLeaving, serfLeft:
			status = registry.MemberLeft
		case serfFailed:
			status = registry.MemberFailed
		default:
			continue
		}
		out = append(out, registry.Member{Node: m.Name, Addr: addr.Unmap().WithZone(""), Status: status})
	}
	return out
}
