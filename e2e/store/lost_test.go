package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	consul "github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/traffic"
	"github.com/lenonet/leno/e2e/world"
)

// onlyInConsul lays out hosts that take part in a network that no file defines, two with a block
// without pools and one with watch_networks, and in a second network that is defined in their
// files.
func onlyInConsul(t *testing.T) *testWorld {
	t.Helper()
	w := newWorld(t, lab.Options{Leno: world.PrivateRun(t)})
	file := `
  ipv4 { prefix = "10.6.0.0/16" }
  backend "host-gw" {}`
	for i, h := range w.Hosts {
		blocks := []string{world.ShortLease, h.Network("from-files", file)}
		if i == 2 {
			blocks = append([]string{"watch_networks = true\n"}, blocks...)
		} else {
			blocks = append(blocks, h.Network("default", ""))
		}
		w.Must(h.StartAgent(h.Config(blocks...)))
	}
	w.WaitHealth(w.Hosts[0], http.StatusServiceUnavailable, "leno network apply")
	w.Apply("default", world.Plan("vxlan"))
	for _, h := range w.Hosts {
		w.WaitPeers(h, "default", 2)
		w.Must(h.WaitReady(w.Ctx))
		w.Container(h, "default")
	}
	w.Settle("default")
	return w
}

// TestNetworkOnlyInConsul checks that a network that is defined only in Consul stays on its hosts
// and is restored, however Consul lost it. No packet is lost and no route is removed.
func TestNetworkOnlyInConsul(t *testing.T) {
	hosts := onlyInConsul(t)
	before := hosts.drawn()
	emptied := func(w *testWorld) {
		_, err := w.Consul.Client().KV().DeleteTree("leno/", nil)
		w.Must(err)
	}
	for _, tt := range []struct {
		name string
		lose func(w *testWorld)
	}{
		{"its key is deleted", func(w *testWorld) {
			_, err := w.Consul.Client().KV().Delete("leno/networks/default", nil)
			w.Must(err)
		}},
		{"its key is deleted, and then all keys are", func(w *testWorld) {
			_, err := w.Consul.Client().KV().Delete("leno/networks/default", nil)
			w.Must(err)
			w.Eventually("the network to be put back", func(context.Context) error {
				pair, _, err := w.Consul.Client().KV().Get("leno/networks/default", nil)
				if err == nil && pair == nil {
					err = errors.New("it is not there")
				}
				return err
			})
			emptied(w)
		}},
		{"all keys are deleted, and agents are restarted", func(w *testWorld) {
			emptied(w)
			w.Must(w.Hosts[0].StopAgent(w.Ctx))
			w.Must(w.Hosts[0].RestartAgent())
			w.Must(w.Hosts[2].StopAgent(w.Ctx))
			w.Must(w.Hosts[2].RestartAgent())
		}},
		{"all keys are deleted while no agent runs", func(w *testWorld) {
			for _, h := range w.Hosts {
				w.Must(h.StopAgent(w.Ctx))
			}
			emptied(w)
			for _, h := range w.Hosts {
				w.Must(h.RestartAgent())
			}
		}},
		{"all keys are deleted, and another network is defined", func(w *testWorld) {
			emptied(w)
			w.Apply("other", "ipv4 { prefix = \"10.99.0.0/16\" }\n"+`backend "alloc" {}`)
		}},
	} {
		if !t.Run(tt.name, func(t *testing.T) {
			w := hosts.in(t)
			whole := traffic.Watch(w.World)
			tt.lose(w)
			w.Eventually("all to be as before", func(context.Context) error {
				now, err := w.picture()
				if err != nil {
					return err
				}
				for _, line := range before {
					if !slices.Contains(now, line) {
						return fmt.Errorf("missing: %s", line)
					}
				}
				return nil
			})
			for _, h := range w.Hosts {
				w.WaitHealth(h, http.StatusOK)
			}
			whole()
		}) {
			return // the hosts are not as the next case expects them
		}
	}
}

// TestNetworkOnlyInConsulSetBack restores a snapshot from before the network existed.
func TestNetworkOnlyInConsulSetBack(t *testing.T) {
	w := newWorld(t, lab.Options{})
	for _, h := range w.Hosts {
		w.Must(h.StartAgent(h.Config(world.ShortLease, h.Network("default", ""))))
		w.WaitHealth(h, http.StatusServiceUnavailable, "leno network apply")
	}
	restore := w.save()
	w.Apply("default", world.Plan("vxlan"))
	for _, h := range w.Hosts {
		w.Must(h.WaitReady(w.Ctx))
		w.Container(h, "default")
	}
	w.Settle("default")
	before := w.drawn()
	whole := traffic.Watch(w.World)
	restore()
	w.asBefore(before)
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}
	whole()
}

// TestDeletedNetworkStaysDeleted checks that a deleted network ends on every host, including one
// whose agent was not running and one whose file defines it. It does not come back until a person
// defines it again, even if Consul has lost the record of the deletion.
func TestDeletedNetworkStaysDeleted(t *testing.T) {
	w := newWorld(t, lab.Options{})
	away, definer := w.Hosts[0], w.Hosts[1]
	for _, h := range w.Hosts {
		body := ""
		if h == definer {
			body = world.Plan("vxlan")
		}
		w.Must(h.StartAgent(h.Config(world.ShortLease, h.Network("default", body))))
	}
	for _, h := range w.Hosts {
		w.Must(h.WaitReady(w.Ctx))
	}
	w.Must(away.StopAgent(w.Ctx))
	if out, err := definer.Leno(w.Ctx, "network", "delete", "-force", "default"); err != nil {
		t.Fatal(err, out)
	}
	nothing := func(h *lab.Host) {
		w.WaitHealth(h, http.StatusServiceUnavailable, "was deleted at", "leno network apply")
		w.Eventually("nothing of the network to stay on "+h.Name, func(context.Context) error {
			if routes, link := w.Routes(h), w.Link(h); len(routes) > 0 || link != "none" {
				return fmt.Errorf("routes %q, device %s", routes, link)
			}
			return nil
		})
	}
	nothing(definer)
	nothing(w.Hosts[2])
	w.Must(definer.StopAgent(w.Ctx))
	w.Must(definer.RestartAgent())
	nothing(definer)
	if len(w.Routes(away)) == 0 {
		t.Error("the routes of a host whose agent does not run are gone")
	}
	w.Must(away.RestartAgent())
	nothing(away)
	w.Eventually("its leases to be given up", func(context.Context) error {
		keys, _, err := w.Consul.Client().KV().Keys("leno/leases/default/", "", nil)
		if err == nil && len(keys) > 1 {
			err = fmt.Errorf("%q", keys)
		}
		return err
	})
	pair, _, err := w.Consul.Client().KV().Get("leno/networks/default", nil)
	if err != nil || pair == nil || !bytes.Contains(pair.Value, []byte(`"deleted":`)) {
		t.Errorf("the record of the deletion: %+v, %v", pair, err)
	}
	if status, body, err := definer.Get(w.Ctx, "/v1/network/default"); err != nil || status != http.StatusNotFound || !strings.Contains(body, "deleted") {
		t.Errorf("the API answers %d: %s, %v", status, body, err)
	}
	_, err = w.Consul.Client().KV().DeleteTree("leno/", nil)
	w.Must(err)
	w.Eventually("the record of the deletion to be put back", func(context.Context) error {
		again, _, err := w.Consul.Client().KV().Get("leno/networks/default", nil)
		if err == nil && (again == nil || !bytes.Equal(again.Value, pair.Value)) {
			err = fmt.Errorf("the record is %+v", again)
		}
		return err
	})
	nothing(definer)
	w.Apply("default", world.Plan("vxlan"))
	for _, h := range w.Hosts {
		w.Must(h.WaitReady(w.Ctx))
		w.WaitPeers(h, "default", 2)
	}
}

// TestDefinitionRewritten checks that a definition that is written again with the same meaning is
// immediately the version that agents report, so that commands that wait for it and programs that
// change what they have read do not fail.
func TestDefinitionRewritten(t *testing.T) {
	w := onlyInConsul(t)
	a := w.Hosts[0]
	kv := w.Consul.Client().KV()
	const key = "leno/networks/default"
	definition := func() (n api.Network) {
		w.T.Helper()
		status, body, err := a.Get(w.Ctx, "/v1/network/default")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d: %s", status, body)
		}
		w.Must(err)
		w.Must(json.Unmarshal([]byte(body), &n))
		return n
	}
	for range 3 {
		pair, _, err := kv.Get(key, nil)
		w.Must(err)
		_, err = kv.Put(&consul.KVPair{Key: key, Value: append(pair.Value, ' ')}, nil)
		w.Must(err)
		pair, _, err = kv.Get(key, nil)
		w.Must(err)
		w.Eventually("the new version", func(context.Context) error {
			if got := definition(); got.ModifyIndex != pair.ModifyIndex || got.Local == nil || got.Local.ModifyIndex != pair.ModifyIndex {
				return fmt.Errorf("%+v, want version %d", got, pair.ModifyIndex)
			}
			return nil
		})
		w.Apply("default", world.Plan("vxlan"), "-wait=1m")
	}
	body, err := json.Marshal(definition())
	w.Must(err)
	request, err := http.NewRequestWithContext(w.Ctx, http.MethodPut, "http://127.0.0.1:5366/v1/network/default", bytes.NewReader(body))
	w.Must(err)
	response, err := a.HTTP().Do(request)
	w.Must(err)
	defer response.Body.Close()
	if text, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusOK {
		t.Errorf("a definition that was just read is refused: %s %s", response.Status, text)
	}
}
