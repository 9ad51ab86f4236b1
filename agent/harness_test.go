package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/logging"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/internal/testkit/faulty"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// A host is one agent under test. Its API listens in memory, so that it can live in simulated
// time, unless a test calls real.
type host struct {
	t        testing.TB
	name     string
	config   config.Config
	store    *memory.Store
	registry *faulty.Registry
	catalog  registry.Registry // the agent's registry instead of the field registry, if not nil
	refresh  func() (config.Config, error)
	recorder *recorder
	wall     *wall
	others   *others
	pace     retry.Policy
	quiet    bool // whether to log nothing
	isReal   bool // whether the API listens on the configured address
	said     agenttest.Lines
	patience time.Duration // the agent's patience
	agent    *Agent
	client   *api.Client // has no token

	mu       sync.Mutex
	socket   *pipes // of the API, nil before the first start and for a real host
	place    underlay.Choice
	placeErr error
	selected config.Underlay // the settings of the last selection
	metrics  net.PacketConn  // receives metrics
	remains  datapath.KernelState
	// lockHost takes the lock of the host. If it is nil, no other agent has the lock.
	lockHost func() (func() error, error)
	// kernel tells the agent that the kernel changed. It is nil until the agent watches.
	kernel func()
	// probing is called before each probe answers, if not nil.
	probing func(context.Context) error
	// reading reads the rules in the way, if not nil.
	reading func(context.Context, []foreign.OverlayPath) ([]foreign.Obstacle, []foreign.Blockade, error)
	end     func()
	exited  chan struct{} // closed when Run has returned err
	err     error
	rules   []string // such as "[10.5.0.0/22] 100" for each call of PreferMain
}

// preferMain records calls of PreferMain.
func (h *host) preferMain(_ context.Context, owner kernel.Owner, priority int, _ bool) ([]backend.Repair, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rules = append(h.rules, fmt.Sprint(owner.Pools, " ", priority))
	return nil, nil
}

// newHost returns a host that uses a store and is not started yet.
func newHost(t testing.TB, store *memory.Store, name string) *host {
	t.Helper()
	dir := t.TempDir()
	c := config.Defaults()
	c.NodeName = name
	c.DataDir, c.ProbeInterval = filepath.Join(dir, "data"), 0 // the paths are not real
	c.HTTP.Address, c.HTTP.Socket = "unix://"+filepath.Join(dir, "leno.sock"), ""
	c.Lease.TTL, c.Lease.RenewMargin = 10*time.Second, 9900*time.Millisecond // the lease is renewed every 100 ms
	c.Consul.Service, c.Log.Level = "", "TRACE"
	c.Networks = []config.Network{{
		Name: "n", Pools: []config.Pool{{Prefix: netip.MustParsePrefix("10.5.0.0/22")}}, // three slots
		Backend: &config.Backend{Type: "recorder"}, SubnetFile: filepath.Join(dir, "n.env"),
	}}
	h := &host{t: t, name: name, config: c, store: store, registry: faulty.New(store.Client()),
		recorder: newRecorder(), wall: &wall{}, others: &others{}, pace: quick(),
		place: underlay.Choice{Interface: "eth0", Index: 2, MTU: 1500, Reason: "test",
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, name[len(name)-1]})}}}
	h.client = h.clientWith("")
	return h
}

// simulated runs a test in simulated time, beside other tests. Hosts that are real cannot live there.
func simulated(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// subtest runs a test in simulated time as a subtest.
func subtest(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { simulated(t, test) })
}

// real makes the API listen on the configured address, and the kernel announce changes of files.
func (h *host) real() *host {
	h.isReal = true
	return h
}

// clientWith returns a client of the host's API with a token.
func (h *host) clientWith(token string) *api.Client {
	h.t.Helper()
	out, err := api.New(api.Config{Address: "http://localhost:5366", Token: token, HTTPClient: h.httpClient()})
	must(h.t, err)
	h.t.Cleanup(out.Close)
	return out
}

// httpClient returns a client with a time limit that speaks to the host's API.
func (h *host) httpClient() *http.Client {
	return &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return h.dial(ctx) },
	}}
}

// dial connects to the host's API.
func (h *host) dial(ctx context.Context) (net.Conn, error) {
	h.mu.Lock()
	socket := h.socket
	h.mu.Unlock()
	if h.isReal {
		return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(h.config.HTTP.Address, "unix://"))
	}
	if socket == nil {
		return nil, net.ErrClosed
	}
	return socket.dial(ctx)
}

// pipes is a listener in memory.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
	close    func()
}

func newPipes() *pipes {
	p := &pipes{accepted: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accepted:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.close(); return nil }

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.accepted <- theirs:
		return ours, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// quick returns the default pace of an agent, ten times as fast.
func quick() retry.Policy {
	p := retry.DefaultPolicy()
	for _, d := range []*time.Duration{&p.First, &p.Last, &p.Soon, &p.ProbeLeast, &p.ProbeMost, &p.Ask, &p.Spread, &p.RestoreInUse, &p.RestoreRemembered} {
		*d /= 10
	}
	return p
}

// second returns the configuration of a network "m" that is like the first one, with a pool of its own.
func (h *host) second() config.Network {
	out := h.config.Networks[0]
	out.Name, out.SubnetFile = "m", out.SubnetFile+".m"
	out.Pools = []config.Pool{{Prefix: netip.MustParsePrefix("10.6.0.0/22")}}
	return out
}

// build makes the agent without starting it.
func (h *host) build() *Agent {
	h.t.Helper()
	var reg registry.Registry = h.registry
	if h.catalog != nil {
		reg = h.catalog
	}
	var log io.Writer = io.MultiWriter(logWriter{h.t, h.name}, &h.said)
	if h.quiet {
		log = io.Discard
	}
	logs, err := logging.New(log, false, h.config.Log)
	if err != nil {
		h.t.Fatal(err)
	}
	a, err := New(h.config, Options{
		Logs: logs, Version: "test",
		Registry: reg, RegistryName: "memory", Firewall: h.wall, Obstacles: h.others.find,
		Backends:          map[string]backend.Type{"recorder": h.recorder.kind("recorder"), "other": h.recorder.kind("other"), "metered": h.recorder.metered("metered")},
		EnsureForwarding:  func(netip.Prefix, []string, bool) (forwarding.State, error) { return forwarding.State{}, nil },
		Guard:             func(context.Context, kernel.Owner, bool) error { return nil },
		PreferMain:        h.preferMain,
		ReplacePools:      func(context.Context, kernel.Owner, []netip.Prefix, bool) error { return nil },
		FindDetours:       func(kernel.PathQuery) ([]kernel.Detour, error) { return nil, nil },
		RestoreForwarding: func() error { return nil },
		LockHost: func() (func() error, error) {
			if h.lockHost != nil {
				return h.lockHost()
			}
			return func() error { return nil }, nil // the hosts of a test share a namespace
		},
		WatchedNetwork: func(name string) config.Network {
			local := config.WatchedNetwork(name)
			local.SubnetFile = filepath.Join(filepath.Dir(h.config.DataDir), name+".env")
			return local
		},
		SelectUnderlay: func(by config.Underlay, _ []netip.Prefix, _ []netip.Addr) (underlay.Choice, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.selected = by
			choice := h.place
			choice.Devices = []string{choice.Interface}
			return choice, h.placeErr
		},
		ReadKernelState: func(context.Context, string, []netip.Prefix) (datapath.KernelState, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.remains, nil
		},
		LookupName: func(_ context.Context, name string) (string, []netip.Addr, error) {
			return "", nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
		},
		Probe: h.probe, InTheWay: h.inTheWay, Trace: traceWithoutKernel,
		WatchKernel: func(ctx context.Context, _ func(string) bool, _ func(netip.Prefix) bool, changed func()) error {
			h.mu.Lock()
			h.kernel = changed
			h.mu.Unlock()
			<-ctx.Done()
			return nil
		},
	}, h.refresh)
	if err != nil {
		h.t.Fatal(err)
	}
	a.env.Store.Outage.Policy = h.pace
	a.identity.others.patience = cmp.Or(h.patience, 500*time.Millisecond)
	return a
}

// part returns the host's part in network n, which does not run.
func (h *host) part() *network.Runner {
	h.t.Helper()
	h.agent = h.build()
	h.agent.env.Identity.SetNode(h.name)
	h.agent.env.Identity.SetNodeID("id-" + h.name)
	h.agent.env.Identity.Settle()
	return network.New(h.agent.env, h.config, h.config.Networks[0], nil)
}

// start runs the agent until stop is called or the test ends.
func (h *host) start() *host {
	h.t.Helper()
	a := h.build()
	h.agent = a
	ctx, cancel := context.WithCancel(context.Background())
	exited := make(chan struct{})
	h.end, h.exited = cancel, exited
	run := a.Run
	if !h.isReal {
		socket := newPipes()
		h.mu.Lock()
		h.socket = socket
		h.mu.Unlock()
		run = func(ctx context.Context) error { return a.runOn(ctx, socket) }
	}
	go func() {
		defer close(exited)
		h.err = run(ctx)
	}()
	h.t.Cleanup(func() {
		cancel()
		<-exited
	})
	return h
}

// kick tells the agent that the kernel changed, as soon as the agent watches.
func (h *host) kick() {
	h.t.Helper()
	var changed func()
	eventually(h.t, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if changed = h.kernel; changed == nil {
			return fmt.Errorf("%s does not watch the kernel", h.name)
		}
		return nil
	})
	changed()
}

// move gives the host other addresses on the underlay, or makes selecting the underlay fail with err.
func (h *host) move(addrs []netip.Addr, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.place.Addrs, h.placeErr = addrs, err
}

// stop ends the agent and returns the error of Run.
func (h *host) stop() error {
	h.end()
	return h.wait()
}

func (h *host) wait() error {
	h.t.Helper()
	select {
	case <-h.exited:
	case <-time.After(2 * time.Minute):
		h.t.Fatalf("%s does not end", h.name)
	}
	return h.err
}

// follows gives the host another address and waits until its datapath has it.
func (h *host) follows(addr string) {
	h.t.Helper()
	want := []netip.Addr{netip.MustParseAddr(addr)}
	h.move(want, nil)
	h.kick()
	eventually(h.t, func() error {
		made := h.recorder.made()
		if got := made[len(made)-1].state.Underlay.Addrs; !slices.Equal(got, want) {
			return fmt.Errorf("the datapath stands on %v", got)
		}
		return nil
	})
}

type logWriter struct {
	t    testing.TB
	name string // of the host
}

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Log(w.name, strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// eventually polls until check returns nil.
func eventually(t testing.TB, check func() error) {
	t.Helper()
	agenttest.Eventually(t, check)
}

// applies waits until the state applied last is want, such as "10.5.1.0/24 <- b@10.5.2.0/24".
func (h *host) applies(want string) {
	h.t.Helper()
	eventually(h.t, func() error {
		if got := h.recorder.last(); got != want {
			return fmt.Errorf("%s applied %q, want %q", h.name, got, want)
		}
		return nil
	})
}

// subnet waits until the host has a lease, and returns its subnet.
func (h *host) subnet() netip.Prefix {
	h.t.Helper()
	var out netip.Prefix
	eventually(h.t, func() error {
		r, ok := h.agent.networks.get("n")
		if !ok {
			return fmt.Errorf("%s: no runner", h.name)
		}
		lease, ok := r.Lease()
		if !ok {
			return fmt.Errorf("%s: no lease: %s", h.name, r.Status().Local.State)
		}
		out = lease.Subnet()
		return nil
	})
	return out
}

// free returns a subnet of network n that none of the hosts has.
func free(hosts ...*host) netip.Prefix {
	for _, p := range []string{"10.5.1.0/24", "10.5.2.0/24", "10.5.3.0/24"} {
		p := netip.MustParsePrefix(p)
		if !slices.ContainsFunc(hosts, func(h *host) bool { return h.subnet() == p }) {
			return p
		}
	}
	return netip.Prefix{}
}

// check waits until a check of the agent or of network n has the status, and a reason with all words.
func (h *host) check(name, status string, words ...string) {
	h.t.Helper()
	eventually(h.t, func() error {
		report, _ := h.agent.env.Reports.Health.Report()
		all := report.Checks
		for _, n := range report.Networks {
			all = append(all, n.Checks...)
		}
		err := fmt.Errorf("%s: no check %s", h.name, name)
		for _, c := range all {
			if c.Name != name {
				continue
			}
			missing := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return strings.Contains(c.Reason, w) })
			if c.Status == status && len(missing) == 0 {
				return nil
			}
			err = fmt.Errorf("%s: check %s is %s: %s; it does not say %q", h.name, name, c.Status, c.Reason, missing)
		}
		return err
	})
}

func (h *host) ready() {
	h.t.Helper()
	eventually(h.t, func() error {
		if report, _ := h.agent.env.Reports.Health.Report(); !report.Ready {
			return fmt.Errorf("%s is not ready: %+v", h.name, report)
		}
		return nil
	})
}

// more waits until a count is greater than before.
func (h *host) more(what string, than int, count func() int) {
	h.t.Helper()
	eventually(h.t, func() error {
		if n := count(); n <= than {
			return fmt.Errorf("%s: no more %s than %d", h.name, what, n)
		}
		return nil
	})
}

// leaseKey returns the key of a lease of network n in the store.
func leaseKey(subnet netip.Prefix) string {
	return memory.Prefix + "/leases/n/" + registry.SubnetKey(subnet)
}

func mustRunner(t testing.TB, h *host) *network.Runner {
	t.Helper()
	r, ok := h.agent.networks.get("n")
	if !ok {
		t.Fatal("no runner")
	}
	return r
}

// request calls the API on the agent's socket without the client.
func (h *host) request(method, path, body string) (int, string) {
	h.t.Helper()
	client := h.httpClient()
	defer client.CloseIdleConnections()
	request, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
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

// health requests /healthz.
func (h *host) health() (int, api.Health) {
	h.t.Helper()
	code, body := h.request("GET", "/healthz", "")
	var out api.Health
	if err := json.Unmarshal([]byte(body), &out); err != nil {
		h.t.Fatal(err)
	}
	return code, out
}

// errOf returns the error of a call that returns something else, too.
func errOf[T any](_ T, err error) error { return err }

// listensOn returns the address on which the API of a real host listens, such as "127.0.0.1:49152".
func (h *host) listensOn() (address string) {
	h.t.Helper()
	eventually(h.t, func() error {
		lines := h.said.With("agent started")
		if len(lines) == 0 {
			return fmt.Errorf("%s has not started", h.name)
		}
		_, address, _ = strings.Cut(lines[0], "http=")
		address, _, _ = strings.Cut(address, " ")
		return nil
	})
	return address
}

// slow sets renewals so far apart that only the watch can notice a loss.
func (h *host) slow() *host {
	h.config.Lease.TTL, h.config.Lease.RenewMargin = 2*time.Hour, time.Hour
	return h
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// reasonOf returns the reason of a network's check, "" if there is no such check.
func reasonOf(a *Agent, network, check string) string {
	report, _ := a.env.Reports.Health.Report()
	for _, n := range report.Networks {
		for _, c := range n.Checks {
			if n.Network == network && c.Name == check {
				return c.Reason
			}
		}
	}
	return ""
}
