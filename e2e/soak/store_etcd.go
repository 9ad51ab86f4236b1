package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// An etcdStore is a run's etcd. One of the networks is in flannel's own keys.
type etcdStore struct{ *run }

const (
	etcdPrefix = "/coreos.com/network"
	// inFlannelsKeys is the name of the network in flannel's own keys.
	inFlannelsKeys = "carry"
)

func (e *etcdStore) setUp(context.Context, *machine) error { return nil }

func (e *etcdStore) config(*machine) string {
	return fmt.Sprintf("etcd {\n  endpoints = %s\n  network   = %q\n}\n", e.EtcdEndpoints(), inFlannelsKeys)
}

func (e *etcdStore) operator() []string { return nil }

func (e *etcdStore) leader(ctx context.Context) (int, error) {
	for i, s := range e.EtcdServers {
		client, err := s.Client()
		if err != nil {
			return 0, err
		}
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		status, err := client.Status(asking, client.Endpoints()[0])
		cancel()
		if err == nil && status.Leader == status.Header.MemberId {
			return i, nil
		}
	}
	return 0, errors.New("no server of etcd is the leader")
}

func (e *etcdStore) leading(ctx context.Context) (*clientv3.Client, error) {
	i, err := e.leader(ctx)
	if err != nil {
		return nil, err
	}
	return e.EtcdServers[i].Client()
}

func (e *etcdStore) answers(ctx context.Context, server int) error {
	client, err := e.EtcdServers[server].Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err = client.Get(ctx, etcdPrefix)
	return err
}

// answersOn asks for etcd's health, which is a linearizable read, on connections of its own.
func (e *etcdStore) answersOn(ctx context.Context, m *machine) error {
	var errs []error
	for _, s := range e.EtcdServers {
		err := healthy(ctx, m.HTTP(), s.Address())
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func healthy(ctx context.Context, client *http.Client, address string) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/health", nil)
	if err != nil {
		return err
	}
	request.Close = true
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: /health answers %s", address, response.Status)
	}
	return nil
}

func (e *etcdStore) upToDate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var now int64
	for i, s := range append(e.EtcdServers[:1:1], e.EtcdServers...) {
		client, err := s.Client()
		if err != nil {
			return err
		}
		var options []clientv3.OpOption
		if i > 0 {
			options = append(options, clientv3.WithSerializable())
		}
		resp, err := client.Get(ctx, etcdPrefix, options...)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", s.Name, err)
		case i == 0:
			now = resp.Header.Revision
		case resp.Header.Revision < now:
			return fmt.Errorf("%s is at revision %d, the store is at %d", s.Name, resp.Header.Revision, now)
		}
	}
	return nil
}

func (e *etcdStore) diagnose(ctx context.Context, server int) string {
	client, err := e.EtcdServers[server].Client()
	if err != nil {
		return err.Error()
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	status, err := client.Status(ctx, client.Endpoints()[0])
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("member %x, leader %x", status.Header.MemberId, status.Leader)
}

// stored returns the key in etcd for the one in Consul.
func (e *etcdStore) stored(key string) string {
	base := func(network string) string {
		if network == inFlannelsKeys {
			return etcdPrefix
		}
		return etcdPrefix + "/leno/networks/" + network
	}
	if network, ok := strings.CutPrefix(key, networkKey("")); ok {
		return base(network) + "/config"
	}
	if network, subnets, ok := leaseKeyOf(key); ok {
		return base(network) + "/subnets/" + subnets
	}
	return etcdPrefix + "/" + key
}

// unstored is the inverse of stored. ok is false for records that Consul does not have.
func unstored(key string) (_ string, ok bool) {
	rest := strings.TrimPrefix(key, etcdPrefix+"/")
	network := inFlannelsKeys
	if strings.HasPrefix(rest, "leno/reservations/") {
		return rest, true
	}
	if below, other := strings.CutPrefix(rest, "leno/networks/"); other {
		network, rest, _ = strings.Cut(below, "/")
	}
	if rest == "config" {
		return networkKey(network), true
	}
	subnets, ok := strings.CutPrefix(rest, "subnets/")
	return leasesKey(network) + subnets, ok
}

func (e *etcdStore) list(ctx context.Context, server int) ([]pair, error) {
	client, err := e.EtcdServers[server].Client()
	if err != nil {
		return nil, err
	}
	resp, err := client.Get(ctx, etcdPrefix+"/", clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	const sessions = etcdPrefix + "/leno/sessions/"
	alive := map[string]bool{} // by "NETWORK/ID"
	for _, kv := range resp.Kvs {
		if session, ok := strings.CutPrefix(string(kv.Key), sessions); ok && kv.Lease != 0 {
			alive[session] = true
		}
	}
	var out []pair
	for _, kv := range resp.Kvs {
		key, ok := unstored(string(kv.Key))
		if !ok {
			continue
		}
		p := pair{key: key, value: kv.Value, record: kv.Value, version: uint64(kv.ModRevision)}
		if network, _, ok := leaseKeyOf(key); ok {
			if id := strconv.FormatInt(kv.Lease, 16); alive[network+"/"+id] {
				p.session = id
			}
		}
		if !strings.HasPrefix(key, "leno/reservations/") {
			var value struct{ Leno json.RawMessage }
			_ = json.Unmarshal(kv.Value, &value) // a record that is not JSON is not leno's
			p.record = value.Leno
		}
		out = append(out, p)
	}
	return out, nil
}

func (e *etcdStore) read(ctx context.Context, key string) (*pair, error) {
	leader, err := e.leader(ctx)
	if err != nil {
		return nil, err
	}
	all, err := e.list(ctx, leader)
	for i := range all {
		if all[i].key == key {
			return &all[i], err
		}
	}
	return nil, err
}

// write keeps the etcd lease to which a record is attached.
func (e *etcdStore) write(ctx context.Context, key string, value []byte) error {
	client, err := e.leading(ctx)
	if err != nil {
		return err
	}
	key = e.stored(key)
	_, err = client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, string(value))).
		Else(clientv3.OpPut(key, string(value), clientv3.WithIgnoreLease())).Commit()
	return err
}

func (e *etcdStore) forge(ctx context.Context, key string, value []byte, session string) error {
	client, err := e.leading(ctx)
	if err != nil {
		return err
	}
	id, err := strconv.ParseInt(session, 16, 64)
	if session == "" {
		var own *clientv3.LeaseGrantResponse
		if own, err = client.Grant(ctx, 60); err == nil { // the record is removed earlier
			id = int64(own.ID)
		}
	}
	if err == nil {
		_, err = client.Put(ctx, e.stored(key), string(value), clientv3.WithLease(clientv3.LeaseID(id)))
	}
	return err
}

func (e *etcdStore) replace(ctx context.Context, p pair, value []byte) (done bool, err error) {
	client, err := e.leading(ctx)
	if err != nil {
		return false, err
	}
	key := e.stored(p.key)
	change := clientv3.OpDelete(key)
	if value != nil {
		change = clientv3.OpPut(key, string(value), clientv3.WithIgnoreLease())
	}
	unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", int64(p.version))
	resp, err := client.Txn(ctx).If(unchanged).Then(change).Commit()
	return err == nil && resp.Succeeded, err
}

func (e *etcdStore) delete(ctx context.Context, key string) error {
	client, err := e.leading(ctx)
	if err == nil {
		_, err = client.Delete(ctx, e.stored(key))
	}
	return err
}

func (e *etcdStore) deleteAll(ctx context.Context) error {
	client, err := e.leading(ctx)
	if err == nil {
		_, err = client.Delete(ctx, etcdPrefix, clientv3.WithPrefix())
	}
	return err
}

func (e *etcdStore) save(ctx context.Context) ([]byte, error) {
	client, err := e.leading(ctx)
	if err != nil {
		return nil, err
	}
	snapshot, err := client.SnapshotWithVersion(ctx)
	if err != nil {
		return nil, err
	}
	defer snapshot.Snapshot.Close()
	return io.ReadAll(snapshot.Snapshot)
}

// restore needs all servers to stop, as etcd has no other way.
func (e *etcdStore) restore(ctx context.Context, snapshot []byte) error {
	path := filepath.Join(e.Dir, "snapshot.db")
	if err := os.WriteFile(path, snapshot, 0o600); err != nil {
		return err
	}
	return e.RestoreEtcd(ctx, path)
}

func (e *etcdStore) compact(ctx context.Context) error {
	client, err := e.leading(ctx)
	if err != nil {
		return err
	}
	resp, err := client.Get(ctx, etcdPrefix)
	if err == nil {
		_, err = client.Compact(ctx, resp.Header.Revision, clientv3.WithCompactPhysical())
	}
	return err
}
