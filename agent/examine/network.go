package examine

import (
	"cmp"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/registry"
)

// maxExamined is the number of peers of a network to which an examination sends packets. Peers with a held lease come
// first.
const maxExamined = 64

// networkFacts returns what can be seen at once of one network, and how its packets pass this host's rules. The paths
// are nil if there are none.
func (e *Examiner) networkFacts(n Network) (doctor.Network, *paths) {
	kind := n.Definition.Backend
	facts := doctor.Network{
		Name:    n.Local.Name,
		Backend: kind.Type,
		Pools:   n.Definition.Plan.Prefixes(),
		Subnets: n.Lease.Subnets,
		MTU:     n.Shown.MTU,
		Link:    carriage.Of(n.Definition.Carriage()).Links(n.Local.Name)[0],
		Notes:   n.Shown.Notes,
		Underlay: doctor.Underlay{
			Interface: n.Shown.Underlay.Interface,
			MTU:       n.Shown.Underlay.MTU,
			Public:    n.Shown.Underlay.Addresses,
			Own:       n.Shown.Underlay.Own,
			Ports:     n.Shown.Underlay.PublicPorts,
		},
		Lease: doctor.Lease{Renewed: n.Shown.Renewed, TTL: n.TTL, Now: time.Now()},
	}
	if len(facts.Underlay.Own) == 0 {
		facts.Underlay.Own = facts.Underlay.Public
	}
	if n.Held != nil {
		facts.Lease.Held, facts.Lease.Own = true, *n.Held
	}
	if kind.Type == "" {
		return facts, nil // nothing is known of it yet, and its health says why
	}
	driver := e.Backends[kind.Type]
	facts.AddKernelFacts(driver.Device, driver.UsesTUN(), n.Definition.Plan)
	facts.Port, facts.SamePort = carriage.Of(n.Definition.Carriage()).Current.Port(e.Backends).Number, driver.SamePort
	facts.Peers = peerFacts(facts, n.Definition.Carriage(), n.Peers, driver.SamePort && n.Shown.Switch == nil)
	if len(facts.Subnets) == 0 || kind.Type == "alloc" {
		return facts, nil
	}
	if n.Shown.Switch == nil {
		facts.AddDetours(!driver.OwnFamily, maxExamined)
	}
	return facts, findPaths(n.Definition, n.Local, &facts, e.EnsureForwarding)
}

// peerFacts returns the peers, and which of their packets the kernel would refuse. exact says that the endpoints of
// peers are those of the network's only backend.
func peerFacts(n doctor.Network, c registry.Carriage, list []api.Peer, exact bool) []doctor.Peer {
	var out []doctor.Peer
	links := kernel.Arrivals(n.Name, n.Underlay.Interface, c.Objects()...)
	for i, p := range list {
		peer := doctor.Peer{Node: p.Node, Held: p.Held, Flannel: p.Flannel, Skipped: p.Skipped, Subnets: p.Subnets,
			Port: n.Port, Path: p.Path}
		if p.Endpoint.IsValid() {
			peer.Public = p.Endpoint.Addr().Unmap()
			peer.BehindNAT = !slices.Contains(p.PublicIPs, peer.Public)
			if exact {
				peer.Port = cmp.Or(int(p.Endpoint.Port()), n.Port)
			}
		} else if len(n.Underlay.Public) > 0 {
			peer.Public, _ = backend.Peer{PublicIPs: p.PublicIPs}.Outer(n.Underlay.Public[0])
		}
		if i < maxExamined && peer.Skipped == "" && peer.Public.IsValid() && len(n.Underlay.Own) > 0 {
			peer.AddRefusals(n, links)
		}
		out = append(out, peer)
	}
	return out
}
