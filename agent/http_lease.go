package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

func (a *Agent) leaseEndpoints() []endpoint {
	return []endpoint{
		{"GET /v1/network/{network}/leases", a.wrap(a.getLeases)},
		{"GET /v1/network/{network}/lease/{subnet}", a.wrap(a.getLease)},
		{"DELETE /v1/network/{network}/lease/{subnet}", a.wrap(a.revokeLease)},
		{"PUT /v1/network/{network}/release", a.wrap(a.release)},
	}
}

// leases are all leases of a network, read anew where that was not just done;
// where the store does not answer, or memory=true asks for it, as this agent
// knows them.
func (a *Agent) leases(r *http.Request) (registry.Network, registry.LeaseSet, uint64, error) {
	n, err := a.definition(r)
	if err != nil {
		return n, registry.LeaseSet{}, 0, err
	}
	if run, ok := a.runner(n.Name); ok {
		if r.URL.Query().Get("memory") == "true" {
			snap, known, _ := run.snapshot.get()
			if !known {
				return n, registry.LeaseSet{}, 0, fmt.Errorf("leases of network %s: %w: not read yet", n.Name, registry.ErrUnavailable)
			}
			return n, snap.aged().set, snap.index, nil
		}
		if snap, known := run.leasesNow(r.Context(), n); known {
			return n, snap.set, snap.index, nil
		}
	}
	set, index, err := a.env.registry.WatchLeases(r.Context(), n, 0)
	return n, set, index, err
}

func (a *Agent) getLeases(r *http.Request) (reply, error) {
	_, set, index, err := a.leases(r)
	if err != nil {
		return reply{}, err
	}
	out := api.LeaseList{Leases: []api.Lease{}, Skipped: skipped(set.Bad)}
	for _, l := range set.Leases {
		out.Leases = append(out.Leases, a.lease(l))
	}
	return reply{out, index}, nil
}

func (a *Agent) getLease(r *http.Request) (reply, error) {
	subnet, err := subnetOf(r)
	if err != nil {
		return reply{}, err
	}
	n, set, _, err := a.leases(r)
	if err != nil {
		return reply{}, err
	}
	for _, l := range set.Leases {
		if slices.Contains(l.Subnets, subnet) {
			return reply{a.lease(l), l.ModifyIndex}, nil
		}
	}
	for _, b := range set.Bad {
		if tail(b.Key, 1) == "/"+registry.SubnetKey(subnet) {
			return reply{}, &api.Error{Code: http.StatusConflict, Message: fmt.Sprintf("the record of %s in network %s cannot be used: %s", subnet, n.Name, bounded(b).Reason)}
		}
	}
	return reply{}, fmt.Errorf("%w of %s in network %s", registry.ErrLeaseNotFound, subnet, n.Name)
}

func (a *Agent) lease(l registry.Lease) api.Lease {
	return api.Lease{
		Subnet: l.Subnet(), Subnets: l.Subnets, Node: l.Node, NodeID: l.NodeID, PublicIPs: l.PublicIPs, MTU: l.MTU,
		Backend: json.RawMessage(l.Backend.Object), Held: l.Held(), LapsedSeconds: int64(l.Lapsed / time.Second),
		Own: l.NodeID == a.self().NodeID, ModifyIndex: l.ModifyIndex,
	}
}

// onSubnet does something to the subnet a request names, under the caller's
// token.
func (a *Agent) onSubnet(r *http.Request, do func(reg registry.Registry, network string, subnet netip.Prefix) error) (reply, error) {
	subnet, err := subnetOf(r)
	if err != nil {
		return reply{}, err
	}
	n, err := a.definition(r)
	if err != nil {
		return reply{}, err
	}
	return reply{}, do(a.caller(r), n.Name, subnet)
}

func (a *Agent) revokeLease(r *http.Request) (reply, error) {
	return a.onSubnet(r, func(reg registry.Registry, network string, subnet netip.Prefix) error {
		return reg.Revoke(r.Context(), network, subnet)
	})
}

// release makes this host give up its lease and leave the network.
func (a *Agent) release(r *http.Request) (reply, error) {
	n, err := a.definition(r)
	if err != nil {
		return reply{}, err
	}
	run, ok := a.runner(n.Name)
	if !ok {
		return reply{}, fmt.Errorf("%w: this host takes no part in network %s", registry.ErrLeaseNotFound, n.Name)
	}
	request := &releaseRequest{token: r.Header.Get("X-Consul-Token"), done: make(chan error, 1)}
	stopped := fmt.Errorf("network %s: %w: it is being stopped", n.Name, registry.ErrUnavailable)
	waiting := time.NewTimer(releaseWait)
	defer waiting.Stop()
	select {
	case run.releases <- request:
	case <-run.done:
		return reply{}, stopped
	case <-waiting.C:
		return reply{}, fmt.Errorf("network %s: %w: %s", n.Name, registry.ErrUnavailable, run.shown().local.State)
	case <-r.Context().Done():
		return reply{}, r.Context().Err()
	}
	select {
	case err := <-request.done:
		return reply{}, err
	case <-run.done:
		return reply{}, stopped
	case <-r.Context().Done():
		return reply{}, r.Context().Err()
	}
}

// releaseWait is how long a request to release waits for a runner that is
// between two rounds.
const releaseWait = 2 * time.Second
