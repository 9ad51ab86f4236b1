package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
)

func testFile(t *testing.T, c *cluster) {
	a := c.open(t, "host-a", vxlanConf)
	n := network(t, a)
	if n.Backend.Type != "vxlan" || n.Plan[0].Prefix.String() != "10.244.0.0/16" || n.CreateIndex != 1 {
		t.Errorf("network %+v", n)
	}
	if _, err := a.Network(t.Context(), "other"); !errors.Is(err, registry.ErrNetworkNotFound) {
		t.Errorf("another network: %v", err)
	}
	set, index, err := a.WatchNetworks(t.Context(), 0)
	if err != nil || len(set.Networks) != 1 {
		t.Fatalf("networks %+v, %v", set, err)
	}
	write := func(conf string) {
		t.Helper()
		if err := os.WriteFile(a.conf.NetConf, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}`)
	set, index, err = a.WatchNetworks(t.Context(), index)
	if err != nil || set.Networks[0].Backend.Type != "host-gw" || set.Networks[0].ModifyIndex <= n.ModifyIndex {
		t.Errorf("a changed file: %+v, %v", set, err)
	}
	write("{")
	set, index, err = a.WatchNetworks(t.Context(), index)
	if reason, bad := set.Unusable(DefaultNetwork); err != nil || !bad || len(set.Networks) > 0 {
		t.Errorf("a broken file: %+v, %v, %s", set, err, reason)
	}
	if _, err := a.Network(t.Context(), DefaultNetwork); !errors.Is(err, registry.ErrInvalid) {
		t.Errorf("a broken file: %v", err)
	}
	if err := os.Remove(a.conf.NetConf); err != nil {
		t.Fatal(err)
	}
	set, _, err = a.WatchNetworks(t.Context(), index)
	if err != nil || len(set.Networks) > 0 || len(set.Bad) > 0 || len(set.Deleted) > 0 {
		t.Errorf("no file: %+v, %v", set, err)
	}
	if _, err := a.Network(t.Context(), DefaultNetwork); !errors.Is(err, registry.ErrNetworkNotFound) {
		t.Errorf("no file: %v", err)
	}
}

// configMaps is the path of the namespace's ConfigMaps.
const configMaps = "/api/v1/namespaces/default/configmaps"

// addConfigMap creates the ConfigMap default/flannel and returns what opens a client that reads one of its keys.
func (c *cluster) addConfigMap(t *testing.T) (from func(key string) *Client) {
	c.Do(t, "POST", configMaps, map[string]any{
		"metadata": map[string]any{"name": "flannel"},
		"data":     map[string]string{"net-conf.json": vxlanConf},
	})
	return func(key string) *Client {
		return c.open(t, "host-a", "", func(o *Config) { o.ConfigMap = ConfigMap{"default", "flannel", key} })
	}
}

// setBackend changes the network in the ConfigMap default/flannel.
func (c *cluster) setBackend(t *testing.T, kind string) {
	conf := fmt.Sprintf(`{"Network":"10.244.0.0/16","Backend":{"Type":%q}}`, kind)
	c.Do(t, "PATCH", configMaps+"/flannel", fmt.Sprintf(`{"data":{"net-conf.json":%q}}`, conf))
}

func testConfigMap(t *testing.T, c *cluster) {
	from := c.addConfigMap(t)
	a := from("net-conf.json")
	before := network(t, a)
	c.setBackend(t, "host-gw")
	if now := network(t, a); now.Backend.Type != "host-gw" || now.ModifyIndex <= before.ModifyIndex {
		t.Errorf("a changed ConfigMap: %+v", now)
	}
	if _, err := from("other").Network(t.Context(), DefaultNetwork); !errors.Is(err, registry.ErrNetworkNotFound) {
		t.Errorf("no such key: %v", err)
	}
	c.Do(t, "DELETE", configMaps+"/flannel", nil)
	if _, err := a.Network(t.Context(), DefaultNetwork); !errors.Is(err, registry.ErrNetworkNotFound) {
		t.Errorf("no ConfigMap: %v", err)
	}
}

// testRestored changes the ConfigMap after the storage was restored, when resource versions are lower than before.
func testRestored(t *testing.T, c *cluster) {
	a := c.addConfigMap(t)("net-conf.json")
	snapshot := c.Etcd.SaveSnapshot(t)
	for _, kind := range []string{"host-gw", "vxlan", "host-gw", "vxlan"} {
		c.setBackend(t, kind)
	}
	n := network(t, a)
	known, _ := (*belief.Definition)(nil).Confirm(n, time.Now())
	c.Stop()
	c.Etcd.RestoreSnapshot(t, snapshot)
	c.Restart()
	c.setBackend(t, "host-gw")
	now, err := a.Network(t.Context(), DefaultNetwork)
	if verdict := known.Judge(now, err); verdict != belief.InForce || now.Backend.Type != "host-gw" {
		t.Errorf("after %+v, the ConfigMap has %+v, %v: verdict %d", n, now, err, verdict)
	}
	again, err := a.Network(t.Context(), DefaultNetwork)
	if err != nil || again.ModifyIndex != now.ModifyIndex {
		t.Errorf("read again: index %d, %v, want %d", again.ModifyIndex, err, now.ModifyIndex)
	}
}

// TestDefinitionReadInOrder: a read that waits for another one ends with its context.
func TestDefinitionReadInOrder(t *testing.T) {
	a := (&cluster{}).open(t, "host-a", vxlanConf)
	a.own.reading <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Network(ctx, DefaultNetwork); !errors.Is(err, context.Canceled) {
		t.Errorf("while another call reads: %v", err)
	}
	<-a.own.reading
	if _, err := a.Network(t.Context(), DefaultNetwork); err != nil {
		t.Error(err)
	}
}
