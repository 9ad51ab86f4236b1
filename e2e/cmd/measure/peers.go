package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// prefix and the length of subnets give every network here 8,192 subnets.
const (
	prefix   = "10.0.0.0/11"
	maxPeers = 8000
)

// txnOps is the maximum number of operations in one Consul transaction.
const txnOps = 128

// subnetOf returns the subnet of the i-th simulated peer, counted from 1.
func subnetOf(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
}

// attributes returns what the i-th simulated peer publishes of its backend.
func attributes(backend string, i int) map[string]any {
	if backend == "wireguard" {
		key := sha256.Sum256([]byte(strconv.Itoa(i)))
		return map[string]any{"type": backend, "listen_port": 51820, "public_key": base64.StdEncoding.EncodeToString(key[:])}
	}
	return map[string]any{"type": backend, "vni": 1, "port": 8472, "vtep_mac": fmt.Sprintf("0a:58:fe:00:%02x:%02x", i>>8, i&0xff)}
}

// record returns the lease of the i-th simulated peer as its host would write it.
func record(backend, network string, i int) (key string, value []byte, err error) {
	subnet := subnetOf(i)
	address := fmt.Sprintf("198.18.%d.%d", i>>8, i&0xff)
	value, err = json.Marshal(map[string]any{
		"version": 1, "subnet": subnet, "subnets": []netip.Prefix{subnet},
		"node": fmt.Sprintf("peer-%d", i), "node_id": fmt.Sprintf("8d9c1a52-7f0e-4c3b-9f5e-%012x", i),
		"public_ip": address, "public_ips": []string{address}, "mtu": 1450,
		"backend": attributes(backend, i),
	})
	return "leno/leases/" + network + "/" + strings.ReplaceAll(subnet.String(), "/", "-"), value, err
}

// fill writes n leases to Consul, each held by a session.
func (m *measurement) fill(ctx context.Context, network string, n int) error {
	consul := m.Consul.Client()
	var ops api.KVTxnOps
	write := func() error {
		session, err := newSession(ctx, consul)
		if err != nil {
			return err
		}
		for _, op := range ops {
			op.Session = session
		}
		ok, response, _, err := consul.KV().Txn(ops, (&api.QueryOptions{}).WithContext(ctx))
		if err == nil && !ok {
			err = errors.New(response.Errors[0].What)
		}
		ops = ops[:0]
		return err
	}
	for i := 1; i <= n; i++ {
		key, value, err := record(m.backend, network, i)
		if err != nil {
			return err
		}
		ops = append(ops, &api.KVTxnOp{Verb: api.KVLock, Key: key, Value: value})
		if len(ops) == txnOps || i == n {
			if err := write(); err != nil {
				return fmt.Errorf("fill network %s: %w", network, err)
			}
		}
	}
	return nil
}

func newSession(ctx context.Context, consul *api.Client) (string, error) {
	id, _, err := consul.Session().CreateNoChecks(&api.SessionEntry{Name: "measure"}, (&api.WriteOptions{}).WithContext(ctx))
	return id, err
}

// change writes the lease of the i-th simulated peer as its host would: the record and an entry in
// the directory of changes, in one transaction.
func (m *measurement) change(ctx context.Context, network, session string, i int) error {
	key, value, err := record(m.backend, network, i)
	if err != nil {
		return err
	}
	entry := fmt.Sprintf("leno/changes/%s/%016x%08x_%s",
		network, time.Now().UnixNano(), rand.Uint32(), key[strings.LastIndexByte(key, '/')+1:])
	ops := api.KVTxnOps{{Verb: api.KVSet, Key: entry, Value: value}, {Verb: api.KVLock, Key: key, Value: value, Session: session}}
	ok, response, _, err := m.Consul.Client().KV().Txn(ops, (&api.QueryOptions{}).WithContext(ctx))
	if err == nil && !ok {
		err = errors.New(response.Errors[0].What)
	}
	return err
}
