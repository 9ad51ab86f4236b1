package httpapi

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

	"github.com/lenonet/leno/agent/query"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// leaseHandlers handle requests about leases.
type leaseHandlers struct{ directory }

// query returns all leases of a network, read again unless that was done a moment ago. They are as this agent
// knows them if the store does not answer, or if the request says memory=true.
func (h leaseHandlers) query(r *http.Request) (query.Query, error) {
	n, err := h.requestedNetwork(r)
	if err != nil {
		return query.Query{}, err
	}
	memory, err := flag(r, "memory")
	if err != nil {
		return query.Query{}, err
	}
	if _, ok := h.agent.Network(n.Name); !ok {
		return h.queryUnjoined(n.Name), nil
	}
	q := query.Query{
		Name:    fmt.Sprintf("leases of %s, memory %t", n.Name, memory),
		Read:    func() (query.Content, error) { return h.knownLeases(n.Name, memory) },
		Changes: func() []<-chan struct{} { return h.changes(n.Name) },
	}
	if !memory {
		h.readAgain(&q, n.Name)
	}
	return q, nil
}

// readAgain makes a query read the leases of a network again, before it is answered and while it waits.
func (d directory) readAgain(q *query.Query, network string) {
	q.Refresh = func(ctx context.Context) { d.refresh(ctx, network) }
	q.KeepFresh = func(ctx context.Context) {
		for leases := 0; retry.Sleep(ctx, lapsePace(leases)) == nil; {
			leases = d.refresh(ctx, network)
		}
	}
}

// refresh reads the leases of a network again, unless this host no longer takes part in it. It returns how many
// there are.
func (d directory) refresh(ctx context.Context, network string) int {
	n, err := d.find(network)
	part, ok := d.agent.Network(network)
	if !ok || err != nil {
		return 0
	}
	part.RefreshLeases(ctx, n)
	set, _ := part.Leases(false) // without any, 0
	return len(set.Leases)
}

// lapsePace is how long it may take until readers that wait see that one of so many leases has lapsed. No host writes
// that another one fell silent: it takes a reading of all leases, which are about 400 bytes each.
func lapsePace(leases int) time.Duration {
	return 15*time.Second + time.Duration(leases)*5*time.Millisecond
}

func (h leaseHandlers) knownLeases(network string, watched bool) (query.Content, error) {
	if _, err := h.find(network); err != nil {
		return query.Content{}, err
	}
	part, ok := h.agent.Network(network)
	if !ok {
		return query.Content{}, errMoved
	}
	set, err := part.Leases(watched)
	if err != nil {
		return query.Content{}, err
	}
	return h.list(set), nil
}

func (h leaseHandlers) changes(network string) []<-chan struct{} {
	_, defined := h.agent.Networks()
	out := []<-chan struct{}{defined, h.agent.Joined()}
	if part, ok := h.agent.Network(network); ok {
		out = append(out, part.LeasesChanged()...)
	}
	return out
}

// queryUnjoined returns the leases of a network in which this host takes no part.
func (h leaseHandlers) queryUnjoined(network string) query.Query {
	leases := 0
	readStore := func(ctx context.Context, after uint64) (out query.Content, index uint64, err error) {
		read := func(ctx context.Context, n registry.Network, after uint64) error {
			if _, joined := h.agent.Network(network); joined {
				return errMoved
			}
			set, next, err := h.agent.LeasesElsewhere(ctx, n, after)
			out, index, leases = h.list(set), next, len(set.Leases)
			return err
		}
		err = h.readDefined(ctx, network, after, lapsePace(leases), read)
		return out, index, err
	}
	return query.Query{Name: "leases elsewhere of " + network, ReadStore: readStore}
}

func (h leaseHandlers) list(set registry.LeaseSet) query.Content {
	own := h.agent.Self().NodeID
	out := api.LeaseList{Leases: make([]api.Lease, len(set.Leases)), Skipped: skippedRecords(set.Bad)}
	basis := api.LeaseList{Leases: make([]api.Lease, len(set.Leases)), Skipped: out.Skipped}
	for i, l := range set.Leases {
		out.Leases[i] = leaseOf(l, own)
		basis.Leases[i] = out.Leases[i]
		basis.Leases[i].LapsedSeconds = 0
	}
	return query.Content{Body: out, Basis: basis}
}

// leaseOf returns a lease as the API shows it on the host with the node id own.
func leaseOf(l registry.Lease, own string) api.Lease {
	return api.Lease{
		Subnet: l.Subnet(), Subnets: l.Subnets, Node: l.Node, NodeID: l.NodeID, PublicIPs: l.PublicIPs, MTU: l.MTU,
		Backend: json.RawMessage(l.Backend.Object), Held: l.Held(), LapsedSeconds: int64(l.Lapsed / time.Second),
		Own: l.NodeID == own, ModifyIndex: l.ModifyIndex,
	}
}

func (h leaseHandlers) get(r *http.Request) (out api.Lease, err error) {
	subnet, err := subnetOf(r)
	if err != nil {
		return out, err
	}
	n, set, err := h.read(r)
	if err != nil {
		return out, err
	}
	for _, l := range set.Leases {
		if slices.Contains(l.Subnets, subnet) {
			return leaseOf(l, h.agent.Self().NodeID), nil
		}
	}
	for _, b := range set.Bad {
		if strings.HasSuffix(b.Key, "/"+registry.SubnetKey(subnet)) {
			return out, api.Errorf(http.StatusConflict, "the record of %s in network %s cannot be used: %s",
				subnet, n.Name, b.Shortened().Reason)
		}
	}
	return out, fmt.Errorf("%w of %s in network %s: %s", registry.ErrLeaseNotFound, subnet, n.Name, listLeases(set))
}

func listLeases(set registry.LeaseSet) string {
	var subnets []netip.Prefix
	for _, l := range set.Leases {
		subnets = append(subnets, l.Subnet())
	}
	return listKnown(subnets)
}

// read returns the leases that query shows.
func (h leaseHandlers) read(r *http.Request) (registry.Network, registry.LeaseSet, error) {
	n, err := h.requestedNetwork(r)
	if err != nil {
		return n, registry.LeaseSet{}, err
	}
	memory, err := flag(r, "memory")
	if err != nil {
		return n, registry.LeaseSet{}, err
	}
	if part, ok := h.agent.Network(n.Name); ok && memory {
		set, err := part.Leases(true)
		return n, set, err
	}
	set, err := h.recentLeases(r.Context(), n)
	return n, set, err
}

func (h leaseHandlers) revoke(r *http.Request) error {
	subnet, err := subnetOf(r)
	if err != nil {
		return err
	}
	n, err := h.requestedNetwork(r)
	if err != nil {
		return err
	}
	err = h.storeFor(r).Revoke(r.Context(), n.Name, subnet)
	if err == nil {
		h.agent.InvalidateLeases(n.Name)
	}
	if errors.Is(err, registry.ErrLeaseNotFound) {
		if _, set, unread := h.read(r); unread == nil {
			err = fmt.Errorf("%w: %s", err, listLeases(set))
		}
	}
	return err
}

// renew renews the session of this host's lease now, under the caller's token.
func (h leaseHandlers) renew(r *http.Request) (out api.Renewal, err error) {
	part, err := h.joinedNetwork(r.PathValue("network"))
	if err != nil {
		return out, err
	}
	return part.Renew(r.Context(), h.storeFor(r))
}

// release makes this host give up its lease and leave the network.
func (h leaseHandlers) release(r *http.Request) error {
	part, err := h.joinedNetwork(r.PathValue("network"))
	if err != nil {
		return err
	}
	return part.Release(r.Context(), h.storeFor(r))
}
