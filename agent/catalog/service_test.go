package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// A fake is a catalogue that notes the calls.
type fake struct {
	registry.Catalog
	mu         sync.Mutex
	service    registry.Service
	verdict    registry.Verdict
	writes     int
	withdrawn  []string
	duplicates []registry.Service
	hangs      bool // in Withdraw
	err        error
	unpolled   bool // HealthURL cannot be reached
}

func (f *fake) Announce(_ context.Context, s registry.Service, v registry.Verdict) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.service, f.verdict = s, v
	f.writes++
	if f.unpolled && s.HealthURL != "" {
		return fmt.Errorf("%w: connection refused", registry.ErrNotPolled)
	}
	return f.err
}

func (f *fake) Duplicates(_ context.Context, _ registry.Service, meta string) ([]registry.Service, error) {
	if meta != "node_id" {
		return nil, fmt.Errorf("asked for %s", meta)
	}
	return f.duplicates, nil
}

func (f *fake) Withdraw(ctx context.Context, s registry.Service) error {
	if f.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	f.withdrawn = append(f.withdrawn, s.ID)
	return nil
}

// A host is an agent of which nothing but its registration runs.
type host struct {
	*Registration
	catalog *fake
	health  *health.Board

	mu   sync.Mutex
	said Description
	errs []error
}

func newHost() *host {
	h := &host{
		catalog: &fake{},
		health:  health.New(time.Now, nil),
		said: Description{
			Service: "leno",
			Node:    "a",
			NodeID:  "id-a",
			Version: "1.2.3",
			Address: netip.MustParseAddr("192.0.2.1"),
		},
	}
	h.Registration = &Registration{
		Log:      hclog.NewNullLogger(),
		Catalog:  h.catalog,
		Listener: &net.UnixAddr{Name: "/x", Net: "unix"},
		Describe: func() Description {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.said
		},
		Health:  h.health.Report,
		Outage:  retry.NewOutageDetector(nil, func(error) retry.Class { return retry.Transient }),
		SetBack: watch.New[struct{}](),
		Count:   func(err error) { h.errs = append(h.errs, err) },
	}
	return h
}

// run runs the registration during f, in which time passes only where f waits.
func (h *host) run(t *testing.T, f func(after func(time.Duration) (registry.Service, registry.Verdict))) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.Run(ctx)
	}()
	f(func(d time.Duration) (registry.Service, registry.Verdict) {
		time.Sleep(d)
		synctest.Wait()
		h.catalog.mu.Lock()
		defer h.catalog.mu.Unlock()
		return h.catalog.service, h.catalog.verdict
	})
	cancel()
	<-ended
}

// TestRun follows the entry of one agent.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		h.run(t, func(after func(time.Duration) (registry.Service, registry.Verdict)) {
			s, v := after(0)
			if s.Name != "leno" || s.ID != "leno-a" || s.Address != h.said.Address || s.Epoch != "" {
				t.Errorf("%+v", s)
			}
			if v.Status != api.Passing || v.Output != "all checks are passing" {
				t.Errorf("%+v", v)
			}
			if diff := cmp.Diff(map[string]string{"version": "1.2.3", "node": "a", "node_id": "id-a"}, s.Meta); diff != "" {
				t.Errorf("meta (-want +got):\n%s", diff)
			}

			h.health.Set("", health.Consul, api.Warning, "away")
			h.health.Set("n", health.Routes, api.Critical, "broken")
			if _, v := after(settleTime); v.Status != api.Critical || v.Output != "consul: away\nn routes: broken" {
				t.Errorf("%+v", v)
			}
			if h.catalog.writes != 2 {
				t.Errorf("%d writes for two changes at once", h.catalog.writes-1)
			}
			after(refreshInterval - settleTime)
			if after(settleTime); h.catalog.writes != 3 {
				t.Errorf("%d writes in a quiet time", h.catalog.writes-2)
			}

			h.SetBack.Set(struct{}{})
			if s, _ := after(spread); s.Epoch == "" {
				t.Error("a catalogue that was set back is not told")
			}
			before := h.catalog.writes
			h.Outage.Wake()
			if after(spread); h.catalog.writes != before+1 {
				t.Errorf("%d writes after the store returned", h.catalog.writes-before)
			}
		})
		if len(h.errs) != h.catalog.writes || errors.Join(h.errs...) != nil {
			t.Errorf("counted %v", h.errs)
		}
		if len(h.catalog.withdrawn) > 0 {
			t.Errorf("withdrawn: %q", h.catalog.withdrawn)
		}
	})
}

// TestRename: a reload may change the service's name, and turn it off.
func TestRename(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		rename := func(service string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.said.Service = service
		}
		h.run(t, func(after func(time.Duration) (registry.Service, registry.Verdict)) {
			after(0)
			rename("weave")
			if s, _ := after(refreshInterval); s.Name != "weave" || s.ID != "weave-a" {
				t.Errorf("%+v", s)
			}
			rename("")
			after(refreshInterval)
		})
		if !slices.Equal(h.catalog.withdrawn, []string{"leno-a", "weave-a"}) || h.catalog.writes != 2 {
			t.Errorf("%d written, withdrawn %q", h.catalog.writes, h.catalog.withdrawn)
		}
		h.Withdraw(t.Context())
		if len(h.catalog.withdrawn) != 2 {
			t.Errorf("an agent without a service withdraws %q", h.catalog.withdrawn)
		}
	})
}

// TestNotRegistered: an agent has no entry before its address is known, and none without a service name.
func TestNotRegistered(t *testing.T) {
	for name, change := range map[string]func(*Description){
		"no address": func(d *Description) { d.Address = netip.Addr{} },
		"no service": func(d *Description) { d.Service = "" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost()
				change(&h.said)
				h.run(t, func(after func(time.Duration) (registry.Service, registry.Verdict)) { after(10 * refreshInterval) })
				if h.catalog.writes != 0 || len(h.errs) != 0 {
					t.Errorf("registered %d times as %+v, counted %v", h.catalog.writes, h.catalog.service, h.errs)
				}
			})
		})
	}
}

// TestRefused: an attempt that fails is counted and repeated.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		h.catalog.err = registry.ErrDenied
		h.run(t, func(after func(time.Duration) (registry.Service, registry.Verdict)) { after(refreshInterval) })
		if len(h.errs) < 3 || !errors.Is(h.errs[0], registry.ErrDenied) {
			t.Errorf("attempts: %v", h.errs)
		}
	})
}

// TestWithdrawDuplicates: entries under earlier names are removed once the entry under the current name is there.
func TestWithdrawDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		h.catalog.duplicates = []registry.Service{{Name: "leno", ID: "leno-before"}, {Name: "mesh", ID: "mesh-a"}}
		h.run(t, func(after func(time.Duration) (registry.Service, registry.Verdict)) { after(3 * refreshInterval) })
		if diff := cmp.Diff([]string{"leno-before", "mesh-a"}, h.catalog.withdrawn); diff != "" {
			t.Errorf("withdrawn (-want +got):\n%s", diff)
		}
	})
}

// TestWithdraw works after the end of the context, and does not wait long for a store that hangs.
func TestWithdraw(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprintf("hangs %t", hangs), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost()
				h.catalog.hangs = hangs
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				began := time.Now()
				h.Withdraw(ctx)
				if took := time.Since(began); took > withdrawTimeout {
					t.Errorf("it took %s", took)
				}
				if removed := slices.Equal(h.catalog.withdrawn, []string{"leno-a"}); removed == hangs {
					t.Errorf("withdrawn %q", h.catalog.withdrawn)
				}
			})
		})
	}
}

// TestService: health that the store cannot poll is reported.
func TestService(t *testing.T) {
	tcp := func(address string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address)) }
	for _, tt := range []struct {
		name     string
		local    string // the store's name of this host
		listener net.Addr
		tls      bool
		url      string
		port     int
	}{
		{"on this host", "here", tcp("192.0.2.1:5366"), false, "http://192.0.2.1:5366/healthz?format=text", 5366},
		{"everywhere", "here", tcp("0.0.0.0:5366"), false, "http://127.0.0.1:5366/healthz?format=text", 5366},
		{"everywhere, IPv6", "here", tcp("[::]:5366"), false, "http://127.0.0.1:5366/healthz?format=text", 5366},
		{"IPv6", "here", tcp("[::1]:5366"), false, "http://[::1]:5366/healthz?format=text", 5366},
		{"store elsewhere", "", tcp("127.0.0.1:5366"), false, "", 5366},
		{"own certificate", "here", tcp("127.0.0.1:5366"), true, "", 5366},
		{"socket", "here", &net.UnixAddr{Name: "/x", Net: "unix"}, false, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost()
			h.Listener, h.said.TLS = tt.listener, tt.tls
			h.LocalNode = func(context.Context) (string, error) {
				if tt.tls {
					return "", registry.ErrUnavailable // its answer is not needed
				}
				return tt.local, nil
			}
			s, err := h.service(t.Context(), h.said)
			if err != nil || s.HealthURL != tt.url || s.Port != tt.port {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
}

// TestNotPolled checks that the agent reports its health itself once the store could not poll the API for a while, and
// that one failure from before this process changes nothing.
func TestNotPolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		h.Listener = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5366}
		h.LocalNode = func(context.Context) (string, error) { return "node", nil }
		h.catalog.unpolled = true
		set := func(unpolled bool) {
			h.catalog.mu.Lock()
			defer h.catalog.mu.Unlock()
			h.catalog.unpolled = unpolled
		}
		const url = "http://127.0.0.1:5366/healthz?format=text"
		h.run(t, func(after func(time.Duration) (registry.Service, registry.Verdict)) {
			after(0)
			set(false)
			after(refreshInterval)
			set(true)
			if s, _ := after(refreshInterval); s.HealthURL != url {
				t.Errorf("after one failure before: %q", s.HealthURL)
			}
			if s, v := after(refreshInterval); s.HealthURL != "" || v.Status != api.Passing {
				t.Errorf("after two failures: %q, %+v", s.HealthURL, v)
			}
			set(false)
			if s, _ := after(2 * refreshInterval); s.HealthURL != "" {
				t.Errorf("later: %q", s.HealthURL)
			}
		})
		for _, err := range h.errs {
			if err != nil {
				t.Errorf("counted: %v", err)
			}
		}
	})
}

// TestDenied: what the store denies is logged once, in its words, and each attempt is counted.
func TestDenied(t *testing.T) {
	for _, service := range []string{"leno", "weave", ""} {
		synctest.Test(t, func(t *testing.T) {
			h := newHost()
			var out bytes.Buffer
			h.Log = hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Warn})
			h.run(t, func(after func(time.Duration) (registry.Service, registry.Verdict)) {
				after(0)
				h.mu.Lock()
				h.said.Service = service // under another name, the earlier entry cannot be withdrawn
				h.mu.Unlock()
				h.catalog.mu.Lock()
				h.catalog.err = fmt.Errorf("%w: seeded", registry.ErrDenied)
				h.catalog.mu.Unlock()
				after(10 * refreshInterval)
			})
			text := out.String()
			if strings.Count(text, "denied: seeded") != 1 || strings.Contains(text, "service:write") {
				t.Errorf("%q: logged:\n%s", service, text)
			}
			if failed := errors.Join(h.errs[1:]...); len(h.errs) < 3 || !errors.Is(failed, registry.ErrDenied) ||
				slices.Contains(h.errs[1:], nil) {
				t.Errorf("%q: counted %v", service, h.errs)
			}
		})
	}
}

// TestNodeNameDenied: the service needs no right to read the store's name of this host. Other errors of that are
// counted.
func TestNodeNameDenied(t *testing.T) {
	for _, err := range []error{registry.ErrDenied, registry.ErrUnavailable} {
		synctest.Test(t, func(t *testing.T) {
			h := newHost()
			h.Listener = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5366}
			h.LocalNode = func(context.Context) (string, error) { return "", err }
			h.run(t, func(after func(time.Duration) (registry.Service, registry.Verdict)) {
				s, v := after(0)
				if errors.Is(err, registry.ErrDenied) && (s.Name != "leno" || s.HealthURL != "" || v.Status != api.Passing) {
					t.Errorf("%+v %+v", s, v)
				}
			})
			isCounted := len(h.errs) == 1 && errors.Is(h.errs[0], registry.ErrUnavailable)
			if isCounted != errors.Is(err, registry.ErrUnavailable) {
				t.Errorf("%v: counted %v", err, h.errs)
			}
		})
	}
}
