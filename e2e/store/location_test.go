package store

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/traffic"
)

// TestWrongLocation restarts a host that took part in a network with a prefix that has none. The host says so and
// writes nothing below it, and no ping and no route is lost until the prefix is corrected.
func TestWrongLocation(t *testing.T) {
	for _, tt := range []struct {
		store, option string
		says          []string
		written       func(*testWorld) (int, error) // counts the records below the wrong prefix
	}{
		{lab.StoreConsul, `kv_prefix = "wrong"`, []string{"wrong/networks/default", "kv_prefix=leno", "kv_prefix=wrong"},
			func(w *testWorld) (int, error) {
				keys, _, err := w.Consul.Client().KV().Keys("wrong/", "", nil)
				return len(keys), err
			}},
		{lab.StoreEtcd, `prefix = "/wrong"`, []string{"/wrong/config", "prefix=/coreos.com/network ", "prefix=/wrong "},
			func(w *testWorld) (int, error) {
				client, err := w.Etcd.Client()
				if err != nil {
					return 0, err
				}
				found, err := client.Get(w.Ctx, "/wrong", clientv3.WithPrefix(), clientv3.WithCountOnly())
				if err != nil {
					return 0, err
				}
				return int(found.Count), nil
			}},
	} {
		t.Run(tt.store, func(t *testing.T) {
			w := newWorld(t, lab.Options{Hosts: 2, Store: tt.store})
			w.StartNetwork("vxlan")
			for _, h := range w.Hosts {
				w.WaitHealth(h, http.StatusOK)
			}
			h := w.Hosts[1]
			whole := traffic.Watch(w.World)
			right, err := os.ReadFile(h.ConfigFile())
			w.Must(err)
			wrong := strings.Replace(string(right), tt.store+" {", tt.store+" {\n  "+tt.option, 1)

			w.Must(h.StopAgent(w.Ctx))
			w.Must(h.StartAgent(wrong))
			says := append([]string{`"network"`}, tt.says...)
			w.WaitHealth(h, http.StatusServiceUnavailable, says...)
			since := time.Now()
			w.Eventually("the time to pass in which a host restores what it remembers", func(context.Context) error {
				if left := 15*time.Second - time.Since(since); left > 0 {
					return fmt.Errorf("%s are left", left)
				}
				return nil
			})
			w.WaitHealth(h, http.StatusServiceUnavailable, says...)
			if n, err := tt.written(w); err != nil || n != 0 {
				t.Errorf("%d records below the wrong prefix, %v", n, err)
			}

			w.Must(h.StopAgent(w.Ctx))
			w.Must(h.StartAgent(string(right)))
			for _, h := range w.Hosts {
				w.WaitHealth(h, http.StatusOK)
			}
			whole()
		})
	}
}
