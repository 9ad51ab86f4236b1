package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// catalog is a store with a service catalogue, in whose own agent's eyes this
// host has a name or none.
type catalog struct {
	*outage
	name string

	mu        sync.Mutex
	service   registry.Service
	verdicts  []registry.Verdict
	withdrawn []string
	doubles   []registry.Service
	hangs     bool // in Withdraw
}

func (c *catalog) NodeName(ctx context.Context) (string, error) {
	return c.name, c.call(ctx, "NodeName", func(context.Context) error { return nil })
}

func (c *catalog) Announce(_ context.Context, s registry.Service, v registry.Verdict) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.service, c.verdicts = s, append(c.verdicts, v)
	return nil
}

func (c *catalog) Doubles(_ context.Context, _ registry.Service, meta string) ([]registry.Service, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if meta != nodeIDMeta {
		return nil, fmt.Errorf("asked for %s", meta)
	}
	return c.doubles, nil
}

func (c *catalog) Withdraw(ctx context.Context, s registry.Service) error {
	if c.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.withdrawn = append(c.withdrawn, s.ID)
	return nil
}

func (c *catalog) last() (registry.Service, registry.Verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.verdicts) == 0 {
		return c.service, registry.Verdict{}
	}
	return c.service, c.verdicts[len(c.verdicts)-1]
}

func TestAnnounce(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a")
	c := &catalog{outage: a.registry, name: "here"}
	a.catalog = c
	a.config.Consul.Service = "leno"
	a.config.HTTP.Address = "127.0.0.1:0"
	a.start()
	verdict := func(status, says string) {
		t.Helper()
		eventually(t, func() error {
			if _, v := c.last(); v.Status != status || !strings.Contains(v.Output, says) {
				return fmt.Errorf("verdict %+v", v)
			}
			return nil
		})
	}
	status := func() string { report, _ := a.agent.env.health.Report(); return report.Status }
	a.ready()
	a.check(health.Snapshot, api.Passing)
	verdict(status(), "")
	eventually(t, func() error { // also of what the host got after it was first shown
		if s, _ := c.last(); len(s.Tags) == 0 {
			return fmt.Errorf("no tags: %+v", s)
		}
		return nil
	})
	s, _ := c.last()
	if s.Name != "leno" || s.ID != "leno-a" || s.Address != a.place.Addrs[0] || s.Port == 0 || fmt.Sprint(s.Tags) != "[n]" {
		t.Errorf("%+v", s)
	}
	if want := fmt.Sprintf("http://127.0.0.1:%d/healthz", s.Port); s.HealthURL != want {
		t.Errorf("health at %q, want %q", s.HealthURL, want)
	}
	subnet := a.subnet().String()
	want := map[string]string{"version": "test", "node": "a", "node_id": s.Meta["node_id"], "network": "n", "subnet": subnet, "backend": "recorder",
		"subnet_n": subnet, "backend_n": "recorder"}
	if diff := cmp.Diff(want, s.Meta); diff != "" || s.Meta["node_id"] == "" {
		t.Errorf("meta (-want +got):\n%s", diff)
	}
	a.recorder.setFail(errors.New("no such device"))
	a.kick()
	verdict(api.Critical, "n device: no such device")
}

// TestAnnouncedAnew: when the store was set back, so was its catalogue, though
// the agent's own lease is as it was.
func TestAnnouncedAnew(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a")
	c := &catalog{outage: a.registry, name: "here"}
	a.catalog = c
	a.config.Consul.Service = "leno"
	a.start()
	a.ready()
	a.check(health.Snapshot, api.Passing)
	lease, _, _ := mustRunner(t, a).lease.Get()
	announced := func(again bool) {
		t.Helper()
		eventually(t, func() error {
			if s, _ := c.last(); s.Name == "" || (s.Again != "") != again {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
	}
	announced(false)
	a.store.Restore(a.store.Backup())
	a.rival("b", netip.Prefix{}) // wakes whoever watches
	announced(true)
	if now, _, _ := mustRunner(t, a).lease.Get(); now.ModifyIndex != lease.ModifyIndex {
		t.Errorf("the lease was written again: %+v", now)
	}
}

func TestNotAnnounced(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	c := &catalog{outage: a.registry, name: "here"}
	a.catalog = c
	a.start()
	a.ready()
	must(t, a.stop())
	if s, v := c.last(); s.Name != "" || v.Status != "" {
		t.Errorf("announced without a service name: %+v", s)
	}
}

// TestService: what cannot be polled is fed.
func TestService(t *testing.T) {
	tcp := func(address string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address)) }
	for _, tt := range []struct {
		name    string
		node    string // in the eyes of the store's own agent
		address net.Addr
		tls     bool
		url     string
		port    int
	}{
		{"on this host", "here", tcp("192.0.2.1:5366"), false, "http://192.0.2.1:5366/healthz", 5366},
		{"everywhere", "here", tcp("0.0.0.0:5366"), false, "http://127.0.0.1:5366/healthz", 5366},
		{"everywhere, IPv6", "here", tcp("[::]:5366"), false, "http://127.0.0.1:5366/healthz", 5366},
		{"IPv6", "here", tcp("[::1]:5366"), false, "http://[::1]:5366/healthz", 5366},
		{"store elsewhere", "", tcp("127.0.0.1:5366"), false, "", 5366},
		{"own certificate", "here", tcp("127.0.0.1:5366"), true, "", 5366},
		{"socket", "here", &net.UnixAddr{Name: "/x", Net: "unix"}, false, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, memory.New(), "a")
			h.catalog = &catalog{outage: h.registry, name: tt.node}
			h.config.Consul.Service = "leno"
			if tt.tls {
				h.config.HTTP.TLS.CertFile = "x"
			}
			s, err := h.build().service(context.Background(), tt.address)
			if err != nil || s.HealthURL != tt.url || s.Port != tt.port {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
}

func TestVerdict(t *testing.T) {
	h := health.New(time.Now, nil)
	h.Set("n", health.Lease, api.Passing, "held")
	if v := verdict(first(h.Report())); v.Status != api.Passing || v.Output != "all checks are passing" {
		t.Errorf("%+v", v)
	}
	h.Set("", health.Consul, api.Warning, "away")
	h.Set("n", health.Routes, api.Critical, "broken")
	if v := verdict(first(h.Report())); v.Status != api.Critical || v.Output != "consul: away\nn routes: broken" {
		t.Errorf("%+v", v)
	}
}

func first[A, B any](a A, _ B) A { return a }

func TestSystemd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	var said []string
	until := func(words string) {
		t.Helper()
		must(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		buffer := make([]byte, 4096)
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				t.Fatalf("waiting for %q after %q: %v", words, said, err)
			}
			said = append(said, string(buffer[:n]))
			if strings.Contains(said[len(said)-1], words) {
				return
			}
		}
	}
	ready := func() int { return strings.Count(strings.Join(said, "\n"), "READY=1") }
	a := newHost(t, memory.New(), "a")
	a.placeErr = errors.New("no interface fits")
	a.start()
	until("no interface fits")
	if ready() != 0 {
		t.Errorf("ready at once: %q", said)
	}
	a.move(a.place.Addrs, nil)
	until("READY=1")
	a.recorder.setFail(errors.New("no such device"))
	a.kick()
	until("no such device")
	a.recorder.setFail(nil)
	a.check(health.Routes, api.Passing)
	a.end()
	until("STOPPING=1")
	if ready() != 1 {
		t.Errorf("ready %d times: %q", ready(), said)
	}
	must(t, a.wait())
}

func TestReadyz(t *testing.T) {
	a := newHost(t, memory.New(), "a")
	a.placeErr = errors.New("no interface fits")
	a.start()
	a.check(health.Underlay, api.Critical)
	if code, body := a.request("GET", "/readyz", ""); code != http.StatusServiceUnavailable || !strings.Contains(body, "no interface fits") {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := a.health(); code != http.StatusServiceUnavailable {
		t.Errorf("healthz %d", code)
	}
	a.move(a.place.Addrs, nil)
	a.ready()
	if code, _ := a.request("GET", "/readyz", ""); code != http.StatusOK {
		t.Errorf("%d", code)
	}
}

func TestBadRecordsAreNamed(t *testing.T) {
	store := memory.New()
	a, b := newHost(t, store, "a").start(), newHost(t, store, "b").start()
	a.ready()
	b.ready()
	want := a.subnet().String() + " <- b@" + b.subnet().String()
	a.applies(want)
	a.check(health.Records, api.Passing)
	key := memory.Prefix + "/leases/n/nonsense"
	store.Put(key, []byte("{"))
	a.check(health.Records, api.Warning, "1 record skipped", key)
	a.applies(want)
	list, err := a.client.Leases(context.Background(), "n")
	if err != nil || len(list.Leases) != 2 || len(list.Skipped) != 1 || list.Skipped[0].Key != key {
		t.Errorf("%+v, %v", list, err)
	}
	store.Delete(key)
	a.check(health.Records, api.Passing)

	store.Put(leaseKey(free(a, b)), []byte("{"))
	a.check(health.Records, api.Warning, leaseKey(free(a, b)))
	code, body := a.request("GET", "/v1/network/n/lease/"+registry.SubnetKey(free(a, b)), "")
	if code != http.StatusConflict || !strings.Contains(body, "cannot be used: invalid: unexpected end of JSON input") {
		t.Errorf("%d %s", code, body)
	}
}

// TestWithdraw: the service goes with an agent that was asked to stop, and stays
// with one that a fault ended. Nobody waits long for a store that hangs.
func TestWithdraw(t *testing.T) {
	for _, tt := range []struct {
		name  string
		hangs bool
		fault error
		want  []string
	}{
		{"asked to stop", false, nil, []string{"leno-a"}},
		{"ended by a fault", false, &LostError{Network: "n"}, nil},
		{"the store hangs", true, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := newHost(t, memory.New(), "a")
			c := &catalog{outage: a.registry, name: "here", hangs: tt.hangs}
			a.catalog = c
			a.config.Consul.Service = "leno"
			a.start().ready()
			began := time.Now()
			if tt.fault != nil {
				a.agent.fatal <- tt.fault
			} else {
				a.end()
			}
			if err := a.wait(); !errors.Is(err, tt.fault) {
				t.Errorf("ended with %v", err)
			}
			if took := time.Since(began); took > withdrawTimeout+time.Minute {
				t.Errorf("it took %s to end", took)
			}
			if diff := cmp.Diff(tt.want, c.withdrawn); diff != "" {
				t.Errorf("withdrawn (-want +got):\n%s", diff)
			}
		})
	}
}

// TestWithdrawDoubles: what the agent was shown as under another name goes once it
// is shown under the one it has.
func TestWithdrawDoubles(t *testing.T) {
	t.Parallel()
	a := newHost(t, memory.New(), "a")
	c := &catalog{outage: a.registry, name: "here", doubles: []registry.Service{{Name: "leno", ID: "leno-before"}, {Name: "mesh", ID: "mesh-a"}}}
	a.catalog = c
	a.config.Consul.Service = "leno"
	a.start().ready()
	eventually(t, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if diff := cmp.Diff([]string{"leno-before", "mesh-a"}, c.withdrawn); diff != "" {
			return fmt.Errorf("withdrawn (-want +got):\n%s", diff)
		}
		return nil
	})
}
