package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/registry"
)

// inFlight bounds the number of concurrent requests of the harness itself.
const inFlight = 64

// newNetwork returns a network with 65,535 subnets for hosts.
func newNetwork(name string) (registry.Network, error) {
	plan, err := registry.Plan{{Prefix: netip.MustParsePrefix("10.0.0.0/8")}}.Normalize()
	if err != nil {
		return registry.Network{}, err
	}
	backend, err := registry.NewBackend("alloc", nil)
	return registry.Network{Name: name, Plan: plan, Backend: backend}, err
}

// hostName, nodeID and publicIP return the identity of simulated host i.
func hostName(i int) string { return fmt.Sprintf("host-%05d", i) }
func nodeID(i int) string   { return fmt.Sprintf("8d9c1a52-7f0e-4c3b-9f5e-%012x", i) }
func publicIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18 + byte(i>>16), byte(i >> 8), byte(i)})
}

// attributes returns vxlan's backend attributes, which most leases have.
func attributes(i int) (registry.Backend, error) {
	mac := fmt.Sprintf(`{"vni":1,"port":8472,"vtep_mac":"0a:58:fe:%02x:%02x:%02x"}`, byte(i>>16), byte(i>>8), byte(i))
	return registry.NewBackend("vxlan", json.RawMessage(mac))
}

// A record is one lease as the harness wrote it.
type record struct {
	key     string
	session string
	lease   registry.Lease
}

// A world is the leases of one network that the harness created.
type world struct {
	store   store
	network registry.Network
	records []*record
}

// define defines a network and returns it as it is stored.
func define(ctx context.Context, s store, n registry.Network) (registry.Network, error) {
	client, err := s.open(0, n.Name, &meter{})
	if err != nil {
		return n, err
	}
	defer client.Close()
	if err := client.PutNetwork(ctx, n); err != nil {
		return n, err
	}
	return client.Network(ctx, n.Name)
}

// newWorld defines a network and writes n leases to it, each held by a session, with share leases
// per session.
func newWorld(ctx context.Context, s store, name string, n, share int) (*world, error) {
	network, err := newNetwork(name)
	if err != nil {
		return nil, err
	}
	if network, err = define(ctx, s, network); err != nil {
		return nil, err
	}
	w := &world{store: s, network: network}
	for i := range n {
		backend, err := attributes(i)
		if err != nil {
			return nil, err
		}
		slot := uint64(i + 1)
		w.records = append(w.records, &record{lease: registry.Lease{
			Network:   name,
			Slot:      slot,
			Subnets:   network.Plan.Subnets(slot),
			Node:      hostName(i),
			NodeID:    nodeID(i),
			PublicIPs: []netip.Addr{publicIP(i)},
			MTU:       1450,
			Backend:   backend,
		}})
	}
	// One session may hold several records; a transaction takes 128 operations.
	share = min(share, 100)
	var group errgroup.Group
	group.SetLimit(inFlight)
	for from := 0; from < n; from += share {
		part := w.records[from:min(from+share, n)]
		group.Go(func() error { return s.fill(ctx, from/share, network, part) })
	}
	return w, group.Wait()
}

type refused struct{ why string }

func (r *refused) Error() string { return "transaction refused: " + r.why }

// insist calls do until it succeeds, is refused, or ctx ends: servers that get too little CPU elect
// a new leader now and then. A write may be done twice.
func insist(ctx context.Context, do func() error) error {
	for {
		err := do()
		var no *refused
		if err == nil || errors.As(err, &no) {
			return err
		}
		if over := lab.Sleep(ctx, 250*time.Millisecond+rand.N(250*time.Millisecond)); over != nil {
			return fmt.Errorf("%w; the last write: %w", over, err)
		}
	}
}

// change writes the i-th lease with another MTU as its host would. Acquire would read the whole
// network first, but only watching is measured here.
func (w *world) change(ctx context.Context, i, mtu int) error {
	w.records[i].lease.MTU = mtu
	return w.store.change(ctx, i, w.network, w.records[i])
}

// lapse ends every session.
func (w *world) lapse(ctx context.Context) error {
	var group errgroup.Group
	group.SetLimit(inFlight)
	seen := map[string]bool{}
	for i, r := range w.records {
		if seen[r.session] {
			continue
		}
		seen[r.session] = true
		group.Go(func() error {
			return insist(ctx, func() error { return w.store.endSession(ctx, i, r.session) })
		})
	}
	return group.Wait()
}

// byHand overwrites one record and deletes another, as an operator would without leno.
func (w *world) byHand(ctx context.Context, mtu int) error {
	changed, removed := w.records[0], w.records[len(w.records)-1]
	changed.lease.MTU = mtu
	w.records = w.records[:len(w.records)-1]
	return insist(ctx, func() error { return w.store.byHand(ctx, w.network, changed, removed) })
}
