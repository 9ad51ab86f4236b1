package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/e2e/lab"
	"github.com/lenonet/leno/registry"
)

// TestConsulStopped keeps Consul away for longer than any session lives and
// brings it back: not a packet is lost, and health tells.
func TestConsulStopped(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.startNetwork("vxlan")
	h := w.Hosts[0]
	before := w.held("default")
	stream, err := w.containers[0].StartPing(w.containers[1].Addrs[0], lab.PingOptions{Interval: 20 * time.Millisecond})
	w.must(err)
	deleted := w.routeEvents(h)
	w.waitHealth(h, http.StatusOK)

	w.must(w.Consul.Stop(w.ctx))
	stopped := time.Now()
	for _, h := range w.Hosts {
		w.waitHealth(h, http.StatusTooManyRequests, "not renewed since", "connection refused")
	}
	// 2×TTL is when Consul would have ended the sessions.
	w.eventually("two TTLs to pass", func(context.Context) error {
		if left := 21*time.Second - time.Since(stopped); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	for _, h := range w.Hosts {
		if status, _, err := h.Get(w.ctx, "/readyz"); err != nil || status != http.StatusOK {
			t.Errorf("%s: readyz %d while Consul is away, %v", h.Name, status, err)
		}
	}
	w.must(w.Consul.Start(w.ctx))
	back := time.Now()
	for _, h := range w.Hosts {
		w.waitHealth(h, http.StatusOK)
	}
	w.eventually("every host to hold its subnet", func(context.Context) error {
		if diff := cmp.Diff(before, w.held("default")); diff != "" {
			return fmt.Errorf("leases (-before +now):\n%s", diff)
		}
		return nil
	})
	took := time.Since(back)
	t.Logf("as before %s after Consul had a leader", took)
	if took > 10*time.Second {
		t.Errorf("as before only %s after Consul had a leader, want 10s", took)
	}

	w.must(stream.WaitAnswers(w.ctx, 10))
	result, err := stream.Stop(w.ctx)
	w.must(err)
	t.Logf("%d pings, %d lost", result.Sent, result.Lost())
	if result.Sent < 900 || result.Lost() != 0 {
		t.Errorf("%d of %d pings lost: %v", result.Lost(), result.Sent, result.Missing)
	}
	if gone := deleted(); len(gone) != 0 {
		t.Errorf("routes were deleted: %q", gone)
	}
}

// held are the leases of a network that each host says are held, by the hosts that
// say so and those that hold them.
func (w *world) held(network string) map[string]map[string]string {
	w.t.Helper()
	all := map[string]map[string]string{}
	for _, h := range w.Hosts {
		all[h.Name] = map[string]string{"subnet file": w.subnet(h, network).String()}
		for _, l := range w.leases(h, network).Leases {
			if l.Held {
				all[h.Name][l.Node] = fmt.Sprint(l.Subnets)
			}
		}
	}
	return all
}

// TestConsulClientRestarted restarts the Consul client agent of a host as
// systemd does, with SIGTERM. That deregisters the node and destroys its
// session, which must cost neither the subnet nor a route anywhere.
func TestConsulClientRestarted(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	for _, h := range w.Hosts {
		w.must(h.StartConsul(w.ctx))
	}
	w.startNetwork("vxlan")
	a, b := w.Hosts[0], w.Hosts[1]
	subnet := w.subnet(a, "default")
	before := w.session(a)
	deletedA, deletedB := w.routeEvents(a), w.routeEvents(b)
	stream, err := w.containers[1].StartPing(w.containers[0].Addrs[0], lab.PingOptions{})
	w.must(err)
	w.must(a.Consul.Stop(w.ctx))
	w.waitHealth(a, http.StatusTooManyRequests)
	w.must(stream.WaitAnswers(w.ctx, 50))
	w.must(a.Consul.Start(w.ctx))
	w.eventually("the lease to be held by another session", func(context.Context) error {
		if now := w.session(a); now == "" || now == before {
			return fmt.Errorf("session %q, before %q", now, before)
		}
		return nil
	})
	w.waitHealth(a, http.StatusOK)
	result, err := stream.Stop(w.ctx)
	w.must(err)
	if result.Lost() != 0 {
		t.Errorf("%d of %d pings lost", result.Lost(), result.Sent)
	}
	if got := w.subnet(a, "default"); got != subnet {
		t.Errorf("subnet %s, before %s", got, subnet)
	}
	for _, gone := range [][]string{deletedA(), deletedB()} {
		if len(gone) != 0 {
			t.Errorf("routes were deleted: %q", gone)
		}
	}
	// The service is back with its check on /healthz, which Consul polls.
	w.eventually("the service to pass", func(context.Context) error {
		checks, _, err := a.Consul.Client().Health().Checks("leno", nil)
		if err != nil {
			return err
		}
		for _, c := range checks {
			if c.Node == a.Name && c.Status == api.HealthPassing {
				if !strings.Contains(c.Definition.HTTP, "/healthz") && !strings.Contains(c.Output, "/healthz") {
					return fmt.Errorf("check is not on /healthz: %+v", c)
				}
				return nil
			}
		}
		return fmt.Errorf("%d checks, none passing on %s", len(checks), a.Name)
	})
}

// session is the one that holds the host's lease in Consul, "" for none.
func (w *world) session(h *lab.Host) string {
	w.t.Helper()
	pair, _, err := w.Consul.Client().KV().Get(leaseKey("default", w.subnet(h, "default")), &api.QueryOptions{RequireConsistent: true})
	w.must(err)
	if pair == nil {
		return ""
	}
	return pair.Session
}

// TestMalformedRecords writes 100 records that cannot be used among the good
// ones: nothing changes but that each is named.
func TestMalformedRecords(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.startNetwork("vxlan")
	before := map[*lab.Host][]string{}
	for _, h := range w.Hosts {
		before[h] = w.routes(h)
	}
	values := []string{
		``, `null`, `{`, `[]`, `"text"`, "\xff\xfe", `{"version":1}`, `{"version":99}`,
		`{"version":1,"subnet":"10.5.1.0/24","subnets":["10.5.2.0/24"],"node":"x","node_id":"y","public_ip":"192.0.2.77","mtu":1450,"backend":{"type":"vxlan"}}`,
		`{"version":1,"subnet":"0.0.0.0/0","subnets":["0.0.0.0/0"],"node":"x","node_id":"y","public_ip":"192.0.2.77","mtu":1450,"backend":{"type":"vxlan"}}`,
	}
	deleted := w.routeEvents(w.Hosts[0])
	keys := map[string]bool{}
	for i := range 100 {
		key := fmt.Sprintf("leno/leases/default/bad-%d", i)
		if i%2 == 0 {
			free := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(255 - i), 0}), 24)
			key = leaseKey("default", free)
			if pair, _, err := w.Consul.Client().KV().Get(key, nil); err != nil || pair != nil {
				continue // a host holds it: a later test overwrites a held one
			}
		}
		_, err := w.Consul.Client().KV().Put(&api.KVPair{Key: key, Value: []byte(values[i%len(values)])}, nil)
		w.must(err)
		keys[key] = true
	}
	for _, h := range w.Hosts {
		w.eventually("every bad record to be reported on "+h.Name, func(context.Context) error {
			seen := map[string]bool{}
			for _, s := range w.leases(h, "default").Skipped {
				seen[s.Key] = s.Reason != ""
			}
			for key := range keys {
				if !seen[key] {
					return fmt.Errorf("%d of %d reported, %s is not", len(seen), len(keys), key)
				}
			}
			return nil
		})
		w.waitHealth(h, http.StatusTooManyRequests, fmt.Sprintf("%d records skipped", len(keys)))
		if got := w.routes(h); fmt.Sprint(got) != fmt.Sprint(before[h]) {
			t.Errorf("%s: routes %q, before %q", h.Name, got, before[h])
		}
		for key := range keys {
			if !strings.Contains(h.Agent().Output(), key) {
				t.Errorf("%s: the log does not name %s", h.Name, key)
			}
		}
	}
	if gone := deleted(); len(gone) != 0 {
		t.Errorf("routes were deleted: %q", gone)
	}
	w.matrix()
	for key := range keys {
		_, err := w.Consul.Client().KV().Delete(key, nil)
		w.must(err)
	}
	w.waitHealth(w.Hosts[0], http.StatusOK)
}

// TestOwnRecordOverwritten writes garbage over a held lease: its host writes
// it again, and the peers keep their routes meanwhile.
func TestOwnRecordOverwritten(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 2})
	w.startNetwork("vxlan")
	a := w.Hosts[0]
	subnet := w.subnet(a, "default")
	key := leaseKey("default", subnet)
	deleted := w.routeEvents(w.Hosts[1])
	_, err := w.Consul.Client().KV().Put(&api.KVPair{Key: key, Value: []byte("oops")}, nil)
	w.must(err)
	w.eventually("the record to be mended", func(context.Context) error {
		pair, _, err := w.Consul.Client().KV().Get(key, nil)
		if err != nil || pair == nil {
			return fmt.Errorf("%v, %v", pair, err)
		}
		if !strings.Contains(string(pair.Value), `"host-a"`) || pair.Session == "" {
			return fmt.Errorf("%s", pair.Value)
		}
		return nil
	})
	w.settle("default")
	w.matrix()
	if got := w.subnet(a, "default"); got != subnet {
		t.Errorf("subnet %s, before %s", got, subnet)
	}
	for _, h := range w.Hosts {
		w.waitHealth(h, http.StatusOK)
	}
	if gone := deleted(); len(gone) != 0 {
		t.Errorf("routes were deleted: %q", gone)
	}
}

// TestLeaveAndDeath tells a host that leaves from one that dies: the first is
// forgotten at once, the other keeps its subnet and routes for hold.
func TestLeaveAndDeath(t *testing.T) {
	w := newWorld(t, lab.Options{})
	w.startNetwork("vxlan")
	a, b, c := w.Hosts[0], w.Hosts[1], w.Hosts[2]
	left, dead := w.subnet(b, "default"), w.subnet(c, "default")

	if _, err := b.Leno(w.ctx, "lease", "release"); err != nil {
		t.Fatal(err)
	}
	w.waitPeers(a, "default", 1)
	if got := fmt.Sprint(w.routes(a)); strings.Contains(got, left.String()) || !strings.Contains(got, dead.String()) {
		t.Errorf("routes after host-b left: %s", got)
	}
	if pair, _, err := w.Consul.Client().KV().Get(leaseKey("default", left), nil); err != nil || pair != nil {
		t.Errorf("the lease is still there: %v, %v", pair, err)
	}
	w.must(b.StopAgent(w.ctx))

	w.must(c.KillAgent())
	w.eventually("the dead host's session to end", func(context.Context) error {
		if s := w.session(c); s != "" {
			return fmt.Errorf("session %s", s)
		}
		return nil
	})
	w.eventually("the lease to be seen lapsed", func(context.Context) error {
		for _, l := range w.leases(a, "default").Leases {
			if l.Node == c.Name && l.Held {
				return fmt.Errorf("%+v", l)
			}
		}
		return nil
	})
	w.waitPeers(a, "default", 1)
	w.waitHealth(a, http.StatusOK)
	w.ping(w.containers[0], w.containers[2].Addrs[0]) // its kernel still carries
	w.must(c.RestartAgent())
	w.must(c.WaitReady(w.ctx))
	if got := w.subnet(c, "default"); got != dead {
		t.Errorf("subnet %s after the death, before %s", got, dead)
	}
}

// TestLastSubnet starts two hosts at once for the one subnet that is left.
func TestLastSubnet(t *testing.T) {
	w := newWorld(t, lab.Options{})
	small := `
  ipv4 {
    prefix = "10.5.0.0/22"
    min    = "10.5.1.0"
    max    = "10.5.2.0"
  }
  backend "vxlan" {}`
	config := func(h *lab.Host) string { return h.Config(shortLease, h.Network("default", small)) }
	w.must(w.Hosts[0].StartAgent(config(w.Hosts[0])))
	w.must(w.Hosts[0].WaitReady(w.ctx))
	rivals := w.Hosts[1:]
	for _, h := range rivals {
		w.must(h.StartAgent(config(h)))
	}
	ready := func(h *lab.Host) bool {
		status, _, err := h.Get(w.ctx, "/readyz")
		return err == nil && status == http.StatusOK
	}
	w.eventually("one of two to be ready", func(context.Context) error {
		if !ready(rivals[0]) && !ready(rivals[1]) {
			return fmt.Errorf("neither is")
		}
		return nil
	})
	winner, loser := rivals[0], rivals[1]
	if ready(loser) {
		winner, loser = loser, winner
	}
	w.waitHealth(loser, http.StatusServiceUnavailable, "network is full", "2 slots: 2 held")
	if ready(loser) {
		t.Error("both got it")
	}
	if !strings.Contains(loser.Agent().Output(), "network is full") {
		t.Error("the log does not say that the network is full")
	}
	// The loser goes on by itself once there is room.
	if _, err := winner.Leno(w.ctx, "lease", "release"); err != nil {
		t.Fatal(err)
	}
	w.must(loser.WaitReady(w.ctx))
}

// TestDuplicateHosts starts a second host with the name or the address of a
// living one: it waits, and its error names both.
func TestDuplicateHosts(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 3})
	a, b, c := w.Hosts[0], w.Hosts[1], w.Hosts[2]
	network := func(h *lab.Host) string { return h.Network("default", plan("vxlan")) }
	w.must(a.StartAgent(a.Config(shortLease, network(a))))
	w.must(a.WaitReady(w.ctx))

	w.must(b.StartAgent(strings.Replace(b.Config(shortLease, network(b)), `"host-b"`, `"host-a"`, 1)))
	w.waitHealth(b, http.StatusServiceUnavailable, "another live host has the same name", a.Addrs[0].String(), b.Addrs[0].String())

	w.must(c.StartAgent(c.Config(shortLease, fmt.Sprintf("underlay {\n  public_ip = %q\n}", a.Addrs[0]), network(c))))
	w.waitHealth(c, http.StatusServiceUnavailable, "another live host has the same public address", "host-a", "host-c", a.Addrs[0].String())

	for _, h := range []*lab.Host{b, c} {
		if len(w.routes(h)) != 0 {
			t.Errorf("%s has routes without a lease: %q", h.Name, w.routes(h))
		}
	}
	if n := len(w.leases(a, "default").Leases); n != 1 {
		t.Errorf("%d leases", n)
	}
	w.waitHealth(a, http.StatusOK)
}

// TestWaiting starts an agent before anything it needs is there: it waits, says
// for what, and goes on by itself.
func TestWaiting(t *testing.T) {
	w := newWorld(t, lab.Options{Hosts: 1})
	h := w.Hosts[0]
	w.must(w.Consul.Stop(w.ctx))
	w.must(h.StartAgent(h.Config(shortLease, h.Network("default", ""))))
	w.waitHealth(h, http.StatusServiceUnavailable, "waiting for the store")
	if out, err := h.Leno(w.ctx, "status"); err == nil || !strings.Contains(out, "waiting for the store") || !strings.Contains(out, "connection refused") {
		t.Errorf("status does not say what the agent waits for: %v\n%s", err, out)
	}
	w.must(w.Consul.Start(w.ctx))
	w.waitHealth(h, http.StatusServiceUnavailable, "waiting for the network to be defined")
	out, err := h.Leno(w.ctx, "status")
	if err == nil || !strings.Contains(out, "leno network apply") {
		t.Errorf("status does not tell what to do: %v\n%s", err, out)
	}
	n, err := registry.ParseNetwork("default", []byte(`{"version":1,"name":"default","pools":[{"prefix":"10.5.0.0/16"}],"backend":{"type":"vxlan"}}`))
	w.must(err)
	value, err := registry.FormatNetwork(n)
	w.must(err)
	_, err = w.Consul.Client().KV().Put(&api.KVPair{Key: "leno/networks/default", Value: value}, nil)
	w.must(err)
	w.must(h.WaitReady(w.ctx))
	// SIGHUP with a broken file changes nothing.
	w.must(h.Agent().Signal(syscall.SIGHUP))
	w.eventually("the reload", func(context.Context) error {
		if !strings.Contains(h.Agent().Output(), "configuration reloaded") {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	w.must(h.WaitReady(w.ctx))
}

// TestHostCutOff cuts a host off while nothing is under way, so that only its
// connections can tell, and lets another host come meanwhile.
func TestHostCutOff(t *testing.T) {
	w := newWorld(t, lab.Options{})
	late := w.Hosts[2]
	for _, h := range w.Hosts {
		if h != late {
			w.must(h.StartAgent(h.Config(h.Network("default", plan("vxlan")))))
		}
	}
	h := w.Hosts[0]
	w.waitPeers(h, "default", 1)
	w.waitPeers(w.Hosts[1], "default", 1)
	w.waitHealth(h, http.StatusOK)
	subnet, session := w.subnet(h, "default"), w.session(h)
	deleted := w.routeEvents(h)

	w.must(h.Cut(w.ctx))
	cut := time.Now()
	w.waitHealth(h, http.StatusTooManyRequests, "watch networks")
	w.waitHealth(h, http.StatusTooManyRequests, "peers keep their routes")
	noticed := time.Since(cut)
	w.must(late.StartAgent(late.Config(late.Network("default", plan("vxlan")))))
	w.must(late.WaitReady(w.ctx))
	w.must(h.Mend(w.ctx))
	mended := time.Now()
	w.waitPeers(h, "default", 2)
	w.waitHealth(h, http.StatusOK)
	t.Logf("noticed after %s, all as before %s after the return", noticed, time.Since(mended))
	// A blocking query alone would have waited for 75 s.
	if noticed > 40*time.Second {
		t.Errorf("noticed after %s", noticed)
	}
	if gone := deleted(); len(gone) != 0 {
		t.Errorf("routes were deleted: %q", gone)
	}
	if got := w.subnet(h, "default"); got != subnet {
		t.Errorf("subnet %s, before %s", got, subnet)
	}
	if got := w.session(h); got != session {
		t.Errorf("session %s, before %s", got, session)
	}
}
