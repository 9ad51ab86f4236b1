package store

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	lenoapi "github.com/lenonet/leno/api"
	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/e2e/traffic"
	"github.com/lenonet/leno/e2e/world"
	"github.com/lenonet/leno/registry"
)

// TestConsulStopped keeps Consul down for longer than any session lives and starts it again: no
// packet is lost, and the health check reports the outage.
func TestConsulStopped(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.StartNetwork("vxlan")
	h := w.Hosts[0]
	before, err := w.held("default")
	w.Must(err)
	stream := traffic.Start(w.World, w.Containers[0], w.Containers[1], 20*time.Millisecond)
	deleted := w.RouteEvents(h)
	w.WaitHealth(h, http.StatusOK)

	w.Must(w.Consul.Stop(w.Ctx))
	stopped := time.Now()
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusTooManyRequests, "not renewed since", "connection refused")
	}
	// After 2×TTL Consul would have ended the sessions.
	w.Eventually("two TTLs to pass", func(context.Context) error {
		if left := 21*time.Second - time.Since(stopped); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	for _, h := range w.Hosts {
		if status, _, err := h.Get(w.Ctx, "/readyz"); err != nil || status != http.StatusOK {
			t.Errorf("%s: readyz %d while Consul is away, %v", h.Name, status, err)
		}
	}
	w.Must(stream.WaitAnswers(w.Ctx, 100))
	w.Must(w.Consul.Start(w.Ctx))
	back := time.Now()
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}
	w.Eventually("every host to hold its subnet", func(context.Context) error {
		now, err := w.held("default")
		if diff := cmp.Diff(before, now); err == nil && diff != "" {
			err = fmt.Errorf("leases (-before +now):\n%s", diff)
		}
		return err
	})
	took := time.Since(back)
	t.Logf("as before %s after Consul had a leader", took)
	// Every agent asks again within 15 s, and no running attempt may delay that.
	if took > time.Minute {
		t.Errorf("as before only %s after Consul had a leader", took)
	}

	w.Must(stream.WaitAnswers(w.Ctx, 10))
	result, err := stream.Stop()
	w.Must(err)
	t.Logf("%d pings, %d lost", result.Sent, result.Lost())
	if result.Lost() != 0 {
		t.Error(result.Losses())
	}
	if gone := deleted(); len(gone) != 0 {
		t.Errorf("routes were deleted: %q", gone)
	}
}

// held returns what each host reports as held in a network: by reporting host, the subnets of each
// holder.
func (w *testWorld) held(network string) (map[string]map[string]string, error) {
	w.T.Helper()
	all := map[string]map[string]string{}
	for _, h := range w.Hosts {
		var list lenoapi.LeaseList
		if err := world.GetJSON(w.Ctx, h, "/v1/network/"+network+"/leases", &list); err != nil {
			return nil, err
		}
		all[h.Name] = map[string]string{"subnet file": w.Subnet(h, network).String()}
		for _, l := range list.Leases {
			if l.Held {
				all[h.Name][l.Node] = fmt.Sprint(l.Subnets)
			}
		}
	}
	return all, nil
}

// TestConsulClientRestarted restarts a host's Consul client agent as systemd does, with SIGTERM.
// That deregisters the node and destroys its session. No host may lose its subnet or a route
// because of it.
func TestConsulClientRestarted(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	for _, h := range w.Hosts {
		w.Must(h.StartConsul(w.Ctx))
	}
	w.StartNetwork("vxlan")
	a, b := w.Hosts[0], w.Hosts[1]
	subnet := w.Subnet(a, "default")
	before := w.Session(a)
	deletedA, deletedB := w.RouteEvents(a), w.RouteEvents(b)
	stream := traffic.Start(w.World, w.Containers[1], w.Containers[0], 10*time.Millisecond)
	w.Must(a.Consul.Stop(w.Ctx))
	w.WaitHealth(a, http.StatusTooManyRequests)
	w.Must(stream.WaitAnswers(w.Ctx, 50))
	w.Must(a.Consul.Start(w.Ctx))
	w.Eventually("the lease to be held by another session", func(context.Context) error {
		if now := w.Session(a); now == "" || now == before {
			return fmt.Errorf("session %q, before %q", now, before)
		}
		return nil
	})
	w.WaitHealth(a, http.StatusOK)
	result, err := stream.Stop()
	w.Must(err)
	if result.Lost() != 0 {
		t.Errorf("%d of %d pings lost", result.Lost(), result.Sent)
	}
	if got := w.Subnet(a, "default"); got != subnet {
		t.Errorf("subnet %s, before %s", got, subnet)
	}
	for _, gone := range [][]string{deletedA(), deletedB()} {
		if len(gone) != 0 {
			t.Errorf("routes were deleted: %q", gone)
		}
	}
	// The service is back with its check on /healthz, which Consul polls.
	w.Eventually("the service to pass", func(context.Context) error {
		checks, _, err := a.Consul.Client().Health().Checks("leno", nil)
		if err != nil {
			return err
		}
		for _, c := range checks {
			if c.Node == a.Name && c.Status == api.HealthPassing {
				if !strings.Contains(c.Output, "/healthz?format=text: 200 OK Output: all checks are passing") {
					return fmt.Errorf("check is not on /healthz: %+v", c)
				}
				return nil
			}
		}
		return fmt.Errorf("%d checks, none passing on %s", len(checks), a.Name)
	})
}

// TestMalformedRecords writes 100 invalid records among the valid ones: each is named, and nothing
// else changes.
func TestMalformedRecords(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.StartNetwork("vxlan")
	before := map[*lab.Host][]string{}
	for _, h := range w.Hosts {
		before[h] = w.Routes(h)
	}
	values := []string{
		``, `null`, `{`, `[]`, `"text"`, "\xff\xfe", `{"version":1}`, `{"version":99}`,
		`{"version":1,"subnet":"10.5.1.0/24","subnets":["10.5.2.0/24"],"node":"x","node_id":"y","public_ip":"192.0.2.77","mtu":1450,"backend":{"type":"vxlan"}}`,
		`{"version":1,"subnet":"0.0.0.0/0","subnets":["0.0.0.0/0"],"node":"x","node_id":"y","public_ip":"192.0.2.77","mtu":1450,"backend":{"type":"vxlan"}}`,
	}
	const steering = "leno/leases/default/\x1b[2J\u202e" // steers terminals
	deleted := w.RouteEvents(w.Hosts[0])
	keys := map[string]bool{}
	var puts, deletes api.TxnOps
	for i := range 100 {
		key := fmt.Sprintf("leno/leases/default/bad-%d", i)
		if i == 1 {
			key = steering
		}
		if i%2 == 0 {
			free := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(255 - i), 0}), 24)
			key = world.LeaseKey("default", free)
			if pair, _, err := w.Consul.Client().KV().Get(key, nil); err != nil || pair != nil {
				continue // a host holds it; a later test overwrites a held one
			}
		}
		puts = append(puts, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: key, Value: []byte(values[i%len(values)])}})
		deletes = append(deletes, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVDelete, Key: key}})
		keys[key] = true
	}
	w.transact(puts)
	for _, h := range w.Hosts {
		w.Eventually("every bad record to be reported on "+h.Name, func(context.Context) error {
			seen := map[string]bool{}
			for _, s := range w.Leases(h, "default").Skipped {
				seen[s.Key] = s.Reason != ""
			}
			for key := range keys {
				if !seen[key] {
					return fmt.Errorf("%d of %d reported, %s is not", len(seen), len(keys), key)
				}
			}
			return nil
		})
		w.WaitHealth(h, http.StatusTooManyRequests, fmt.Sprintf("%d records skipped", len(keys)))
		if got := w.Routes(h); fmt.Sprint(got) != fmt.Sprint(before[h]) {
			t.Errorf("%s: routes %q, before %q", h.Name, got, before[h])
		}
		w.WaitLog(h, slices.DeleteFunc(slices.Collect(maps.Keys(keys)), func(key string) bool { return key == steering })...)
		if text, err := h.Leno(w.Ctx, "lease", "list"); err != nil || strings.ContainsAny(text+h.Agent().Output(), "\x1b\u202e") {
			t.Errorf("%s: %v, or the list or the log steers terminals:\n%q", h.Name, err, text)
		}
	}
	if gone := deleted(); len(gone) != 0 {
		t.Errorf("routes were deleted: %q", gone)
	}
	w.Matrix()
	w.transact(deletes)
	w.WaitHealth(w.Hosts[0], http.StatusOK)
}

// transact changes keys in Consul in one transaction, which may have 128 parts.
func (w *testWorld) transact(ops api.TxnOps) {
	w.T.Helper()
	ok, answer, _, err := w.Consul.Client().Txn().Txn(ops, nil)
	w.Must(err)
	if !ok {
		w.T.Fatalf("%v", answer.Errors)
	}
}

// TestOwnRecordOverwritten overwrites a held lease with garbage: its host restores the record, and
// the peers keep their routes in the meantime.
func TestOwnRecordOverwritten(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	w.StartNetwork("vxlan")
	a := w.Hosts[0]
	subnet := w.Subnet(a, "default")
	key := world.LeaseKey("default", subnet)
	deleted := w.RouteEvents(w.Hosts[1])
	_, err := w.Consul.Client().KV().Put(&api.KVPair{Key: key, Value: []byte("oops")}, nil)
	w.Must(err)
	w.Eventually("the record to be mended", func(context.Context) error {
		pair, _, err := w.Consul.Client().KV().Get(key, nil)
		if err != nil || pair == nil {
			return fmt.Errorf("%v, %v", pair, err)
		}
		if !strings.Contains(string(pair.Value), `"host-a"`) || pair.Session == "" {
			return fmt.Errorf("%s", pair.Value)
		}
		return nil
	})
	w.Settle("default")
	w.Matrix()
	if got := w.Subnet(a, "default"); got != subnet {
		t.Errorf("subnet %s, before %s", got, subnet)
	}
	for _, h := range w.Hosts {
		w.WaitHealth(h, http.StatusOK)
	}
	if gone := deleted(); len(gone) != 0 {
		t.Errorf("routes were deleted: %q", gone)
	}
}

// TestLeaveAndDeath distinguishes a host that leaves from one that dies: peers forget the first at
// once, and the second keeps its subnet and routes for the hold time.
func TestLeaveAndDeath(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.StartNetwork("vxlan")
	a, b, c := w.Hosts[0], w.Hosts[1], w.Hosts[2]
	left, dead := w.Subnet(b, "default"), w.Subnet(c, "default")

	if _, err := b.Leno(w.Ctx, "lease", "release"); err != nil {
		t.Fatal(err)
	}
	w.WaitPeers(a, "default", 1)
	if got := fmt.Sprint(w.Routes(a)); strings.Contains(got, left.String()) || !strings.Contains(got, dead.String()) {
		t.Errorf("routes after host-b left: %s", got)
	}
	if pair, _, err := w.Consul.Client().KV().Get(world.LeaseKey("default", left), nil); err != nil || pair != nil {
		t.Errorf("the lease is still there: %v, %v", pair, err)
	}
	w.Must(b.StopAgent(w.Ctx))

	w.Must(c.KillAgent())
	w.Eventually("the dead host's session to end", func(context.Context) error {
		if s := w.Session(c); s != "" {
			return fmt.Errorf("session %s", s)
		}
		return nil
	})
	w.Eventually("the lease to be seen lapsed", func(context.Context) error {
		for _, l := range w.Leases(a, "default").Leases {
			if l.Node == c.Name && l.Held {
				return fmt.Errorf("%+v", l)
			}
		}
		return nil
	})
	w.WaitPeers(a, "default", 1)
	w.WaitHealth(a, http.StatusOK)
	w.Ping(w.Containers[0], w.Containers[2].Addrs[0]) // the dead host's kernel still forwards
	w.Must(c.RestartAgent())
	w.Must(c.WaitReady(w.Ctx))
	if got := w.Subnet(c, "default"); got != dead {
		t.Errorf("subnet %s after the death, before %s", got, dead)
	}
}

// TestLastSubnet starts two hosts at the same time for the last free subnet.
func TestLastSubnet(t *testing.T) {
	w := newWorld(t, lab.Options{})
	small := `
  ipv4 {
    prefix = "10.5.0.0/22"
    min    = "10.5.1.0"
    max    = "10.5.2.0"
  }
  backend "vxlan" {}`
	config := func(h *lab.Host) string { return h.Config(world.ShortLease, h.Network("default", small)) }
	w.Must(w.Hosts[0].StartAgent(config(w.Hosts[0])))
	w.Must(w.Hosts[0].WaitReady(w.Ctx))
	rivals := w.Hosts[1:]
	for _, h := range rivals {
		w.Must(h.StartAgent(config(h)))
	}
	ready := func(h *lab.Host) bool {
		status, _, err := h.Get(w.Ctx, "/readyz")
		return err == nil && status == http.StatusOK
	}
	w.Eventually("one of two to be ready", func(context.Context) error {
		if !ready(rivals[0]) && !ready(rivals[1]) {
			return fmt.Errorf("neither is")
		}
		return nil
	})
	winner, loser := rivals[0], rivals[1]
	if ready(loser) {
		winner, loser = loser, winner
	}
	w.WaitHealth(loser, http.StatusServiceUnavailable, "network is full", "2 slots: 2 held")
	if ready(loser) {
		t.Error("both got it")
	}
	w.WaitLog(loser, "network is full")
	// The loser continues by itself once there is a free subnet.
	if _, err := winner.Leno(w.Ctx, "lease", "release"); err != nil {
		t.Fatal(err)
	}
	w.Must(loser.WaitReady(w.Ctx))
}

// TestDuplicateHosts starts a second host with the name or the address of a live one: it waits, and
// its error names both.
func TestDuplicateHosts(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	a, b, c := w.Hosts[0], w.Hosts[1], w.Hosts[2]
	network := func(h *lab.Host) string { return h.Network("default", world.Plan("vxlan")) }
	w.Must(a.StartAgent(a.Config(world.ShortLease, network(a))))
	w.Must(a.WaitReady(w.Ctx))

	w.Must(b.StartAgent(strings.Replace(b.Config(world.ShortLease, network(b)), `"host-b"`, `"host-a"`, 1)))
	w.WaitHealth(b, http.StatusServiceUnavailable, "another live host has the same name", a.Addrs[0].String(), b.Addrs[0].String())

	w.Must(c.StartAgent(c.Config(world.ShortLease, fmt.Sprintf("underlay {\n  public_ip = %q\n}", a.Addrs[0]), network(c))))
	w.WaitHealth(c, http.StatusServiceUnavailable, "another live host has the same public address", "host-a", "host-c", a.Addrs[0].String())

	for _, h := range []*lab.Host{b, c} {
		if len(w.Routes(h)) != 0 {
			t.Errorf("%s has routes without a lease: %q", h.Name, w.Routes(h))
		}
	}
	if n := len(w.Leases(a, "default").Leases); n != 1 {
		t.Errorf("%d leases", n)
	}
	w.WaitHealth(a, http.StatusOK)
}

// TestWaiting starts an agent before anything that it needs exists: it waits, reports what it waits
// for, and continues by itself.
func TestWaiting(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 1})
	h := w.Hosts[0]
	w.Must(w.Consul.Stop(w.Ctx))
	w.Must(h.StartAgent(h.Config(world.ShortLease, h.Network("default", ""))))
	w.WaitHealth(h, http.StatusServiceUnavailable, "waiting for the store")
	w.Eventually("status to say what the agent waits for", func(ctx context.Context) error {
		out, err := h.Leno(ctx, "status")
		if err == nil || !strings.Contains(out, "waiting for the store") || !strings.Contains(out, "connection refused") {
			return fmt.Errorf("%v\n%s", err, out)
		}
		return nil
	})
	w.Must(w.Consul.Start(w.Ctx))
	w.WaitHealth(h, http.StatusServiceUnavailable, "waiting for the network to be defined")
	out, err := h.Leno(w.Ctx, "status")
	if err == nil || !strings.Contains(out, "leno network apply") {
		t.Errorf("status does not tell what to do: %v\n%s", err, out)
	}
	n, err := registry.ParseNetwork("default", []byte(`{"version":1,"name":"default","pools":[{"prefix":"10.5.0.0/16"}],"backend":{"type":"vxlan"}}`))
	w.Must(err)
	value, err := registry.FormatNetwork(n)
	w.Must(err)
	_, err = w.Consul.Client().KV().Put(&api.KVPair{Key: "leno/networks/default", Value: value}, nil)
	w.Must(err)
	w.Must(h.WaitReady(w.Ctx))
	// A reload of an unchanged file changes nothing.
	w.Must(h.Agent().Signal(syscall.SIGHUP))
	w.WaitLog(h, "configuration reloaded")
	w.Must(h.WaitReady(w.Ctx))
}

// TestHostCutOff cuts a host off while no request is in progress, so that only its open connections
// can reveal it, and starts another host in the meantime.
func TestHostCutOff(t *testing.T) {
	w := newWorld(t, lab.Options{})
	late := w.Hosts[2]
	for _, h := range w.Hosts {
		if h != late {
			w.Must(h.StartAgent(h.Config(h.Network("default", world.Plan("vxlan")))))
		}
	}
	h := w.Hosts[0]
	w.WaitPeers(h, "default", 1)
	w.WaitPeers(w.Hosts[1], "default", 1)
	w.WaitHealth(h, http.StatusOK)
	subnet, session := w.Subnet(h, "default"), w.Session(h)
	deleted := w.RouteEvents(h)

	cut := time.Now()
	w.Must(h.Cut(w.Ctx))
	w.WaitHealth(h, http.StatusTooManyRequests, "the store is unavailable: dial tcp")
	w.WaitHealth(h, http.StatusTooManyRequests, "peers keep their routes")
	noticed := max(w.Noticed(h, "consul", cut), w.Noticed(h, "snapshot", cut))
	w.Must(late.StartAgent(late.Config(late.Network("default", world.Plan("vxlan")))))
	w.Must(late.WaitReady(w.Ctx))
	w.Must(h.Mend(w.Ctx))
	mended := time.Now()
	w.WaitPeers(h, "default", 2)
	w.WaitHealth(h, http.StatusOK)
	t.Logf("noticed after %s, all as before %s after the return", noticed, time.Since(mended))
	// A blocking query alone would have waited for 75 s.
	if noticed > 70*time.Second {
		t.Errorf("noticed after %s", noticed)
	}
	if gone := deleted(); len(gone) != 0 {
		t.Errorf("routes were deleted: %q", gone)
	}
	if got := w.Subnet(h, "default"); got != subnet {
		t.Errorf("subnet %s, before %s", got, subnet)
	}
	if got := w.Session(h); got != session {
		t.Errorf("session %s, before %s", got, session)
	}
}
