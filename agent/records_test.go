package agent

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func TestBadNetworkIsNamed(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		key := memory.Prefix + "/networks/other"
		store.Put(key, []byte(`{"version":2}`))
		a := newHost(t, store, "a").start()
		a.ready()
		a.check(health.Records, api.Warning, "1 record skipped (see `leno network list`)", key, "version 2 is a newer leno's")
		if code, _ := a.request("GET", "/healthz", ""); code != http.StatusTooManyRequests {
			t.Errorf("healthz %d", code)
		}
		list, err := a.client.Networks(context.Background())
		if err != nil || len(list.Networks) != 1 || len(list.Skipped) != 1 || list.Skipped[0].Key != key {
			t.Errorf("%+v, %v", list, err)
		}
		for _, path := range []string{"", "/leases", "/reservations", "/peers"} {
			code, body := a.request("GET", "/v1/network/other"+path, "")
			if code != http.StatusConflict || !strings.Contains(body, "its record in the store cannot be used: invalid: version 2") {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
		if code, body := a.request("DELETE", "/v1/network/other", ""); code != http.StatusConflict {
			t.Errorf("%d %s", code, body)
		}
		if code, body := a.request("DELETE", "/v1/network/other?force=true", ""); code != http.StatusOK {
			t.Errorf("%d %s", code, body)
		}
		a.check(health.Records, api.Passing, "every record is usable")
		if code, _ := a.request("GET", "/v1/network/other", ""); code != http.StatusNotFound {
			t.Errorf("after it was deleted: %d", code)
		}
	})
}

// TestOwnNetworkOverwritten: a network goes on as it is when its definition is overwritten with nonsense, and follows
// the record once it is repaired.
func TestOwnNetworkOverwritten(t *testing.T) {
	simulated(t, func(t *testing.T) {
		store := memory.New()
		a := newHost(t, store, "a").start()
		a.ready()
		want := a.subnet().String() + " <- "
		a.applies(want)
		key := memory.Prefix + "/networks/n"
		good, _, _ := store.Get(key)
		store.Put(key, []byte(`{"version":2}`))
		a.check(health.Network, api.Warning, "the definition in the store cannot be used, the one before stays in force: invalid: version 2")
		a.check(health.Records, api.Warning, key)
		a.applies(want)
		if list, err := a.client.Networks(context.Background()); err != nil || len(list.Networks) != 1 || list.Networks[0].Local == nil || len(list.Skipped) != 1 {
			t.Errorf("%+v, %v", list, err)
		}
		if list, err := a.client.Leases(context.Background(), "n"); err != nil || len(list.Leases) != 1 {
			t.Errorf("%+v, %v", list, err)
		}
		for path, method := range map[string]string{"": "PUT", "/plan": "POST"} {
			code, body := a.request(method, "/v1/network/n"+path, `{"pools":[{"prefix":"10.5.0.0/22"}],"backend":{"type":"recorder"}}`)
			if code != http.StatusConflict || !strings.Contains(body, "cannot be used") || !strings.Contains(body, "consul kv put") {
				t.Errorf("%q: %d %s", path, code, body)
			}
		}
		store.Put(key, good)
		a.check(health.Network, api.Passing, "defined")
		a.check(health.Records, api.Passing)
		a.applies(want)
		a.define(func(n *registry.Network) { n.Backend = agenttest.Backend(t, "recorder", `{"colour":"blue"}`) })
		eventually(t, func() error {
			if v := mustRunner(t, a).Status(); !strings.Contains(string(v.Definition.Backend.Object), "blue") {
				return errors.New("not followed yet")
			}
			return nil
		})
		a.applies(want)
		if got := a.recorder.all(); len(got) != 1 {
			t.Errorf("the datapath was disturbed: %q", got)
		}
	})
}
