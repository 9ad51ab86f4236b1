package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

func (a *Agent) getNetworks(*http.Request) (reply, error) {
	known, ok, _ := a.env.networks.get()
	if !ok {
		return reply{}, fmt.Errorf("networks: %w: not read yet", registry.ErrUnavailable)
	}
	out := api.NetworkList{Networks: []api.Network{}, Skipped: skipped(known.set.Bad)}
	for _, n := range a.known(known) {
		out.Networks = append(out.Networks, a.network(n))
	}
	return reply{out, known.index}, nil
}

// known is the networks in the store, those this agent has just put there, which
// the watch shows a moment later, and those that run here by a record that was
// good.
func (a *Agent) known(set networkSet) []registry.Network {
	out := slices.Clone(set.set.Networks)
	for _, name := range a.self().Networks {
		if run, ok := a.runner(name); ok {
			if v := run.shown(); v.defined && (v.definition.ModifyIndex > set.index || set.bad(name)) {
				out = append(out, v.definition)
			}
		}
	}
	slices.SortFunc(out, func(x, y registry.Network) int { return strings.Compare(x.Name, y.Name) })
	return slices.CompactFunc(out, func(x, y registry.Network) bool { return x.Name == y.Name })
}

func (a *Agent) getNetwork(r *http.Request) (reply, error) {
	n, err := a.definition(r)
	if err != nil {
		return reply{}, err
	}
	return reply{a.network(n), n.ModifyIndex}, nil
}

// network is n as the API shows it, with this host's part in it.
func (a *Agent) network(n registry.Network) api.Network {
	out := api.Network{Name: n.Name, Pools: []api.Pool{}, ModifyIndex: n.ModifyIndex, Backend: json.RawMessage(n.Backend.Object)}
	for _, p := range n.Plan {
		out.Pools = append(out.Pools, api.Pool(p))
	}
	if run, ok := a.runner(n.Name); ok {
		local := run.shown().local
		if local.Subnets == nil {
			local.Subnets = slices.Clip(local.Subnets[:0:0])
		}
		out.Local = &local
	}
	return out
}

func skipped(bad []registry.BadRecord) []api.Skipped {
	out := []api.Skipped{}
	for _, b := range bad {
		out = append(out, api.Skipped(bounded(b)))
	}
	return out
}

// networkOf is the definition in a request's body, effective.
func (a *Agent) networkOf(r *http.Request) (registry.Network, error) {
	var body api.Network
	if err := readBody(r, &body); err != nil {
		return registry.Network{}, err
	}
	n := registry.Network{Name: r.PathValue("network"), ModifyIndex: body.ModifyIndex}
	if body.Name != "" && body.Name != n.Name {
		return n, badRequest("name %q contradicts the path", body.Name)
	}
	if err := registry.CheckNetworkName(n.Name); err != nil {
		return n, err
	}
	for _, p := range body.Pools {
		n.Plan = append(n.Plan, registry.Pool(p))
	}
	var err error
	if n.Plan, err = n.Plan.Normalize(); err != nil {
		return n, err
	}
	n.Backend, err = a.normalizedBackend(body.Backend)
	return n, err
}

// planNetwork tells what putNetwork would change, and changes nothing.
func (a *Agent) planNetwork(r *http.Request) (reply, error) {
	n, err := a.networkOf(r)
	if err != nil {
		return reply{}, err
	}
	c, err := a.changeTo(r.Context(), n)
	if err != nil {
		return reply{}, err
	}
	return reply{c.plan(), c.old.ModifyIndex}, nil
}

// changeTo gathers what a change to n is judged by, under the agent's own token
// as all that is only read.
func (a *Agent) changeTo(ctx context.Context, n registry.Network) (change, error) {
	c := change{new: n, kinds: a.env.backends}
	known, _, _ := a.env.networks.get() // none in a store that is new
	c.others = known.set.Networks
	old, err := a.env.registry.Network(ctx, n.Name)
	switch {
	case errors.Is(err, registry.ErrNetworkNotFound):
		return c, nil
	case errors.Is(err, registry.ErrInvalid):
		return c, unusable(n.Name, err)
	}
	if err != nil {
		return c, err
	}
	c.old = old
	leases, _, err := a.env.registry.WatchLeases(ctx, old, 0)
	if err != nil {
		return c, err
	}
	reservations, err := a.env.registry.Reservations(ctx, old)
	c.leases, c.reservations = leases.Leases, reservations.Reservations
	return c, err
}

// allowed refuses what takes subnets or packets from hosts, unless forced, also
// where that cannot be known. A version that is not there any more is for the
// store to refuse.
func (a *Agent) allowed(ctx context.Context, n registry.Network, force bool) error {
	c, err := a.changeTo(ctx, n)
	switch {
	case err != nil && force:
		return nil
	case err != nil || c.old.ModifyIndex != n.ModifyIndex:
		return err
	}
	var reasons []string
	for _, r := range c.plan().Refused {
		if !r.Force || !force {
			reasons = append(reasons, fmt.Sprintf("%s (%s)", r.Reason, r.Way))
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	return &api.Error{Code: http.StatusConflict, Message: "network " + n.Name + " is left as it is: " + strings.Join(reasons, "; ")}
}

// putNetwork defines a network or replaces the version the body names.
func (a *Agent) putNetwork(r *http.Request) (reply, error) {
	n, err := a.networkOf(r)
	if err != nil {
		return reply{}, err
	}
	if err := a.allowed(r.Context(), n, r.URL.Query().Get("force") == "true"); err != nil {
		return reply{}, err
	}
	name, reg := n.Name, a.caller(r)
	if err := reg.PutNetwork(r.Context(), n); err != nil {
		return reply{}, err
	}
	n, err = reg.Network(r.Context(), name)
	if err != nil {
		return reply{}, err
	}
	a.awaitNetworks(r.Context(), func(s networkSet) bool {
		shown, ok := s.find(name)
		return ok && shown.ModifyIndex >= n.ModifyIndex
	})
	return reply{a.network(n), n.ModifyIndex}, nil
}

// awaitNetworks blocks until the watch of all networks shows a change that was
// just made, so that whoever made it sees it in every later answer. It gives up
// after a moment: the change stands either way.
func (a *Agent) awaitNetworks(ctx context.Context, shown func(networkSet) bool) {
	ctx, cancel := context.WithTimeout(ctx, showWait)
	defer cancel()
	for {
		known, _, changed := a.env.networks.get()
		if shown(known) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// showWait is many times what the watch takes with a store that answers.
const showWait = 2 * time.Second

// normalizedBackend checks a backend object and fills in its defaults.
func (a *Agent) normalizedBackend(object json.RawMessage) (registry.Backend, error) {
	var given registry.Backend
	if err := json.Unmarshal(object, &given); err != nil {
		return given, badRequest("backend: %v", err)
	}
	kind, ok := a.env.backends[given.Type]
	if !ok {
		return given, badRequest("backend: this leno has no %q", given.Type)
	}
	options, err := kind.Normalize(given.Options())
	if err != nil {
		return given, badRequest("backend %q: %v", given.Type, err)
	}
	return registry.NewBackend(given.Type, options)
}

// forced says whether a request asks for more than is done without asking.
func forced(r *http.Request) bool { return r.URL.Query().Get("force") == "true" }

// deleteNetwork refuses while hosts hold leases, or when its record does not tell
// whether they do, unless forced.
func (a *Agent) deleteNetwork(r *http.Request) (reply, error) {
	n, err := a.definition(r)
	if known, _, _ := a.env.networks.get(); forced(r) && known.bad(r.PathValue("network")) {
		n.Name, err = r.PathValue("network"), nil
	}
	if err != nil {
		return reply{}, err
	}
	reg := a.caller(r)
	if !forced(r) {
		set, _, err := reg.WatchLeases(r.Context(), n, 0)
		if err != nil {
			return reply{}, err
		}
		var hosts []string
		for _, l := range set.Leases {
			if l.Held() {
				hosts = append(hosts, l.Node)
			}
		}
		if len(hosts) > 0 {
			return reply{}, &api.Error{Code: http.StatusConflict,
				Message: fmt.Sprintf("network %s is in use by %d hosts (%s): force=true takes it from them", n.Name, len(hosts), strings.Join(hosts, ", "))}
		}
	}
	if err := reg.DeleteNetwork(r.Context(), n.Name); err != nil {
		return reply{}, err
	}
	a.awaitNetworks(r.Context(), func(s networkSet) bool {
		_, found := s.find(n.Name)
		return !found && !s.bad(n.Name)
	})
	return reply{}, nil
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

func (a *Agent) getReservations(r *http.Request) (reply, error) {
	n, err := a.definition(r)
	if err != nil {
		return reply{}, err
	}
	set, err := a.env.registry.Reservations(r.Context(), n)
	if err != nil {
		return reply{}, err
	}
	if run, ok := a.runner(n.Name); ok {
		run.records.set("reservation list", set.Bad)
	}
	out := api.ReservationList{Reservations: []api.Reservation{}, Skipped: skipped(set.Bad)}
	for _, v := range set.Reservations {
		out.Reservations = append(out.Reservations, api.Reservation{Subnet: v.Subnet, Node: v.Node, NodeID: v.NodeID})
	}
	return reply{body: out}, nil
}

func (a *Agent) putReservation(r *http.Request) (reply, error) {
	subnet, err := subnetOf(r)
	if err != nil {
		return reply{}, err
	}
	var body api.Reservation
	if err := readBody(r, &body); err != nil {
		return reply{}, err
	}
	if body.Subnet.IsValid() && body.Subnet != subnet {
		return reply{}, badRequest("subnet %s contradicts the path", body.Subnet)
	}
	n, err := a.definition(r)
	if err != nil {
		return reply{}, err
	}
	v := registry.Reservation{Subnet: subnet, Node: body.Node, NodeID: body.NodeID}
	if v, err = registry.CheckReservation(n, v); err != nil {
		return reply{}, err
	}
	if err := a.caller(r).AddReservation(r.Context(), n, v, forced(r)); err != nil {
		return reply{}, err
	}
	return reply{body: api.Reservation{Subnet: v.Subnet, Node: v.Node, NodeID: v.NodeID}}, nil
}

func (a *Agent) deleteReservation(r *http.Request) (reply, error) {
	return a.onSubnet(r, func(reg registry.Registry, network string, subnet netip.Prefix) error {
		return reg.RemoveReservation(r.Context(), network, subnet)
	})
}

// getPeers are the other hosts as the datapath has them.
func (a *Agent) getPeers(r *http.Request) (reply, error) {
	n, err := a.definition(r)
	if err != nil {
		return reply{}, err
	}
	run, ok := a.runner(n.Name)
	if !ok {
		return reply{}, &api.Error{Code: http.StatusNotFound, Message: fmt.Sprintf("this host takes no part in network %s", n.Name)}
	}
	out := api.PeerList{Peers: []api.Peer{}}
	snap, _, _ := run.snapshot.get()
	lease, _, _ := run.lease.get()
	if before, ok := run.carriedOn(); ok {
		snap.set.Leases, lease = before.leases, before.own
	}
	v := run.shown()
	held := map[string]bool{}
	for _, l := range snap.set.Leases {
		held[l.Node] = held[l.Node] || l.Held()
	}
	var counted map[string]backend.Counters
	if v.counter != nil {
		counted = v.counter.Counters()
		out.Drops = counted[""].Drops
	}
	skips := map[string]string{}
	for _, s := range v.report.Skipped {
		skips[s.Node] = s.Reason
	}
	for _, p := range peersOf(snap.set.Leases, lease) {
		out.Peers = append(out.Peers, api.Peer{Node: p.Node, Subnets: p.Subnets, PublicIPs: p.PublicIPs, Backend: p.Backend,
			Held: held[p.Node], Skipped: skips[p.Node], Counters: counters(counted, p.Node)})
	}
	return reply{out, snap.index}, nil
}

func counters(all map[string]backend.Counters, node string) *api.Counters {
	c, ok := all[node]
	if !ok {
		return nil
	}
	return &api.Counters{RxPackets: c.RxPackets, RxBytes: c.RxBytes, TxPackets: c.TxPackets, TxBytes: c.TxBytes, Drops: c.Drops}
}
