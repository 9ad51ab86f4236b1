package kubernetes

import (
	"errors"
	"os"
	"testing"

	"github.com/lenonet/leno/registry"
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

func testConfigMap(t *testing.T, c *cluster) {
	const path = "/api/v1/namespaces/default/configmaps"
	c.Do(t, "POST", path, map[string]any{
		"metadata": map[string]any{"name": "flannel"},
		"data":     map[string]string{"net-conf.json": vxlanConf},
	})
	from := func(key string) *Client {
		return c.open(t, "host-a", "", func(o *Config) { o.ConfigMap = ConfigMap{"default", "flannel", key} })
	}
	a := from("net-conf.json")
	before := network(t, a)
	c.Do(t, "PATCH", path+"/flannel",
		`{"data":{"net-conf.json":"{\"Network\":\"10.96.0.0/16\",\"Backend\":{\"Type\":\"host-gw\"}}"}}`)
	if now := network(t, a); now.Backend.Type != "host-gw" || now.ModifyIndex <= before.ModifyIndex {
		t.Errorf("a changed ConfigMap: %+v", now)
	}
	if _, err := from("other").Network(t.Context(), DefaultNetwork); !errors.Is(err, registry.ErrNetworkNotFound) {
		t.Errorf("no such key: %v", err)
	}
	c.Do(t, "DELETE", path+"/flannel", nil)
	if _, err := a.Network(t.Context(), DefaultNetwork); !errors.Is(err, registry.ErrNetworkNotFound) {
		t.Errorf("no ConfigMap: %v", err)
	}
}
