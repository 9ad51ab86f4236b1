package transfer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/internal/testkit/etcdtest"
	"github.com/lenonet/leno/internal/testkit/ports"
	"github.com/lenonet/leno/internal/testkit/process"
	"github.com/lenonet/leno/internal/testkit/programs"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/consul"
	"github.com/lenonet/leno/registry/consul/transport"
	"github.com/lenonet/leno/registry/etcd"
	"github.com/lenonet/leno/registry/transfer"
)

// startConsul starts a Consul server for the test and returns its address and a client of it.
func startConsul(t *testing.T) (address string, client *api.Client) {
	t.Helper()
	path, err := programs.Consul.Find()
	must(t, err)
	free, err := ports.Free(4)
	must(t, err)
	hcl := fmt.Sprintf("ports { http = %d server = %d serf_lan = %d serf_wan = %d dns = -1 grpc = -1 grpc_tls = -1 }",
		free[0], free[1], free[2], free[3])
	file := filepath.Join(t.TempDir(), "consul.hcl")
	must(t, os.WriteFile(file, []byte(hcl), 0o600))
	cmd := exec.Command(path, "agent", "-dev", "-bind=127.0.0.1", "-log-level=error", "-config-file="+file)
	p, err := process.Start(cmd, file+".log")
	must(t, err)
	t.Cleanup(p.Kill)
	conf := api.DefaultConfig()
	conf.Address = fmt.Sprintf("127.0.0.1:%d", free[0])
	client, err = api.NewClient(conf)
	must(t, err)
	must(t, p.WaitFor(t.Context(), "Consul", func(ctx context.Context) error {
		// Sessions need the node in the catalogue, which appears a moment after the leader.
		options := (&api.WriteOptions{}).WithContext(ctx)
		id, _, err := client.Session().CreateNoChecks(&api.SessionEntry{}, options)
		if err != nil {
			return err
		}
		_, err = client.Session().Destroy(id, options)
		return err
	}))
	return conf.Address, client
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// host returns the claim of host i, which has both address families.
func host(i int) registry.Claim {
	mac := fmt.Sprintf(`{"vni":1,"port":8472,"vtep_mac":"0a:58:00:00:00:%02x"}`, i)
	backend, _ := registry.NewBackend("vxlan", []byte(mac)) // only invalid JSON is an error
	return registry.Claim{
		Node:   fmt.Sprintf("host-%d", i),
		NodeID: fmt.Sprintf("00000000-0000-4000-8000-%012d", i),
		PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}),
			netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i))},
		MTU:     1450,
		Backend: backend,
		TTL:     10 * time.Minute, // no test takes so long
		Hold:    time.Hour,
	}
}

// leases returns each lease of a store's network as text.
func leases(t *testing.T, r registry.Registry, ofNode func(string) bool) map[string]string {
	t.Helper()
	n, err := r.Network(t.Context(), "default")
	must(t, err)
	set, _, err := r.WatchLeases(t.Context(), n, 0)
	must(t, err)
	out := map[string]string{}
	for _, l := range set.Leases {
		if ofNode(l.Node) {
			value, err := registry.FormatLease(l)
			must(t, err)
			out[fmt.Sprint(l.Subnets)] = string(value)
		}
	}
	return out
}

func runsLeno(node string) bool { return !strings.HasPrefix(node, "flannel-") }

// TestStores moves hosts from etcd to Consul and back.
func TestStores(t *testing.T) {
	t.Parallel()
	servers := etcdtest.Start(t, etcdtest.Options{})
	raw := servers.Client(t)
	address, admin := startConsul(t)
	const prefix = "/coreos.com/network"
	openEtcd := func() registry.Registry {
		c := etcd.New(etcd.Config{
			Endpoints: servers.Endpoints(),
			Prefix:    prefix,
			Network:   "default",
			Settle:    time.Hour,
		})
		t.Cleanup(func() { must(t, c.Close()) })
		return c
	}
	openConsul := func() registry.Registry {
		c, err := consul.New(consul.Config{Config: transport.Config{Address: address}, KVPrefix: "leno"})
		must(t, err)
		return c
	}
	endConsul := func(but string) {
		t.Helper()
		all, _, err := admin.Session().List(nil)
		must(t, err)
		for _, s := range all {
			if s.ID == but {
				continue
			}
			_, err := admin.Session().Destroy(s.ID, nil)
			must(t, err)
		}
	}
	endEtcd := func(r registry.Registry, but string) {
		t.Helper()
		holders, err := r.Holders(t.Context(), "default")
		must(t, err)
		for _, h := range holders {
			if h.Session == but {
				continue
			}
			alive, _, _ := strings.Cut(h.Session, "-")
			id, err := strconv.ParseInt(alive, 16, 64)
			must(t, err)
			_, err = raw.Revoke(t.Context(), clientv3.LeaseID(id))
			must(t, err)
		}
	}

	// Flannel's network, with one host that still runs flannel.
	config := map[string]any{"Network": "10.5.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:5::/48",
		"Backend": map[string]any{"Type": "vxlan"}}
	value, err := json.Marshal(config)
	must(t, err)
	_, err = raw.Put(t.Context(), prefix+"/config", string(value))
	must(t, err)
	_, err = raw.Put(t.Context(), prefix+"/subnets/10.5.99.0-24&fd00:5:0:63::-64", `{"PublicIP":"192.0.2.99",`+
		`"PublicIPv6":"2001:db8::99","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:58:00:00:00:99"},`+
		`"BackendV6Data":{"VNI":1,"VtepMAC":"0a:58:00:00:00:99"}}`)
	must(t, err)
	from, to := openEtcd(), openConsul()
	n, err := from.Network(t.Context(), "default")
	must(t, err)
	held := map[int]registry.Lease{}
	for i := 1; i <= 3; i++ {
		held[i], err = from.Acquire(t.Context(), n, host(i))
		must(t, err)
	}
	reservation := registry.Reservation{Network: n.Name, Subnet: held[2].Subnet(), Node: "host-2"}
	must(t, from.AddReservation(t.Context(), n, reservation, false))

	options := transfer.Options{Hold: time.Hour}
	copyAll := func(from, to registry.Registry, want transfer.Result) {
		t.Helper()
		report, err := transfer.Copy(t.Context(), from, to, options)
		must(t, err)
		if report.Failures() > 0 || len(report.Networks) != 1 {
			t.Fatalf("%+v", report)
		}
		for _, l := range report.Networks[0].Leases {
			if l.Result != want && runsLeno(l.Node) {
				t.Errorf("%+v, want %s", l, want)
			}
		}
	}
	_, err = transfer.Copy(t.Context(), from, to, options)
	if err == nil || !strings.Contains(err.Error(), "10.5.99.0/24") {
		t.Fatalf("error %v", err)
	}
	options.WithoutForeign, options.DryRun = true, true
	copyAll(from, to, transfer.ToCopy)
	options.DryRun = false
	copyAll(from, to, transfer.Copied)
	copyAll(from, openConsul(), transfer.Present)
	before := leases(t, from, runsLeno)
	if diff := cmp.Diff(before, leases(t, openConsul(), runsLeno)); diff != "" {
		t.Fatalf("leases (-etcd +consul):\n%s", diff)
	}
	endConsul("")
	copyAll(from, openConsul(), transfer.Copied)

	// host-1 changes before its copy has lapsed, the others later.
	there, err := to.Network(t.Context(), "default")
	must(t, err)
	change := func(ctx context.Context, r registry.Registry, n registry.Network, i int) {
		t.Helper()
		c := host(i)
		c.Session, c.Prefer, c.Since, c.RecentUse = held[i].Session, held[i].Subnet(), held[i].ModifyIndex, true
		l, err := r.Acquire(ctx, n, c)
		must(t, err)
		if l.Slot != held[i].Slot {
			t.Errorf("host %d had %s, got %s", i, held[i].Subnet(), l.Subnet())
		}
		held[i] = l
	}
	change(t.Context(), openConsul(), there, 1)
	endConsul(held[1].Session)
	change(t.Context(), openConsul(), there, 2)
	change(t.Context(), openConsul(), there, 3)
	endEtcd(from, "")

	// Back, beside the lapsed leases of before.
	copyAll(openConsul(), openEtcd(), transfer.Copied)
	if diff := cmp.Diff(before, leases(t, openEtcd(), runsLeno)); diff != "" {
		t.Fatalf("leases (-before +now):\n%s", diff)
	}
	change(t.Context(), openEtcd(), n, 1)
	endEtcd(from, held[1].Session)
	change(t.Context(), openEtcd(), n, 2)
	change(t.Context(), openEtcd(), n, 3)
	copyAll(openConsul(), openEtcd(), transfer.Present)
	set, _, err := from.WatchReservations(t.Context(), n, 0)
	must(t, err)
	if len(set.Reservations) != 1 {
		t.Errorf("reservations %+v", set)
	}
	if got := leases(t, from, func(string) bool { return true }); len(got) != 4 {
		t.Errorf("leases %v", got)
	}
}
