package agent

import (
	"strings"
	"testing"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/registry"
)

// TestStores: the configuration selects the store, and everything that names it uses its name.
func TestStores(t *testing.T) {
	t.Setenv("CONSUL_HTTP_ADDR", "")
	for _, tt := range []struct {
		name, src         string
		dev               bool
		kind, shown, text string
	}{
		{"nothing", "", false, "consul", "consul at 127.0.0.1:8500", "Consul"},
		{"Consul", `consul { address = "https://c:8501" }`, false, "consul", "consul at https://c:8501", "Consul"},
		{"etcd", "etcd {}", false, "etcd", "etcd at 127.0.0.1:2379", "etcd"},
		{"etcd on several servers", `etcd { endpoints = ["https://a:1", "https://[fd00::1]:2"] }`,
			false, "etcd", "etcd at a:1, [fd00::1]:2", "etcd"},
		{"no scheme", `etcd { endpoints = ["a:1"] }`, false, "etcd", "etcd at a:1", "etcd"},
		{"Kubernetes", "kubernetes {}", false, "kubernetes", "kubernetes", "Kubernetes"},
		{"none", "", true, "memory", "memory", "Consul"},
		{"none although one is configured", "etcd {}", true, "memory", "memory", "Consul"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := config.Parse([]byte(tt.src), "leno.hcl", config.Options{Dev: tt.dev})
			must(t, err)
			if c.Store() != tt.kind || registryName(c) != tt.shown || c.StoreName() != tt.text {
				t.Errorf("%s, shown as %q, called %q", c.Store(), registryName(c), c.StoreName())
			}
			if text := network.Differing(c, config.Network{Name: "n"}, registry.Network{}, nil); !strings.Contains(text, "definition in "+tt.text+" ") {
				t.Errorf("in a text: %s", text)
			}
			want := health.Consul
			switch tt.kind {
			case "etcd":
				want = health.Etcd
			case "kubernetes":
				want = health.Kubernetes
			}
			if got := health.StoreCheck(c.Store()); got != want {
				t.Errorf("check %s, want %s", got, want)
			}
			if open := registries()[c.Store()]; open == nil {
				t.Error("nothing opens it")
			}
		})
	}
	if health.Consul != doctor.CheckConsul || health.Etcd != doctor.CheckEtcd ||
		health.Kubernetes != doctor.CheckKubernetes || health.Login != doctor.CheckLogin {
		t.Error("the doctor's checks have other names")
	}
}

// TestConsulOfTheEnvironment: without an address in the configuration, that of the environment is shown.
func TestConsulOfTheEnvironment(t *testing.T) {
	t.Setenv("CONSUL_HTTP_ADDR", "http://c:1")
	c := config.Defaults()
	c.Consul.Address = ""
	if got, want := registryName(c), "consul at http://c:1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
