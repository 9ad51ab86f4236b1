package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/e2e/lab"
)

// prefix of every network here has 8,192 subnets.
const (
	prefix   = "10.0.0.0/11"
	maxPeers = 8000
)

// Consul takes this many operations in one transaction.
const txnOps = 128

// subnetOf is the subnet of the i-th invented peer, from 1.
func subnetOf(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
}

// record is the lease of the i-th invented peer as its host would write it.
func record(network string, i int) (key string, value []byte, err error) {
	subnet := subnetOf(i)
	address := fmt.Sprintf("198.18.%d.%d", i>>8, i&0xff)
	value, err = json.Marshal(map[string]any{
		"version": 1, "subnet": subnet, "subnets": []netip.Prefix{subnet},
		"node": fmt.Sprintf("peer-%d", i), "node_id": fmt.Sprintf("8d9c1a52-7f0e-4c3b-9f5e-%012x", i),
		"public_ip": address, "public_ips": []string{address}, "mtu": 1450,
		"backend": map[string]any{"type": "vxlan", "vni": 1, "port": 8472, "vtep_mac": fmt.Sprintf("0a:58:fe:00:%02x:%02x", i>>8, i&0xff)},
	})
	return "leno/leases/" + network + "/" + strings.ReplaceAll(subnet.String(), "/", "-"), value, err
}

// fill writes n leases into Consul, each held by a session.
func fill(ctx context.Context, consul *api.Client, network string, n int) error {
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
		key, value, err := record(network, i)
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

// tap is a proxy between one agent and Consul that notes when the agent was
// told of a change in the leases and when it asked for them.
type tap struct {
	*http.Server
	address string

	mu          sync.Mutex
	told, asked time.Time
}

func newTap(consul *lab.Consul) (*tap, error) {
	t := &tap{address: netip.AddrPortFrom(consul.Addr, 8600).String()}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: consul.Address()})
	proxy.Transport = &http.Transport{DialContext: consul.Namespace.DialContext, MaxIdleConnsPerHost: 16, DisableCompression: true}
	proxy.ErrorLog = log.New(io.Discard, "", 0) // of requests that the agent gave up when it was stopped
	proxy.ModifyResponse = func(r *http.Response) error {
		if leases(r.Request.URL, "keys") {
			t.note(&t.told)
		}
		return nil
	}
	t.Server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if leases(r.URL, "recurse") {
			t.note(&t.asked)
		}
		proxy.ServeHTTP(w, r)
	})}
	return t, consul.Namespace.Do(func() error {
		listener, err := net.Listen("tcp", t.address)
		if err == nil {
			go t.Serve(listener) // ended by Close
		}
		return err
	})
}

func leases(u *url.URL, how string) bool {
	return strings.HasPrefix(u.Path, "/v1/kv/leno/leases/") && u.Query().Has(how)
}

func (t *tap) note(when *time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if when.IsZero() {
		*when = time.Now()
	}
}

func (t *tap) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told, t.asked = time.Time{}, time.Time{}
}

// pause is how long the agent waited before it read, since reset.
func (t *tap) pause() (time.Duration, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.told.IsZero() || t.asked.Before(t.told) {
		return 0, errors.New("the agent did not read the leases after it was told of a change")
	}
	return t.asked.Sub(t.told), nil
}
