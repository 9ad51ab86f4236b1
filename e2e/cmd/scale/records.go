package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

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
	cluster *cluster
	network registry.Network
	records []*record
}

// newWorld defines a network and writes n leases to it, each locked by a session, with share leases
// per session.
func newWorld(ctx context.Context, c *cluster, r registry.Registry, name string, n, share int) (*world, error) {
	network, err := newNetwork(name)
	if err != nil {
		return nil, err
	}
	if err := r.PutNetwork(ctx, network); err != nil {
		return nil, err
	}
	if network, err = r.Network(ctx, name); err != nil {
		return nil, err
	}
	w := &world{cluster: c, network: network}
	for i := range n {
		backend, err := attributes(i)
		if err != nil {
			return nil, err
		}
		slot := uint64(i + 1)
		l := registry.Lease{Network: name, Slot: slot, Subnets: network.Plan.Subnets(slot), Node: hostName(i), NodeID: nodeID(i),
			PublicIPs: []netip.Addr{publicIP(i)}, MTU: 1450, Backend: backend}
		w.records = append(w.records, &record{key: "leno/leases/" + name + "/" + registry.SubnetKey(l.Subnet()), lease: l})
	}
	// One session may lock several records; a transaction takes 128 operations.
	share = min(share, 100)
	var group errgroup.Group
	group.SetLimit(inFlight)
	for from := 0; from < n; from += share {
		part := w.records[from:min(from+share, n)]
		group.Go(func() error { return w.fill(ctx, from/share, part) })
	}
	return w, group.Wait()
}

func (w *world) fill(ctx context.Context, i int, part []*record) error {
	client := w.cluster.client(i)
	var session string
	err := insist(ctx, func() (err error) {
		session, _, err = client.Session().CreateNoChecks(&api.SessionEntry{Name: "scale"}, (&api.WriteOptions{}).WithContext(ctx))
		return err
	})
	if err != nil {
		return err
	}
	var ops api.KVTxnOps
	for _, r := range part {
		r.session = session
		op, err := r.lock()
		if err != nil {
			return err
		}
		ops = append(ops, op)
	}
	return transact(ctx, client, ops)
}

// lock returns the operation that writes the record as it is now.
func (r *record) lock() (*api.KVTxnOp, error) {
	value, err := registry.FormatLease(r.lease)
	return &api.KVTxnOp{Verb: api.KVLock, Key: r.key, Value: value, Session: r.session}, err
}

// transact repeats a transaction until it succeeds or is refused: servers that get too little CPU
// elect a new leader now and then. The operations may be applied twice.
func transact(ctx context.Context, client *api.Client, ops api.KVTxnOps) error {
	return insist(ctx, func() error {
		ok, response, _, err := client.KV().Txn(ops, (&api.QueryOptions{}).WithContext(ctx))
		if err == nil && !ok {
			return &refused{response.Errors[0].What}
		}
		return err
	})
}

type refused struct{ why string }

func (r *refused) Error() string { return "transaction refused: " + r.why }

// insist calls do until it succeeds, is refused, or ctx ends.
func insist(ctx context.Context, do func() error) error {
	for {
		err := do()
		var no *refused
		if err == nil || errors.As(err, &no) {
			return err
		}
		if over := sleep(ctx, 250*time.Millisecond+rand.N(250*time.Millisecond)); over != nil {
			return fmt.Errorf("%w; the last write: %w", over, err)
		}
	}
}

// change writes the i-th lease with another MTU as its host would: the record and an entry in the
// directory of changes, in one transaction. Acquire would read the whole network first, but only
// watching is measured here.
func (w *world) change(ctx context.Context, i, mtu int) error {
	r := w.records[i]
	r.lease.MTU = mtu
	op, err := r.lock()
	if err != nil {
		return err
	}
	entry := fmt.Sprintf("leno/changes/%s/%016x%08x_%s", w.network.Name, time.Now().UnixNano(), rand.Uint32(), registry.SubnetKey(r.lease.Subnet()))
	return transact(ctx, w.cluster.client(i), api.KVTxnOps{{Verb: api.KVSet, Key: entry, Value: op.Value}, op})
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
			return insist(ctx, func() error {
				_, err := w.cluster.client(i).Session().Destroy(r.session, (&api.WriteOptions{}).WithContext(ctx))
				return err
			})
		})
	}
	return group.Wait()
}

// byHand overwrites one record and deletes another, as a user of `consul kv` would.
func (w *world) byHand(ctx context.Context, mtu int) error {
	options := (&api.WriteOptions{}).WithContext(ctx)
	changed, removed := w.records[0], w.records[len(w.records)-1]
	changed.lease.MTU = mtu
	op, err := changed.lock()
	if err != nil {
		return err
	}
	w.records = w.records[:len(w.records)-1]
	return insist(ctx, func() error {
		if _, err := w.cluster.client(0).KV().Put(&api.KVPair{Key: op.Key, Value: op.Value}, options); err != nil {
			return err
		}
		_, err := w.cluster.client(0).KV().Delete(removed.key, options)
		return err
	})
}

// truth returns the leases from a consistent read.
func (w *world) truth(ctx context.Context) ([]registry.Lease, error) {
	options := (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
	pairs, _, err := w.cluster.client(0).KV().List("leno/leases/"+w.network.Name+"/", options)
	if err != nil {
		return nil, err
	}
	return parse(w.network, pairs)
}
