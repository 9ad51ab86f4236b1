package command

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/command/cli"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// copyWorld has an etcd with the network default and a Consul, both played by stores in memory.
type copyWorld struct {
	*testing.T
	etcd, consul *memory.Store
	network      registry.Network
}

func newCopyWorld(t *testing.T) *copyWorld {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"etcd.hcl":    "etcd {\n  endpoints = [\"http://10.0.0.1:2379\"]\n}\n",
		"consul.hcl":  "consul {\n  address = \"127.0.0.1:8500\"\n}\n",
		"bad.hcl":     "etcd {\n",
		"nowhere.hcl": "etcd {\n  endpoints = [\"127.0.0.1:1\"]\n}\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := &copyWorld{T: t, etcd: memory.New(), consul: memory.New()}
	plan, err := registry.Plan{{Prefix: netip.MustParsePrefix("10.5.0.0/16")}}.Normalize()
	w.must(err)
	backend, err := registry.NewBackend("vxlan", nil)
	w.must(err)
	w.network = registry.Network{Name: "default", Plan: plan, Backend: backend}
	w.must(w.etcd.Client().PutNetwork(t.Context(), w.network, w.reservation("10.5.40.0/24", "host-b")))
	for i, node := range []string{"host-a", "host-c"} {
		w.claim(w.etcd, node, i)
	}
	return w
}

func (w *copyWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *copyWorld) reservation(subnet, node string) registry.Reservation {
	return registry.Reservation{Network: "default", Subnet: netip.MustParsePrefix(subnet), Node: node}
}

func (w *copyWorld) claim(s *memory.Store, node string, i int) {
	w.Helper()
	backend, err := registry.NewBackend("vxlan", fmt.Appendf(nil, `{"vtep_mac":"0a:58:00:00:00:%02x"}`, i))
	w.must(err)
	addr := netip.MustParseAddr([]string{"192.0.2.34", "192.0.2.77", "192.0.2.99"}[i])
	id := fmt.Sprintf("6f1c9d1e-0000-4000-8000-%012d", i)
	if strings.HasPrefix(node, "flannel-") {
		id = node
	}
	_, err = s.Client().Acquire(w.Context(), w.network, registry.Claim{
		Node:      node,
		NodeID:    id,
		PublicIPs: []netip.Addr{addr},
		MTU:       1450,
		Backend:   backend,
		Prefer:    netip.MustParsePrefix([]string{"10.5.34.0/24", "10.5.77.0/24", "10.5.99.0/24"}[i]),
		TTL:       time.Minute,
	})
	w.must(err)
}

// flannelHosts is a registry in which the hosts with a name like flannel-192.0.2.99 run flannel.
type flannelHosts struct{ registry.Registry }

func (r flannelHosts) WatchLeases(ctx context.Context, n registry.Network, after uint64) (registry.LeaseSet, uint64, error) {
	set, index, err := r.Registry.WatchLeases(ctx, n, after)
	set.Leases = slices.Clone(set.Leases)
	for i, l := range set.Leases {
		set.Leases[i].Foreign = strings.HasPrefix(l.Node, "flannel-")
	}
	return set, index, err
}

// run runs the command with the two stores, and returns its transcript.
func (w *copyWorld) run(args ...string) string {
	w.Helper()
	var stdout, stderr bytes.Buffer
	meta := cli.Meta{
		Stdout: &stdout, Stderr: &stderr, Getenv: func(string) string { return "" }, Backends: agent.Backends(),
	}
	open := func(conf config.Config, _ hclog.Logger, _ func(string)) (registry.Registry, string, error) {
		if conf.Store() == config.StoreEtcd {
			return flannelHosts{w.etcd.Client()}, "etcd at 10.0.0.1:2379", nil
		}
		return w.consul.Client(), "consul at 127.0.0.1:8500", nil
	}
	spec := func(m cli.Meta) cli.Spec { return newStoreCopy(m, open).spec() }
	args = append([]string{"store", "copy"}, args...)
	code := cli.Run(args, meta, func(m cli.Meta) cli.Commands {
		return cli.NewCommands(m, map[string]string{"store": ""}, spec)
	})
	return result{code, stdout.String(), stderr.String()}.transcript(args)
}

func TestStoreCopy(t *testing.T) {
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	both := []string{"-from=etcd.hcl", "-to=consul.hcl"}
	for _, tt := range []struct {
		name string
		args []string
		set  func(*copyWorld)
	}{
		{name: "store copy"},
		{name: "store copy dry run", args: []string{"-dry-run"}},
		{name: "store copy json", args: []string{"-format=json", "-network=default"}},
		{name: "store copy again", set: func(w *copyWorld) { w.run(both...) }},
		{name: "store copy none", set: func(w *copyWorld) { w.etcd = memory.New() }},
		{name: "store copy unknown", args: []string{"-network=blue"}},
		{name: "store copy flannel", set: func(w *copyWorld) { w.claim(w.etcd, "flannel-192.0.2.99", 2) }},
		{name: "store copy without flannel", args: []string{"-without-flannel-hosts"},
			set: func(w *copyWorld) { w.claim(w.etcd, "flannel-192.0.2.99", 2) }},
		{name: "store copy taken", set: func(w *copyWorld) {
			w.must(w.consul.Client().PutNetwork(w.Context(), w.network, w.reservation("10.5.40.0/24", "host-x")))
			w.claim(w.consul, "host-b", 1)
			w.etcd.Put("leno/leases/default/10.5.9.0-24", []byte("x"))
			old := w.network
			old.Name = "old"
			w.must(w.etcd.Client().PutNetwork(w.Context(), old))
			w.must(w.etcd.Client().DeleteNetwork(w.Context(), "old"))
		}},
		{name: "store copy differs", set: func(w *copyWorld) {
			n := w.network
			n.Backend.Object = []byte(`{"type":"vxlan","vni":7}`)
			w.must(w.consul.Client().PutNetwork(w.Context(), n))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newCopyWorld(t)
			if tt.set != nil {
				tt.set(w)
			}
			got := w.run(append(both, tt.args...)...)
			t.Chdir(here)
			if _, after, found := strings.Cut(got, "the network was deleted at "); found {
				got = strings.Replace(got, strings.Fields(after)[0], "2026-11-22T21:40:00Z", 1)
			}
			golden(t, tt.name, got)
		})
	}
}

func TestStoreCopyUsage(t *testing.T) {
	newCopyWorld(t)
	for args, want := range map[string]string{
		"-from=etcd.hcl -to=none.hcl":      "none.hcl",
		"-from=bad.hcl -to=consul.hcl":     "bad.hcl",
		"-from=etcd.hcl -to=etcd.hcl":      "configurations of the same store",
		"-from=nowhere.hcl -to=consul.hcl": "unavailable",
	} {
		got := world{backends: agent.Backends()}.run(strings.Fields("store copy " + args)...)
		if got.code != cli.ExitFailed || got.stdout != "" || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

// TestPlaceOf: the same Consul by other spellings is the same store.
func TestPlaceOf(t *testing.T) {
	t.Setenv("CONSUL_HTTP_ADDR", "localhost:8500")
	same := func(a, b string) bool {
		return placeOf(config.Config{Consul: config.Consul{Address: a}}) == placeOf(config.Config{Consul: config.Consul{Address: b}})
	}
	for _, address := range []string{"", "localhost:8500", "http://127.0.0.1:8500", "https://localhost:8500"} {
		if !same(address, "127.0.0.1:8500") {
			t.Errorf("%q is another store", address)
		}
	}
	for _, address := range []string{"127.0.0.1:8501", "consul:8500", "unix:///run/consul.sock"} {
		if same(address, "") {
			t.Errorf("%q is the same store", address)
		}
	}
}
