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

	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

func (a *Agent) leaseEndpoints() []endpoint {
	return []endpoint{
		{"GET /v1/network/{network}/leases", a.block(a.getLeases)},
		{"GET /v1/network/{network}/lease/{subnet}", a.wrap(a.getLease)},
		{"DELETE /v1/network/{network}/lease/{subnet}", a.wrap(a.revokeLease)},
		{"PUT /v1/network/{network}/release", a.wrap(a.release)},
		{"PUT /v1/network/{network}/renew", a.wrap(a.renew)},
	}
}

// getLeases are all leases of a network, read anew where that was not just done;
// where the store does not answer, or memory=true asks for it, as this agent
// knows them.
func (a *Agent) getLeases(r *http.Request) (shown, error) {
	n, err := a.definition(r)
	if err != nil {
		return shown{}, err
	}
	if _, ok := a.runner(n.Name); !ok {
		return a.foreignLeases(n.Name), nil
	}
	memory, err := flag(r, "memory")
	if memory {
		return a.leasesHere(n.Name, "leases in memory of ", true), err
	}
	out := a.leasesHere(n.Name, "leases of ", false)
	out.fresh = func(ctx context.Context) {
		a.withRunner(ctx, n.Name, func(run *runner, ctx context.Context, n registry.Network) { run.fresh.refresh(ctx, n) })
	}
	out.keep = func(ctx context.Context) { a.readAnew(ctx, n.Name) }
	return out, err
}

// readAnew reads the leases of a network again and again until ctx ends, for those who
// wait for news of them.
func (a *Agent) readAnew(ctx context.Context, network string) {
	for leases := 0; retry.Sleep(ctx, lapsePace(leases)) == nil; {
		a.withRunner(ctx, network, func(run *runner, ctx context.Context, n registry.Network) {
			run.fresh.refresh(ctx, n)
			set, _ := run.leases(false) // without any, soon again
			leases = len(set.Leases)
		})
	}
}

// withRunner does something with a network this agent takes part in, if it still
// does.
func (a *Agent) withRunner(ctx context.Context, network string, do func(*runner, context.Context, registry.Network)) {
	n, err := a.definitionOf(network)
	if run, ok := a.runner(network); ok && err == nil {
		do(run, ctx, n)
	}
}

// leasesHere are those of a network this agent takes part in.
func (a *Agent) leasesHere(network, name string, watched bool) shown {
	return shown{name: name + network,
		memory: func() (reply, error) {
			if _, err := a.definitionOf(network); err != nil {
				return reply{}, err
			}
			run, ok := a.runner(network)
			if !ok {
				return reply{}, errElsewhere
			}
			set, err := run.leases(watched)
			if err != nil {
				return reply{}, err
			}
			return a.leaseList(set), nil
		},
		changes: func() []<-chan struct{} {
			_, _, defined := a.env.networks.Get()
			_, _, parts := a.env.parts.Get()
			out := []<-chan struct{}{defined, parts}
			if run, ok := a.runner(network); ok {
				out = append(out, run.leasesChanged()...)
			}
			return out
		}}
}

// foreignLeases are those of a network this agent takes no part in.
func (a *Agent) foreignLeases(network string) shown {
	found := 0
	return shown{name: "leases elsewhere of " + network, store: func(ctx context.Context, after uint64) (out reply, index uint64, err error) {
		read := func(ctx context.Context, n registry.Network, after uint64) error {
			if _, here := a.runner(network); here {
				return errElsewhere
			}
			set, next, err := a.leasesElsewhere(ctx, n, after)
			out, index, found = a.leaseList(set), next, len(set.Leases)
			return err
		}
		err = a.readStore(ctx, network, after, lapsePace(found), read)
		return out, index, err
	}}
}

func (a *Agent) leaseList(set registry.LeaseSet) reply {
	own := a.self().NodeID
	out := api.LeaseList{Leases: make([]api.Lease, len(set.Leases)), Skipped: skipped(set.Bad)}
	quiet := api.LeaseList{Leases: make([]api.Lease, len(set.Leases)), Skipped: out.Skipped}
	for i, l := range set.Leases {
		out.Leases[i] = shownLease(l, own)
		quiet.Leases[i] = out.Leases[i]
		quiet.Leases[i].LapsedSeconds = 0
	}
	return reply{body: out, quiet: quiet}
}

func (a *Agent) getLease(r *http.Request) (reply, error) {
	subnet, err := subnetOf(r)
	if err != nil {
		return reply{}, err
	}
	n, set, err := a.leases(r)
	if err != nil {
		return reply{}, err
	}
	for _, l := range set.Leases {
		if slices.Contains(l.Subnets, subnet) {
			return reply{body: shownLease(l, a.self().NodeID)}, nil
		}
	}
	for _, b := range set.Bad {
		if strings.HasSuffix(b.Key, "/"+registry.SubnetKey(subnet)) {
			return reply{}, &api.Error{Code: http.StatusConflict, Message: fmt.Sprintf("the record of %s in network %s cannot be used: %s", subnet, n.Name, b.Shortened().Reason)}
		}
	}
	return reply{}, fmt.Errorf("%w of %s in network %s: %s", registry.ErrLeaseNotFound, subnet, n.Name, knownLeases(set))
}

func knownLeases(set registry.LeaseSet) string {
	var subnets []netip.Prefix
	for _, l := range set.Leases {
		subnets = append(subnets, l.Subnet())
	}
	return knownAre(subnets)
}

// leases are what getLeases shows.
func (a *Agent) leases(r *http.Request) (registry.Network, registry.LeaseSet, error) {
	n, err := a.definition(r)
	if err != nil {
		return n, registry.LeaseSet{}, err
	}
	memory, err := flag(r, "memory")
	if err != nil {
		return n, registry.LeaseSet{}, err
	}
	if run, ok := a.runner(n.Name); ok && memory {
		set, err := run.leases(true)
		return n, set, err
	}
	set, err := a.recentLeases(r.Context(), n)
	return n, set, err
}

// shownLease is a lease as the API shows it, to the agent of a node id.
func shownLease(l registry.Lease, own string) api.Lease {
	return api.Lease{
		Subnet: l.Subnet(), Subnets: l.Subnets, Node: l.Node, NodeID: l.NodeID, PublicIPs: l.PublicIPs, MTU: l.MTU,
		Backend: json.RawMessage(l.Backend.Object), Held: l.Held(), LapsedSeconds: int64(l.Lapsed / time.Second),
		Own: l.NodeID == own, ModifyIndex: l.ModifyIndex,
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
		err := reg.Revoke(r.Context(), network, subnet)
		if err == nil {
			a.invalidateLeases(network)
		}
		if errors.Is(err, registry.ErrLeaseNotFound) {
			if _, set, unread := a.leases(r); unread == nil {
				err = fmt.Errorf("%w: %s", err, knownLeases(set))
			}
		}
		return err
	})
}

// renew renews the session of this host's lease now, under the caller's token.
func (a *Agent) renew(r *http.Request) (reply, error) {
	run, err := a.leaseOwner(r)
	if err != nil {
		return reply{}, err
	}
	out, err := run.renewNow(r.Context(), tokenOf(r))
	if err != nil {
		return reply{}, err
	}
	return reply{body: out}, nil
}

// release makes this host give up its lease and leave the network.
func (a *Agent) release(r *http.Request) (reply, error) {
	run, err := a.leaseOwner(r)
	if err != nil {
		return reply{}, err
	}
	return reply{}, run.requestRelease(r.Context(), tokenOf(r))
}

// leaseOwner returns this host's part in the network that a request names.
func (a *Agent) leaseOwner(r *http.Request) (*runner, error) {
	n, err := a.definition(r)
	if err != nil {
		return nil, err
	}
	run, ok := a.runner(n.Name)
	if !ok {
		return nil, fmt.Errorf("%w: this host takes no part in network %s", registry.ErrLeaseNotFound, n.Name)
	}
	return run, nil
}

// lapsePace is how long a lapse stays unseen by those who wait for news of so many
// leases. No host writes that another fell silent: it takes a reading of all leases,
// which are about 400 bytes each.
func lapsePace(leases int) time.Duration {
	return 15*time.Second + time.Duration(leases)*5*time.Millisecond
}
