package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul"
	"github.com/lenonet/leno/registry/consul/transport"
)

// A consulStore is a cluster of Consul.
type consulStore struct {
	cluster
	clients []*api.Client
}

func (c *consulStore) label(what string) string { return what }

func (c *consulStore) client(i int) *api.Client { return c.clients[i%servers] }

func (c *consulStore) open(i int, network string, m *meter) (client, error) {
	return openConsul(c.address(i), network, m)
}

func openConsul(address, _ string, m *meter) (client, error) {
	return consul.New(consul.Config{Config: transport.Config{Address: address, Dial: m.dial}})
}

func (c *consulStore) block(string) string {
	return fmt.Sprintf("consul {\n  address = %q\n  service = \"\"\n}\n", c.address(0))
}

func (c *consulStore) fill(ctx context.Context, i int, n registry.Network, records []*record) error {
	client := c.client(i)
	var session string
	err := insist(ctx, func() (err error) {
		session, _, err = client.Session().CreateNoChecks(&api.SessionEntry{Name: "scale"}, (&api.WriteOptions{}).WithContext(ctx))
		return err
	})
	if err != nil {
		return err
	}
	var ops api.KVTxnOps
	for _, r := range records {
		r.key, r.session = "leno/leases/"+n.Name+"/"+registry.SubnetKey(r.lease.Subnet()), session
		op, err := lock(r)
		if err != nil {
			return err
		}
		ops = append(ops, op)
	}
	return transact(ctx, client, ops)
}

// lock returns the operation that writes the record as it is now.
func lock(r *record) (*api.KVTxnOp, error) {
	value, err := registry.FormatLease(r.lease)
	return &api.KVTxnOp{Verb: api.KVLock, Key: r.key, Value: value, Session: r.session}, err
}

// transact repeats a transaction until it succeeds or is refused. The operations may be applied
// twice.
func transact(ctx context.Context, client *api.Client, ops api.KVTxnOps) error {
	return insist(ctx, func() error {
		ok, response, _, err := client.KV().Txn(ops, (&api.QueryOptions{}).WithContext(ctx))
		if err == nil && !ok {
			return &refused{response.Errors[0].What}
		}
		return err
	})
}

// change writes the record and an entry in the directory of changes, in one transaction.
func (c *consulStore) change(ctx context.Context, i int, n registry.Network, r *record) error {
	op, err := lock(r)
	if err != nil {
		return err
	}
	entry := fmt.Sprintf("leno/changes/%s/%016x%08x_%s", n.Name, time.Now().UnixNano(), rand.Uint32(),
		registry.SubnetKey(r.lease.Subnet()))
	return transact(ctx, c.client(i), api.KVTxnOps{{Verb: api.KVSet, Key: entry, Value: op.Value}, op})
}

func (c *consulStore) endSession(ctx context.Context, i int, session string) error {
	_, err := c.client(i).Session().Destroy(session, (&api.WriteOptions{}).WithContext(ctx))
	return err
}

func (c *consulStore) byHand(ctx context.Context, _ registry.Network, changed, removed *record) error {
	options := (&api.WriteOptions{}).WithContext(ctx)
	op, err := lock(changed)
	if err != nil {
		return err
	}
	if _, err := c.client(0).KV().Put(&api.KVPair{Key: op.Key, Value: op.Value}, options); err != nil {
		return err
	}
	_, err = c.client(0).KV().Delete(removed.key, options)
	return err
}

func (c *consulStore) truth(ctx context.Context, n registry.Network) ([]registry.Lease, error) {
	options := (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
	pairs, _, err := c.client(0).KV().List("leno/leases/"+n.Name+"/", options)
	if err != nil {
		return nil, err
	}
	return parse(n, pairs)
}

// parse reads all records except the marker, in the order of their slots.
func parse(n registry.Network, pairs api.KVPairs) ([]registry.Lease, error) {
	leases := make([]registry.Lease, 0, len(pairs))
	for _, pair := range pairs {
		name := pair.Key[strings.LastIndexByte(pair.Key, '/')+1:]
		if name == "_" {
			continue
		}
		l, err := registry.ParseLease(n, name, pair.Value)
		if err != nil {
			return nil, fmt.Errorf("record %s: %w", pair.Key, err)
		}
		l.Session = pair.Session
		leases = append(leases, l)
	}
	slices.SortFunc(leases, func(a, b registry.Lease) int { return int(int64(a.Slot) - int64(b.Slot)) })
	return leases, nil
}
