package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// recorder is a backend that keeps the states it is given.
type recorder struct {
	mu     sync.Mutex
	states []backend.State
	fail   error
}

func (r *recorder) kind() backend.Type {
	return backend.Type{Name: "recorder",
		Normalize: func(o json.RawMessage) (json.RawMessage, error) { return o, nil },
		New:       func(backend.Config) (backend.Backend, error) { return r, nil }}
}

func (r *recorder) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	return backend.Advertisement{MTU: u.MTU - 50, Attributes: json.RawMessage(`{"mark":"` + u.Interface + `"}`)}, nil
}

func (r *recorder) Apply(_ context.Context, s backend.State) (backend.Report, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return backend.Report{}, r.fail
	}
	r.states = append(r.states, s)
	return backend.Report{Peers: len(s.Peers)}, nil
}

func (r *recorder) Close() error { return nil }

func (r *recorder) setFail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

// last is the state applied last, as "subnet <- peer, peer".
func (r *recorder) last() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.states) == 0 {
		return "nothing"
	}
	return text(r.states[len(r.states)-1])
}

// all are the distinct states in the order they were applied.
func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, s := range r.states {
		if t := text(s); len(out) == 0 || out[len(out)-1] != t {
			out = append(out, t)
		}
	}
	return out
}

func text(s backend.State) string {
	if s.Zero() {
		return "zero"
	}
	var peers []string
	for _, p := range s.Peers {
		peers = append(peers, fmt.Sprintf("%s@%s", p.Node, p.Subnets[0]))
	}
	return fmt.Sprintf("%s <- %s", s.Subnets[0], strings.Join(peers, ", "))
}

// outage makes a registry fail on demand.
type outage struct {
	registry.Registry
	mu   sync.Mutex
	down chan struct{} // closed while down
	err  error
}

func newOutage(r registry.Registry) *outage { return &outage{Registry: r, down: make(chan struct{})} }

func (o *outage) set(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil && err != nil {
		close(o.down)
	}
	if o.err != nil && err == nil {
		o.down = make(chan struct{})
	}
	o.err = err
}

// call runs f, and fails at once or in the middle of it while down.
func (o *outage) call(ctx context.Context, f func(context.Context) error) error {
	o.mu.Lock()
	down, err := o.down, o.err
	o.mu.Unlock()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-down:
			cancel()
		case <-stop:
		}
	}()
	err = f(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return o.err
	}
	return err
}

func (o *outage) Network(ctx context.Context, name string) (n registry.Network, err error) {
	err = o.call(ctx, func(ctx context.Context) (err error) { n, err = o.Registry.Network(ctx, name); return err })
	return n, err
}

func (o *outage) Acquire(ctx context.Context, n registry.Network, c registry.Claim) (l registry.Lease, err error) {
	err = o.call(ctx, func(ctx context.Context) (err error) { l, err = o.Registry.Acquire(ctx, n, c); return err })
	return l, err
}

func (o *outage) Renew(ctx context.Context, l registry.Lease) error {
	return o.call(ctx, func(ctx context.Context) error { return o.Registry.Renew(ctx, l) })
}

func (o *outage) WatchNetworks(ctx context.Context, after uint64) (s registry.NetworkSet, i uint64, err error) {
	err = o.call(ctx, func(ctx context.Context) (err error) { s, i, err = o.Registry.WatchNetworks(ctx, after); return err })
	return s, i, err
}

func (o *outage) WatchLeases(ctx context.Context, n registry.Network, after uint64) (s registry.LeaseSet, i uint64, err error) {
	err = o.call(ctx, func(ctx context.Context) (err error) { s, i, err = o.Registry.WatchLeases(ctx, n, after); return err })
	return s, i, err
}

func (o *outage) WatchLease(ctx context.Context, n registry.Network, p netip.Prefix, after uint64) (l registry.Lease, i uint64, err error) {
	err = o.call(ctx, func(ctx context.Context) (err error) { l, i, err = o.Registry.WatchLease(ctx, n, p, after); return err })
	return l, i, err
}

// host is one agent under test.
type host struct {
	t        *testing.T
	name     string
	config   config.Config
	registry *outage
	recorder *recorder
	agent    *Agent
	client   *api.Client

	mu       sync.Mutex
	place    underlay.Choice
	placeErr error
	kernel   func() // tells the agent that the kernel changed
	end      func()
	exited   chan struct{} // closed when Run returned err
	err      error
}

// newHost is a host of the store that is not started yet.
func newHost(t *testing.T, store *memory.Store, name string) *host {
	t.Helper()
	dir := t.TempDir()
	c := config.Defaults()
	c.NodeName = name
	c.DataDir = filepath.Join(dir, "data")
	c.HTTP.Address = "unix://" + filepath.Join(dir, "leno.sock")
	c.Lease.TTL, c.Lease.RenewMargin = 10*time.Second, 9900*time.Millisecond // renewed every 100 ms
	c.Consul.Service = ""
	c.Networks = []config.Network{{
		Name: "n", Pools: []config.Pool{{Prefix: netip.MustParsePrefix("10.5.0.0/22")}}, // three slots
		Backend: &config.Backend{Type: "recorder"}, SubnetFile: filepath.Join(dir, "n.env"),
	}}
	h := &host{t: t, name: name, config: c, registry: newOutage(store.Client()), recorder: &recorder{},
		place: underlay.Choice{Interface: "eth0", Index: 2, MTU: 1500, Reason: "test",
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, name[len(name)-1]})}}}
	client, err := api.New(api.Config{Address: c.HTTP.Address})
	if err != nil {
		t.Fatal(err)
	}
	h.client = client
	return h
}

// start runs the agent until stop or the end of the test.
func (h *host) start() *host {
	h.t.Helper()
	a, err := New(h.config, Options{
		Logger: hclog.New(&hclog.LoggerOptions{Name: h.name, Level: hclog.Trace, Output: logWriter{h.t}}), Version: "test",
		Registry: h.registry, RegistryName: "memory",
		Backends: map[string]backend.Type{"recorder": h.recorder.kind()},
		SelectUnderlay: func(config.Underlay, []netip.Prefix) (underlay.Choice, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.place, h.placeErr
		},
		WatchKernel: func(ctx context.Context, _ func(string) bool, changed func()) error {
			h.mu.Lock()
			h.kernel = changed
			h.mu.Unlock()
			<-ctx.Done()
			return nil
		},
	}, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	h.agent = a
	ctx, cancel := context.WithCancel(context.Background())
	exited := make(chan struct{})
	h.end, h.exited = cancel, exited
	go func() {
		defer close(exited)
		h.err = a.Run(ctx)
	}()
	h.t.Cleanup(func() {
		cancel()
		<-exited
	})
	return h
}

// stop ends the agent and returns what Run did.
func (h *host) stop() error {
	h.end()
	return h.wait()
}

func (h *host) wait() error {
	<-h.exited
	return h.err
}

type logWriter struct{ t *testing.T }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// eventually polls until check returns nil.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// applies waits until the last applied state reads so; %s is any subnet.
func (h *host) applies(want string) {
	h.t.Helper()
	eventually(h.t, func() error {
		if got := h.recorder.last(); got != want {
			return fmt.Errorf("%s applied %q, want %q", h.name, got, want)
		}
		return nil
	})
}

// subnet waits for the host's lease.
func (h *host) subnet() netip.Prefix {
	h.t.Helper()
	var out netip.Prefix
	eventually(h.t, func() error {
		r, ok := h.agent.runner("n")
		if !ok {
			return fmt.Errorf("%s: no runner", h.name)
		}
		lease, ok, _ := r.lease.get()
		if !ok {
			return fmt.Errorf("%s: no lease: %s", h.name, r.shown().local.State)
		}
		out = lease.Subnet()
		return nil
	})
	return out
}

// check waits until a check of network n has the status and words in its reason.
func (h *host) check(name, status string, words ...string) {
	h.t.Helper()
	eventually(h.t, func() error {
		report, _ := h.agent.env.health.report()
		all := report.Checks
		for _, n := range report.Networks {
			all = append(all, n.Checks...)
		}
		for _, c := range all {
			if c.Name != name {
				continue
			}
			for _, w := range words {
				if !strings.Contains(c.Reason, w) {
					return fmt.Errorf("%s: check %s: %q does not say %q", h.name, name, c.Reason, w)
				}
			}
			if c.Status != status {
				return fmt.Errorf("%s: check %s is %s: %s", h.name, name, c.Status, c.Reason)
			}
			return nil
		}
		return fmt.Errorf("%s: no check %s", h.name, name)
	})
}

func (h *host) ready() {
	h.t.Helper()
	eventually(h.t, func() error {
		if report, _ := h.agent.env.health.report(); !report.Ready {
			return fmt.Errorf("%s is not ready: %+v", h.name, report)
		}
		return nil
	})
}

func mustRunner(t *testing.T, h *host) *runner {
	t.Helper()
	r, ok := h.agent.runner("n")
	if !ok {
		t.Fatal("no runner")
	}
	return r
}

// request speaks to the agent's socket without the client.
func (h *host) request(method, path, body string) (int, string) {
	h.t.Helper()
	socket := strings.TrimPrefix(h.config.HTTP.Address, "unix://")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
	request, err := http.NewRequest(method, "http://leno"+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	r, err := client.Do(request)
	if err != nil {
		h.t.Fatal(err)
	}
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return r.StatusCode, string(data)
}

// health asks /healthz.
func (h *host) health() (int, api.Health) {
	h.t.Helper()
	code, body := h.request("GET", "/healthz", "")
	var out api.Health
	if err := json.Unmarshal([]byte(body), &out); err != nil {
		h.t.Fatal(err)
	}
	return code, out
}
