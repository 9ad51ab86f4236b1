package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lenonet/leno/internal/testkit/ports"
	"github.com/lenonet/leno/internal/testkit/process"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/etcd"
	"github.com/lenonet/leno/registry/flannel"
)

// An etcdStore is a cluster of etcd. Each network has a prefix of its own, because a client follows
// all keys below its prefix.
type etcdStore struct {
	cluster
	clients []*clientv3.Client
}

// startEtcd starts the servers with their data in dir, and waits until each of them answers.
func startEtcd(ctx context.Context, binary, dir string) (*etcdStore, error) {
	s := &etcdStore{}
	if err := s.start(ctx, binary, dir); err != nil {
		s.kill()
		return nil, err
	}
	return s, nil
}

func (e *etcdStore) start(ctx context.Context, binary, dir string) error {
	const each = 2
	free, err := ports.Free(servers * each)
	if err != nil {
		return err
	}
	peer := func(i int) string { return "http://" + address(free[i*each+1]) }
	var all []string
	for i := range servers {
		all = append(all, fmt.Sprintf("server-%d=%s", i, peer(i)))
	}
	for i := range servers {
		name, own := fmt.Sprintf("server-%d", i), address(free[i*each])
		p, err := process.Start(exec.Command(binary,
			"--name="+name,
			"--data-dir="+filepath.Join(dir, name),
			"--listen-client-urls=http://"+own,
			"--advertise-client-urls=http://"+own,
			"--listen-peer-urls="+peer(i),
			"--initial-advertise-peer-urls="+peer(i),
			"--initial-cluster="+strings.Join(all, ","),
			"--log-level=warn",
			// As for Consul, servers share two CPUs with all their clients; the default is 1000.
			"--election-timeout=5000",
			"--heartbeat-interval=500",
		), filepath.Join(dir, name+".log"))
		if err != nil {
			return err
		}
		e.processes, e.addresses = append(e.processes, p), append(e.addresses, own)
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{own}, Logger: zap.NewNop()})
		if err != nil {
			return err
		}
		e.clients = append(e.clients, client)
	}
	for i, p := range e.processes {
		err := p.WaitFor(ctx, "etcd", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := e.client(i).Get(ctx, "any")
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *etcdStore) kill() {
	for _, c := range e.clients {
		_ = c.Close() // its server ends
	}
	e.cluster.kill()
}

func (e *etcdStore) label(what string) string { return what + ", etcd" }

func (e *etcdStore) client(i int) *clientv3.Client { return e.clients[i%servers] }

func (e *etcdStore) open(i int, network string, m *meter) (client, error) {
	return openEtcd(e.address(i), network, m)
}

func openEtcd(address, network string, m *meter) (client, error) {
	return etcd.New(etcd.Config{
		Endpoints: []string{address},
		Prefix:    prefix(network),
		Network:   network,
		Settle:    3 * leaseTTL,
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return m.dial(ctx, "tcp", address)
		},
	}), nil
}

func prefix(network string) string { return "/" + network }

func (e *etcdStore) block(network string) string {
	return fmt.Sprintf("etcd {\n  endpoints = [%q]\n  prefix    = %q\n  network   = %q\n}\n",
		e.address(0), prefix(network), network)
}

func (e *etcdStore) fill(ctx context.Context, i int, n registry.Network, records []*record) error {
	client := e.client(i)
	const ttl = 24 * 60 * 60 // seconds, longer than any run
	alive, err := client.Grant(ctx, ttl)
	if err != nil {
		return err
	}
	kept, err := client.Grant(ctx, ttl)
	if err != nil {
		return err
	}
	id := strconv.FormatInt(int64(kept.ID), 16)
	session := prefix(n.Name) + "/leno/sessions/" + n.Name + "/" + id
	ops := []clientv3.Op{clientv3.OpPut(session, `{"node":"scale"}`, clientv3.WithLease(alive.ID))}
	for _, r := range records {
		r.key = prefix(n.Name) + "/" + flannel.SubnetsDir + "/" + flannel.SubnetKey(r.lease.Subnets)
		r.session = strconv.FormatInt(int64(alive.ID), 16)
		value, err := flannel.FormatLease(n, r.lease)
		if err != nil {
			return err
		}
		ops = append(ops, clientv3.OpPut(r.key, string(value), clientv3.WithLease(kept.ID)))
	}
	return insist(ctx, func() error {
		_, err := client.Txn(ctx).Then(ops...).Commit()
		return err
	})
}

func (e *etcdStore) change(ctx context.Context, i int, n registry.Network, r *record) error {
	value, err := flannel.FormatLease(n, r.lease)
	if err != nil {
		return err
	}
	return insist(ctx, func() error {
		_, err := e.client(i).Put(ctx, r.key, string(value), clientv3.WithIgnoreLease())
		return err
	})
}

func (e *etcdStore) endSession(ctx context.Context, i int, session string) error {
	id, err := strconv.ParseInt(session, 16, 64)
	if err != nil {
		return err
	}
	_, err = e.client(i).Revoke(ctx, clientv3.LeaseID(id))
	return err
}

func (e *etcdStore) byHand(ctx context.Context, n registry.Network, changed, removed *record) error {
	if err := e.change(ctx, 0, n, changed); err != nil {
		return err
	}
	_, err := e.client(0).Delete(ctx, removed.key)
	return err
}

func (e *etcdStore) truth(ctx context.Context, n registry.Network) ([]registry.Lease, error) {
	resp, err := e.client(0).Get(ctx, prefix(n.Name)+"/"+flannel.SubnetsDir+"/", clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	var leases []registry.Lease
	for _, kv := range resp.Kvs {
		l, _, err := flannel.ParseLease(n, path.Base(string(kv.Key)), kv.Value)
		if err != nil {
			return nil, fmt.Errorf("record %s: %w", kv.Key, err)
		}
		leases = append(leases, l)
	}
	slices.SortFunc(leases, func(a, b registry.Lease) int { return int(int64(a.Slot) - int64(b.Slot)) })
	return leases, nil
}
