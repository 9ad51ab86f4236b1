package consul

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/lenonet/leno/registry"
)

// announcer returns a client and the number of its registrations.
func announcer(t *testing.T, s *server) (c *Client, registrations *atomic.Int64) {
	t.Helper()
	registrations = new(atomic.Int64)
	addr := proxy(t, s, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.URL.Path == "/v1/agent/service/register" {
			registrations.Add(1)
		}
		pass.ServeHTTP(w, r)
	})
	return s.client(t, "leno", func(c *Config) { c.Address = addr }), registrations
}

func check(t *testing.T, s *server, id string) *api.AgentCheck {
	t.Helper()
	checks, err := s.admin.Agent().ChecksWithFilter(`ServiceID == "` + id + `"`)
	if err != nil {
		t.Fatal(err)
	}
	if len(checks) > 1 {
		t.Fatalf("checks %v", checks)
	}
	return checks["service:"+id]
}

func TestAnnounce(t *testing.T) {
	t.Parallel()
	s := common.get(t)
	c, registrations := announcer(t, s)
	ctx := testContext(t)
	health := httptest.NewServer(http.NotFoundHandler())
	defer health.Close()
	service := registry.Service{Name: "leno", ID: "leno-announce", Address: netip.MustParseAddr("192.0.2.7"), Port: 5366,
		HealthURL: health.URL + "/healthz", Tags: []string{"a"}, Meta: map[string]string{"version": "1"}}
	announce := func(v string) {
		t.Helper()
		if err := c.Announce(ctx, service, registry.Verdict{Status: v}); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		name   string
		change func()
		writes bool
	}{
		{"first", func() {}, true},
		{"again", func() {}, false},
		{"other port", func() { service.Port = 5367 }, true},
		{"other address", func() { service.Address = netip.Addr{} }, true},
		{"other tags", func() { service.Tags = nil }, true},
		{"other meta", func() { service.Meta = map[string]string{"version": "2"} }, true},
		{"no meta", func() { service.Meta = nil }, true},
		{"still", func() {}, false},
		{"other health url", func() { service.HealthURL = health.URL + "/other" }, true},
		{"to a ttl check", func() { service.HealthURL = "" }, true},
		{"the ttl check stays", func() {}, false},
		{"back", func() { service.HealthURL = health.URL + "/healthz" }, true},
		{"deregistered by another program", func() {
			if err := s.admin.Agent().ServiceDeregister(service.ID); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"check deregistered by another program", func() {
			if err := s.admin.Agent().CheckDeregister("service:" + service.ID); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"in the end", func() {}, false},
	} {
		before := registrations.Load()
		step.change()
		announce("passing")
		if wrote := registrations.Load() - before; wrote > 1 || wrote == 1 != step.writes {
			t.Errorf("%s: registered %d times, want %v", step.name, wrote, step.writes)
		}
		got, _, err := s.admin.Agent().Service(service.ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		address := ""
		if service.Address.IsValid() {
			address = service.Address.String()
		}
		if got.Service != "leno" || got.Port != service.Port || got.Address != address ||
			len(got.Tags) != len(service.Tags) || len(got.Meta) != len(service.Meta) || got.Meta["version"] != service.Meta["version"] {
			t.Errorf("%s: got %+v, want %+v", step.name, got, service)
		}
		ch := check(t, s, service.ID)
		switch {
		case ch == nil:
			t.Errorf("%s: no check", step.name)
		case service.HealthURL == "" && ch.Type != "ttl", service.HealthURL != "" && (ch.Type != "http" || ch.Notes != "polls "+service.HealthURL+" every 10s"):
			t.Errorf("%s: check %+v", step.name, ch)
		}
	}
	for range 2 {
		if err := c.Withdraw(ctx, service); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.admin.Agent().Service(service.ID, nil); !errors.As(err, new(api.StatusError)) {
		t.Errorf("withdrawn: %v", err)
	}
}

// TestAnnounceBehindBalancer: each connection leads to the next Consul agent, and is cut after a while. The service is at
// one of them only, and nowhere in the end.
func TestAnnounceBehindBalancer(t *testing.T) {
	t.Parallel()
	servers := []*server{newServer(t, ""), newServer(t, "")}
	balancer := newBalancer(t, servers[0].addr, servers[1].addr)
	service := registry.Service{Name: "leno", ID: "leno-balanced"}
	entries := func() (n int) {
		t.Helper()
		for _, s := range servers {
			if _, _, err := s.admin.Agent().Service(service.ID, nil); err == nil {
				n++
			} else if !errors.As(err, new(api.StatusError)) {
				t.Fatal(err)
			}
		}
		return n
	}
	ctx := testContext(t)
	var c *Client
	for i := range 6 {
		if i%3 == 0 { // the agent starts again
			c = servers[0].client(t, "leno", func(c *Config) { c.Address = balancer.addr() })
		}
		if err := c.Announce(ctx, service, registry.Verdict{Status: "passing"}); err != nil {
			t.Fatal(err)
		}
		if n := entries(); n != 1 {
			t.Fatalf("round %d: %d entries", i, n)
		}
		balancer.cut()
	}
	if err := c.Withdraw(ctx, service); err != nil {
		t.Fatal(err)
	}
	if n := entries(); n != 0 {
		t.Errorf("%d entries in the end", n)
	}
}

// A balancer passes connections to servers in turn.
type balancer struct {
	net.Listener
	mu   sync.Mutex
	open []net.Conn
}

func newBalancer(t *testing.T, servers ...string) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{Listener: l}
	var all sync.WaitGroup
	all.Go(func() {
		for i := 0; ; i++ {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", servers[i%len(servers)])
			if err != nil {
				_ = client.Close()
				continue
			}
			b.mu.Lock()
			b.open = append(b.open, client, server)
			b.mu.Unlock()
			for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
				all.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		b.cut()
		all.Wait()
	})
	return b
}

func (b *balancer) addr() string { return b.Addr().String() }

// cut ends all connections.
func (b *balancer) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, conn := range b.open {
		_ = conn.Close()
	}
	b.open = nil
}

// TestAnnounceAgain: a restore removes the service from the catalogue, and the local agent, which still has it, does
// not notice.
func TestAnnounceAgain(t *testing.T) {
	t.Parallel()
	server := newServer(t, "")
	snapshot, _, err := server.admin.Snapshot().Save(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Close()
	c := server.client(t, "leno")
	service := registry.Service{Name: "leno", ID: "leno-again"}
	announced := func() (services, checks int) {
		t.Helper()
		if err := c.Announce(testContext(t), service, registry.Verdict{Status: "passing"}); err != nil {
			t.Fatal(err)
		}
		consistent := &api.QueryOptions{RequireConsistent: true}
		found, _, err := server.admin.Catalog().Service("leno", "", consistent)
		if err != nil {
			t.Fatal(err)
		}
		polled, _, err := server.admin.Health().Checks("leno", consistent)
		if err != nil {
			t.Fatal(err)
		}
		return len(found), len(polled)
	}
	both := func() bool { services, checks := announced(); return services == 1 && checks == 1 }
	eventually(t, "the service is in the catalogue", both)
	if err := server.admin.Snapshot().Restore(nil, snapshot); err != nil {
		t.Fatal(err)
	}
	// Unless the local agent compares itself with the catalogue at this moment, the service is missing now.
	service.Epoch = "2026-01-02T03:04:05Z"
	eventually(t, "the service is in the catalogue again", both)
}

// TestAnnounceNotPolled: Announce reports that Consul cannot reach the URL, but not that it answers with a fault. The
// service then takes a TTL check.
func TestAnnounceNotPolled(t *testing.T) {
	t.Parallel()
	s := common.get(t)
	c, _ := announcer(t, s)
	faulty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no lease", http.StatusServiceUnavailable) }))
	defer faulty.Close()
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	passing := registry.Verdict{Status: "passing"}
	for id, url := range map[string]string{"leno-faulty": faulty.URL, "leno-closed": closed.URL} {
		service := registry.Service{Name: "leno", ID: id, HealthURL: url + "/healthz"}
		if err := c.Announce(testContext(t), service, passing); err != nil {
			t.Fatal(err)
		}
		eventually(t, id+" to be polled", func() bool { return check(t, s, id).Status == "critical" })
		err := c.Announce(testContext(t), service, passing)
		if errors.Is(err, registry.ErrNotPolled) != (id == "leno-closed") || err != nil && !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%s: %v", id, err)
		}
		service.HealthURL = ""
		if err := c.Announce(testContext(t), service, passing); err != nil || check(t, s, id).Status != "passing" {
			t.Errorf("%s with a TTL check: %v, %+v", id, err, check(t, s, id))
		}
		if err := c.Withdraw(testContext(t), service); err != nil {
			t.Error(err)
		}
	}
}

func TestAnnounceTTL(t *testing.T) {
	t.Parallel()
	s := common.get(t)
	c, registrations := announcer(t, s)
	service := registry.Service{Name: "leno", ID: "leno-ttl"}
	for _, v := range []registry.Verdict{{Status: "passing"}, {Status: "warning", Output: "not renewing"}, {Status: "critical", Output: "no lease"}, {Status: "passing", Output: "ok"}} {
		if err := c.Announce(testContext(t), service, v); err != nil {
			t.Fatal(err)
		}
		if got := check(t, s, service.ID); got == nil || got.Status != v.Status || got.Output != v.Output {
			t.Errorf("check %+v, want %+v", got, v)
		}
	}
	if n := registrations.Load(); n != 1 {
		t.Errorf("registered %d times", n)
	}
	if err := c.Withdraw(testContext(t), service); err != nil {
		t.Fatal(err)
	}
}

// TestMembers: the Consul agent on this host says which hosts it knows, as far as the token may see them. One on another host
// is not asked.
func TestMembers(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	node, err := s.open(t).NodeName(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	blind, _ := s.newToken(t, `key_prefix "leno/" { policy = "read" }`)
	sees, _ := s.newToken(t, `node_prefix "" { policy = "read" }`)
	for token, want := range map[string]int{blind: 0, sees: 1} {
		got, err := s.open(t, func(c *Config) { c.Token = token }).Members(testContext(t))
		got = slices.DeleteFunc(got, func(m registry.Member) bool { return m.Node != node }) // agents of other tests
		if err != nil || len(got) != want {
			t.Errorf("%+v, %v, want %d", got, err, want)
		}
		for _, m := range got {
			if !m.Addr.IsLoopback() || m.Status != registry.MemberAlive {
				t.Errorf("%+v", m)
			}
		}
	}
	if got, err := s.open(t, func(c *Config) { c.Address = "192.0.2.1:8500" }).Members(testContext(t)); got != nil || err != nil {
		t.Errorf("of a Consul agent elsewhere: %+v, %v", got, err)
	}
}

// TestFailedMember: the other Consul agents say soon that one has failed, and one that left is not taken for failed.
func TestFailedMember(t *testing.T) {
	t.Parallel()
	s := newServer(t, "")
	join := func() *server {
		local, err := configureServer(t.TempDir(), `retry_join = ["`+s.serf+`"]  leave_on_terminate = true`, false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(local.kill)
		if err := local.start(); err != nil {
			t.Fatal(err)
		}
		return local
	}
	c := s.client(t, "leno")
	shows := func(local *server, status string) {
		t.Helper()
		name := strings.Replace(local.addr, "127.0.0.1:", "node-", 1)
		eventually(t, name+" to be "+status, func() bool {
			members, err := c.Members(testContext(t))
			return err == nil && slices.Contains(members, registry.Member{Node: name, Addr: netip.MustParseAddr("127.0.0.1"), Status: status})
		})
	}
	killed, leaving := join(), join()
	shows(killed, registry.MemberAlive)
	shows(leaving, registry.MemberAlive)
	killed.kill()
	if err := leaving.process.Stop(); err != nil {
		t.Fatal(err)
	}
	shows(leaving, registry.MemberLeft)
	shows(killed, registry.MemberFailed)
}
