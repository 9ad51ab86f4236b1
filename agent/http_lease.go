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
		return a.leasesElsewhere(n.Name), nil
	}
	memory, err := flag(r, "memory")
	if memory {
		return a.leasesHere(n.Name, "leases in memory of ", (*runner).leasesInMemory), err
	}
	out := a.leasesHere(n.Name, "leases of ", (*runner).leasesKnown)
	out.fresh = func(ctx context.Context) {
		a.withRunner(ctx, n.Name, func(run *runner, ctx context.Context, n registry.Network) { run.fresh.refresh(ctx, n) })
	}
	out.keep = func(ctx context.Context) { a.readAnew(ctx, n.Name) }
	return out, err
}

// readAnew has the leases of a network read anew again and again until ctx ends,
// for those who wait for news of them.
func (a *Agent) readAnew(ctx context.Context, network string) {
	for leases := 0; retry.Sleep(ctx, lapsePace(leases)) == nil; {
		a.withRunner(ctx, network, func(run *runner, ctx context.Context, n registry.Network) {
			snap, _ := run.leasesNow(ctx, n)
			leases = len(snap.set.Leases)
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
func (a *Agent) leasesHere(network, name string, known func(*runner) (snapshot, bool)) shown {
	return shown{name: name + network,
		memory: func() (reply, error) {
			if _, err := a.definitionOf(network); err != nil {
				return reply{}, err
			}
			run, ok := a.runner(network)
			if !ok {
				return reply{}, errElsewhere
			}
			snap, ok := known(run)
			if !ok {
				return reply{}, run.fresh.refreshError()
			}
			return a.leaseList(snap.set), nil
		},
		changes: func() []<-chan struct{} {
			_, _, defined := a.env.networks.Get()
			_, _, parts := a.env.parts.Get()
			out := []<-chan struct{}{defined, parts}
			if run, ok := a.runner(network); ok {
				_, _, watched := run.snapshot.Get()
				_, _, fresh := run.fresh.news.Get()
				out = append(out, watched, fresh)
			}
			return out
		}}
}

// leasesElsewhere are those of a network this agent takes no part in.
func (a *Agent) leasesElsewhere(network string) shown {
	found := 0
	return shown{name: "leases elsewhere of " + network, store: func(ctx context.Context, after uint64) (out reply, index uint64, err error) {
		read := func(ctx context.Context, n registry.Network, after uint64) error {
			if _, here := a.runner(network); here {
				return errElsewhere
			}
			if after == 0 { // as anyone may ask at any time
				snap, err := a.readElsewhere(ctx, n)
				out, index, found = a.leaseList(snap.set), snap.index, len(snap.set.Leases)
				return err
			}
			set, next, err := a.env.registry.WatchLeases(ctx, n, after)
			if err == nil {
				a.elsewhere.of(n.Name).learn(set, next) // or the next answer would be older than this one
			}
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
		snap, known := run.leasesInMemory()
		if !known {
			return n, registry.LeaseSet{}, run.fresh.refreshError()
		}
		return n, snap.set, nil
	}
	set, err := a.recentLeases(r.Context(), n)
	return n, set, err
}

// readElsewhere returns the leases of a network that this host takes no part in, as read
// no longer than freshEvery ago.
func (a *Agent) readElsewhere(ctx context.Context, n registry.Network) (snapshot, error) {
	f := a.elsewhere.of(n.Name)
	f.refresh(ctx, n)
	if err := ctx.Err(); err != nil {
		return snapshot{}, err
	}
	snap := f.newest()
	if snap.read.IsZero() || time.Since(snap.read) > freshEvery+callTimeout {
		return snapshot{}, f.refreshError()
	}
	return snap.aged(), nil
}

// invalidateLeases makes the next reader of a network's leases see what was changed
// through this agent.
func (a *Agent) invalidateLeases(network string) {
	if run, ok := a.runner(network); ok {
		run.fresh.invalidate()
		return
	}
	a.elsewhere.of(network).invalidate()
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

// renew gives the session of this host's lease another TTL now, under the
// caller's token.
func (a *Agent) renew(r *http.Request) (reply, error) {
	n, err := a.definition(r)
	if err != nil {
		return reply{}, err
	}
	run, ok := a.runner(n.Name)
	if !ok {
		return reply{}, fmt.Errorf("%w: this host takes no part in network %s", registry.ErrLeaseNotFound, n.Name)
	}
	lease, held, _ := run.lease.Get()
	if !held {
		return reply{}, &api.Error{Code: http.StatusConflict, Message: fmt.Sprintf("network %s: this host holds no lease to renew: %s", n.Name, run.shown().local.State)}
	}
	asked := time.Now() // the session lives as long from when the store was asked, at least
	err = a.caller(r).Renew(r.Context(), lease)
	if errors.Is(err, registry.ErrLeaseLost) {
		run.ended.Set(lease.Session)
		return reply{}, &api.Error{Code: http.StatusConflict, Message: err.Error() + "; the agent takes the lease back"}
	}
	if err != nil {
		return reply{}, err
	}
	run.renewed(asked, nil)
	return reply{body: api.Renewal{Subnet: lease.Subnet(), Renewed: asked.UTC(), SafeUntil: asked.Add(run.config.Lease.TTL).UTC()}}, nil
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
	request := &releaseRequest{token: tokenOf(r), done: make(chan error, 1)}
	busy := func(why string) error {
		return &api.Error{Code: http.StatusServiceUnavailable, Message: fmt.Sprintf("network %s: the lease cannot be released now: %s", n.Name, why)}
	}
	stopped := busy("this host's part in the network is being stopped")
	waiting := time.NewTimer(releaseWait)
	defer waiting.Stop()
	select {
	case run.releases <- request:
	case <-run.done:
		return reply{}, stopped
	case <-waiting.C:
		return reply{}, busy(run.shown().local.State)
	case <-r.Context().Done():
		return reply{}, r.Context().Err()
	}
	defer run.fresh.invalidate() // nobody follows the leases any more
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
