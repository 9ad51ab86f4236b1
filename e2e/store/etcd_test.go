package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/traffic"
	"github.com/lenonet/leno/e2e/world"
	"github.com/lenonet/leno/registry/flannel"
)

// etcdPrefix is the default prefix of flannel's keys.
const etcdPrefix = "/coreos.com/network/"

// inEtcd returns all records below the prefix as key and value, without the sessions, whose keys differ after each
// outage.
func (w *testWorld) inEtcd() (map[string]string, error) {
	client, err := w.Etcd.Client()
	if err != nil {
		return nil, err
	}
	resp, err := client.Get(w.Ctx, etcdPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, kv := range resp.Kvs {
		if key := string(kv.Key); !strings.HasPrefix(key, etcdPrefix+"leno/sessions/") {
			out[key] = whenRestored.ReplaceAllString(string(kv.Value), "")
		}
	}
	return out, nil
}

// heldAsBefore blocks until every host holds its subnet as before, and the records are the same.
func (w *testWorld) heldAsBefore(held map[string]map[string]string, records map[string]string) {
	w.T.Helper()
	began := time.Now()
	w.Eventually("every host to hold its subnet", func(context.Context) error {
		now, err := w.inEtcd()
		if err != nil {
			return err
		}
		holders, err := w.held("default")
		if err != nil {
			return err
		}
		if diff := cmp.Diff(records, now) + cmp.Diff(held, holders); diff != "" {
			return fmt.Errorf("(-before +now):\n%s", diff)
		}
		return nil
	})
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}
	took := time.Since(began).Round(10 * time.Millisecond)
	w.T.Logf("as before after %s", took)
	if took > time.Minute {
		w.T.Errorf("as before only after %s", took)
	}
}

// noConsul checks that no agent has a connection to Consul, or waits for one.
func (w *testWorld) noConsul() {
	w.T.Helper()
	for _, h := range w.Hosts {
		sockets, err := h.Exec(w.Ctx, "ss", "-Htanp")
		w.Must(err)
		if strings.Contains(sockets, ":8500") || !strings.Contains(sockets, ":2379") {
			w.T.Errorf("%s: sockets\n%s", h.Name, sockets)
		}
	}
}

// TestEtcd runs three hosts on etcd. Etcd is killed for 20 s, and an agent with it; the whole prefix is deleted; etcd
// loses its data. No ping and no route is lost, no host gets another subnet, and every record is written back. A host that
// starts for the first time after a loss waits only until that is done, not for a TTL, which would be too long for this test.
func TestEtcd(t *testing.T) {
	w := newWorld(t, lab.Options{Store: lab.StoreEtcd, Hosts: 4})
	newcomer := w.Hosts[3]
	w.Hosts = w.Hosts[:3]
	w.StartNetwork("vxlan")
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}
	held, err := w.held("default")
	w.Must(err)
	records, err := w.inEtcd()
	w.Must(err)
	w.flannelReads(records)
	w.noConsul()
	client, err := w.Etcd.Client()
	w.Must(err)
	whole := traffic.Watch(w.World)

	t.Log("etcd is killed")
	killed := time.Now()
	w.Must(w.Etcd.Kill())
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusTooManyRequests, `"etcd"`, "not renewed since", "the store is unavailable")
		// On a quiet machine it takes less than the 15 s of the failure-modes page. Only a fault takes a minute.
		if took := w.Noticed(h, "etcd", killed); took > time.Minute {
			t.Errorf("%s noticed the outage only after %s", h.Name, took)
		}
	}
	status, err := w.Hosts[1].Leno(w.Ctx, "status")
	w.Must(err)
	if !strings.Contains(status, "etcd is warning") {
		t.Errorf("leno status while etcd is down:\n%s", status)
	}
	restarted := w.Hosts[2]
	for _, peer := range w.Hosts[:2] { // a process that is killed may lack peers of the last second
		w.Remembered(restarted, peer.Name)
	}
	w.Must(restarted.KillAgent())
	w.Must(restarted.RestartAgent())
	w.WaitHealth(restarted, http.StatusTooManyRequests, "stays in use as the previous process left it", "2 peers in place")
	w.Eventually("20 s to pass", func(context.Context) error {
		if left := 20*time.Second - time.Since(killed); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	for _, h := range w.Hosts[:2] { // a new process is not ready without the store
		if status, _, err := h.Get(w.Ctx, "/readyz"); err != nil || status != http.StatusOK {
			t.Errorf("%s: readyz %d while etcd is down, %v", h.Name, status, err)
		}
	}
	w.Must(w.Etcd.Start(w.Ctx))
	w.heldAsBefore(held, records)

	t.Log("everything below the prefix is deleted")
	_, err = client.Delete(w.Ctx, etcdPrefix, clientv3.WithPrefix())
	w.Must(err)
	w.heldAsBefore(held, records)

	t.Log("etcd loses its data")
	w.Must(w.Etcd.Kill())
	w.Must(w.Etcd.Forget())
	w.Must(w.Etcd.Start(w.Ctx))
	w.heldAsBefore(held, records)
	w.noConsul()

	t.Log("everything below the prefix is deleted again, and a host starts for the first time")
	_, err = client.Delete(w.Ctx, etcdPrefix, clientv3.WithPrefix())
	w.Must(err)
	w.Must(newcomer.StartAgent(newcomer.Config("lease {\n  ttl = \"1h\"\n}", newcomer.Network("default", world.Plan("vxlan")))))
	began := time.Now()
	w.Must(newcomer.WaitReady(w.Ctx))
	t.Logf("the new host is ready after %s", time.Since(began).Round(100*time.Millisecond))
	whole()
}

// flannelReads checks that flannel's own keys contain the network and a lease of every host in flannel's format.
func (w *testWorld) flannelReads(records map[string]string) {
	w.T.Helper()
	var config struct {
		Network, IPv6Network string
		Backend              struct{ Type string }
	}
	w.Must(json.Unmarshal([]byte(records[etcdPrefix+"config"]), &config))
	if config.Network != "10.5.0.0/16" || config.IPv6Network != "fd00:5::/48" || config.Backend.Type != "vxlan" {
		w.T.Errorf("flannel's configuration is %s", records[etcdPrefix+"config"])
	}
	for _, h := range w.Hosts {
		file, err := lab.ReadSubnetFile(h.SubnetFile("default"))
		w.Must(err)
		var subnets []netip.Prefix
		for _, gateway := range file.Subnets() {
			subnets = append(subnets, gateway.Masked())
		}
		var lease struct {
			PublicIP, PublicIPv6 string
			BackendType          string
			BackendData          struct{ VtepMAC string }
		}
		key := etcdPrefix + "subnets/" + flannel.SubnetKey(subnets)
		if err := json.Unmarshal([]byte(records[key]), &lease); err != nil {
			w.T.Errorf("%s: %v", key, err)
		}
		if lease.PublicIP != h.Addrs[0].String() || lease.PublicIPv6 != h.Addrs[1].String() ||
			lease.BackendType != "vxlan" || lease.BackendData.VtepMAC == "" {
			w.T.Errorf("%s is %s", key, records[key])
		}
	}
}

// TestEtcdQuorumLost kills two of three servers of etcd and cuts off the third in turn: neither a packet nor a lease is
// lost. A compaction makes no difference either.
func TestEtcdQuorumLost(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2, Servers: 3, Store: lab.StoreEtcd})
	w.StartNetwork("vxlan")
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}
	held, err := w.held("default")
	w.Must(err)
	records, err := w.inEtcd()
	w.Must(err)
	whole := traffic.Watch(w.World)
	for _, server := range w.EtcdServers[1:] {
		w.Must(server.Kill())
	}
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusTooManyRequests, `"etcd"`)
		if status, _, err := h.Get(w.Ctx, "/readyz"); err != nil || status != http.StatusOK {
			t.Errorf("%s: readyz %d without a quorum, %v", h.Name, status, err)
		}
	}
	w.Must(lab.StartAll(w.Ctx, w.EtcdServers[1:]))
	w.heldAsBefore(held, records)

	client, err := w.EtcdServers[1].Client()
	w.Must(err)
	resp, err := client.Get(w.Ctx, etcdPrefix)
	w.Must(err)
	_, err = client.Compact(w.Ctx, resp.Header.Revision, clientv3.WithCompactPhysical())
	w.Must(err)
	w.Must(w.EtcdServers[0].Cut(w.Ctx))
	w.Eventually("the lease of each host to be renewed without one server", func(ctx context.Context) error {
		for _, h := range w.Hosts {
			if _, err := h.Leno(ctx, "lease", "renew", "default"); err != nil {
				return err
			}
		}
		return nil
	})
	w.Must(w.EtcdServers[0].Mend(w.Ctx))
	w.heldAsBefore(held, records)
	whole()
}

// TestEtcdCommands checks an operator's commands in a lab with etcd.
func TestEtcdCommands(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2, Store: lab.StoreEtcd})
	w.StartNetwork("vxlan")
	a, b := w.Hosts[0], w.Hosts[1]
	w.WaitHealth(a, http.StatusOK)
	w.WaitHealth(b, http.StatusOK)
	run := func(args ...string) string {
		t.Helper()
		out, err := a.Leno(w.Ctx, args...)
		if err != nil {
			t.Errorf("leno %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		if strings.Contains(strings.ToLower(out), "consul") {
			t.Errorf("leno %s names Consul:\n%s", strings.Join(args, " "), out)
		}
		return out
	}
	shows := func(out string, words ...string) {
		t.Helper()
		for _, word := range words {
			if !strings.Contains(out, word) {
				t.Errorf("%q is not in:\n%s", word, out)
			}
		}
	}
	shows(run("status"), "Healthy: ")
	shows(run("doctor"), "etcd at 192.0.2.1:2379 answers", "healthy")
	shows(run("lease", "list"), w.Subnet(a, "default").String(), w.Subnet(b, "default").String(), "held, this host")

	other := w.Definition("other", `  ipv4 { prefix = "10.9.0.0/16" }
  backend "alloc" {}`)
	shows(run("network", "plan", other), "other")
	shows(run("network", "apply", other), "other")
	w.Eventually("the defined network to be listed", func(ctx context.Context) error {
		out, err := a.Leno(ctx, "network", "list")
		if err == nil && (!strings.Contains(out, "default") || !strings.Contains(out, "other")) {
			err = errors.New(out)
		}
		return err
	})
	shows(run("reservation", "add", "-node=host-z", "other", "10.9.3.0/24"), "10.9.3.0/24")
	shows(run("reservation", "list", "other"), "10.9.3.0/24", "host-z")
	run("network", "delete", "other")
	w.Eventually("the deleted network not to be listed", func(ctx context.Context) error {
		out, err := a.Leno(ctx, "network", "list")
		if err == nil && strings.Contains(out, "other") {
			err = errors.New(out)
		}
		return err
	})

	// A reservation and a revocation move the other host.
	old, wanted := w.moveAway(b, "default")
	w.Eventually("the host to move", func(context.Context) error {
		if now := w.Subnet(b, "default"); now != wanted {
			return fmt.Errorf("it has %s, not %s; it had %s", now, wanted, old)
		}
		return nil
	})
	w.WaitHealth(a, http.StatusOK)
	w.WaitHealth(b, http.StatusOK)
	w.noConsul()

	// A network that is defined again has other subnets, and a host may get the one that another
	// host's bridge still has.
	for _, c := range w.Containers {
		w.Must(c.Remove(w.Ctx))
	}
	if _, err := a.Leno(w.Ctx, "network", "delete", "-force", "default"); err != nil {
		t.Error(err)
	}
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusServiceUnavailable, "leno network apply")
		w.waitNoRoutes(h)
	}
	w.Apply("default", world.Plan("vxlan"))
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}

	// Without an agent, these commands use the store themselves, as the user that they are given.
	w.Must(a.StopAgent(w.Ctx))
	etcd, err := w.EtcdServers[0].Client()
	w.Must(err)
	_, err = etcd.UserAdd(w.Ctx, "root", "secret")
	w.Must(err)
	_, err = etcd.UserGrantRole(w.Ctx, "root", "root")
	w.Must(err)
	_, err = etcd.AuthEnable(w.Ctx)
	w.Must(err)
	for _, args := range [][]string{{"doctor"}, {"cleanup", "-dry-run"}} {
		args = append(args, "-config-file", a.ConfigFile())
		const refused = "user name is empty"
		if out, err := a.Leno(w.Ctx, args...); err == nil || !strings.Contains(strings.Join(strings.Fields(out), " "), refused) {
			t.Errorf("leno %q: %v\n%s", args, err, out)
		}
		if out, _ := a.Leno(w.Ctx, append(args, "-token=root:secret")...); strings.Contains(strings.Join(strings.Fields(out), " "), refused) {
			t.Errorf("leno %q as root: \n%s", args, out)
		}
	}
}
