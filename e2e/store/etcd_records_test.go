package store

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/traffic"
)

// TestEtcdUnusableRecords writes records that flannel or its operator could have broken: configurations and leases. Each
// is reported by name, the network stays as it was, and no packet is lost. A host with a wrong prefix, and one with a
// backend that leno does not support, say so.
func TestEtcdUnusableRecords(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3, Store: lab.StoreEtcd})
	stranger := w.Hosts[2]
	w.Hosts = w.Hosts[:2]
	w.StartNetwork("vxlan")
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}
	client, err := w.Etcd.Client()
	w.Must(err)
	put := func(key, value string) {
		t.Helper()
		_, err := client.Put(w.Ctx, key, value)
		w.Must(err)
	}
	whole := traffic.Watch(w.World)

	before, err := client.Get(w.Ctx, etcdPrefix+"config")
	w.Must(err)
	for _, tt := range []struct{ value, reason string }{
		{`not JSON`, "invalid character"},
		{`{"Network":"10.5.0.0/16","SubnetLen":33,"Backend":{"Type":"vxlan"}}`, "33"},
		{`{"EnableIPv4":false,"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`, "neither IPv4 nor IPv6 is enabled"},
		{`{"Network":"10.5.0.0/16","Backend":{"Type":"ipip"}}`, "ipip"},
	} {
		put(etcdPrefix+"config", tt.value)
		for _, h := range w.Hosts {
			w.WaitHealth(h, http.StatusTooManyRequests, "the one before stays in force", tt.reason)
		}
	}
	put(etcdPrefix+"config", string(before.Kvs[0].Value))
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}

	free := w.freeSlots(3)
	name := func(i int) string { return fmt.Sprintf("10.5.%d.0-24", free[i]) }
	bad := map[string]string{ // by name of the key: the value
		name(0):        `not JSON`,
		name(1):        ``,
		name(2):        `{"PublicIP":"192.0.2.93","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"x"}}`,
		"10.9.94.0-24": `{"PublicIP":"192.0.2.94","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:58:00:00:00:94"}}`,
		"something":    `{"PublicIP":"192.0.2.95","BackendType":"vxlan"}`,
	}
	for name, value := range bad {
		put(etcdPrefix+"subnets/"+name, value)
	}
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusTooManyRequests, fmt.Sprintf("%d records skipped", len(bad)))
		w.Eventually("every record to be named", func(ctx context.Context) error {
			list, err := h.Leno(ctx, "lease", "list")
			for name := range bad {
				if err == nil && !strings.Contains(list, etcdPrefix+"subnets/"+name) {
					err = fmt.Errorf("%s is not in:\n%s", name, list)
				}
			}
			return err
		})
	}
	for name := range bad {
		_, err := client.Delete(w.Ctx, etcdPrefix+"subnets/"+name)
		w.Must(err)
	}
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}

	block := stranger.Network("default", "")
	w.Must(stranger.StartAgent(strings.Replace(stranger.Config(block), "etcd {", "etcd {\n  prefix = \"/wrong\"", 1)))
	w.WaitHealth(stranger, http.StatusServiceUnavailable, `"network"`, "/wrong/config")
	w.Must(stranger.StopAgent(w.Ctx))
	put("/other/config", `{"Network":"10.9.0.0/16","Backend":{"Type":"ipip"}}`)
	w.Must(stranger.StartAgent(strings.Replace(stranger.Config(block), "etcd {", "etcd {\n  prefix = \"/other\"", 1)))
	w.WaitHealth(stranger, http.StatusServiceUnavailable, `"network"`, "ipip")
	if left, err := client.Get(w.Ctx, "/wrong", clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || left.Count != 0 {
		t.Errorf("%d keys below the wrong prefix, %v", left.Count, err)
	}
	whole()
}
