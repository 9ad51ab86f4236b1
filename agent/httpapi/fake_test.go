package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/logging"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/memory"
)

// fakeAgent is an Agent whose state a test sets.
type fakeAgent struct {
	store           registry.Registry
	refresh         error // of Refresh
	diagnose        func(context.Context, api.DoctorOptions) (api.Diagnosis, error)
	known           *watch.Value[Networks]
	events          *watch.Value[[]api.Event]
	joined, changed *watch.Value[struct{}]

	mu       sync.Mutex
	self     api.Self
	config   config.Config
	networks map[string]*fakeNetwork
}

func (a *fakeAgent) Self() api.Self {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.self
	for name := range a.networks {
		out.Networks = append(out.Networks, name)
	}
	slices.Sort(out.Networks)
	return out
}

func (a *fakeAgent) Config() config.Config {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.config
}

func (a *fakeAgent) Configuration() api.Configuration {
	return api.Configuration{Settings: []api.Setting{}, Files: []string{}}
}

func (a *fakeAgent) Refresh(context.Context, bool) (api.Reloaded, error) {
	return api.Reloaded{}, a.refresh
}

func (a *fakeAgent) Diagnose(ctx context.Context, o api.DoctorOptions) (api.Diagnosis, error) {
	return a.diagnose(ctx, o)
}

func (a *fakeAgent) Trace(context.Context, api.TraceRequest) (api.Trace, error) {
	return api.Trace{Stages: []api.TraceHop{}}, nil
}

func (a *fakeAgent) Events(after uint64, network string) ([]api.Event, uint64, <-chan struct{}) {
	all, _, changed := a.events.Get()
	out, last := []api.Event{}, uint64(1)
	for _, e := range all {
		if last = e.Index; e.Index > after && (network == "" || e.Network == network) {
			out = append(out, e)
		}
	}
	return out, last, changed
}

func (a *fakeAgent) Networks() (Networks, <-chan struct{}) {
	known, _, changed := a.known.Get()
	return known, changed
}

func (a *fakeAgent) Network(name string) (Network, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, ok := a.networks[name]
	return n, ok
}

func (a *fakeAgent) Joined() <-chan struct{} {
	_, _, changed := a.joined.Get()
	return changed
}

func (a *fakeAgent) StatusChanged() <-chan struct{} {
	_, _, changed := a.changed.Get()
	return changed
}

func (a *fakeAgent) LeasesElsewhere(ctx context.Context, n registry.Network, after uint64) (registry.LeaseSet, uint64, error) {
	return a.store.WatchLeases(ctx, n, after)
}

func (a *fakeAgent) InvalidateLeases(string) {}

func (a *fakeAgent) WatchReservations(ctx context.Context, n registry.Network, after uint64) (registry.ReservationSet, uint64, error) {
	return a.store.WatchReservations(ctx, n, after)
}

// watch keeps the known networks until ctx ends.
func (a *fakeAgent) watch(ctx context.Context, store registry.Registry) {
	for after := uint64(0); ctx.Err() == nil; {
		set, index, err := store.WatchNetworks(ctx, after)
		if err == nil {
			a.known.Set(Networks{set, index, true})
			after = index
		}
	}
}

// fakeNetwork is a Network whose state a test sets.
type fakeNetwork struct {
	used      time.Time // when the store last had the definition
	agent     *fakeAgent
	leases    *watch.Value[registry.LeaseSet]
	refreshes atomic.Int32
	probe     func(context.Context, api.ProbeRequest) (api.Probe, error)

	mu      sync.Mutex
	status  Status
	resumed *Resumed
	peers   api.PeerList
	hosts   []api.Host
	decline bool  // what the store has
	refusal error // of Renew
}

// set changes the network and wakes readers.
func (n *fakeNetwork) set(change func()) {
	n.mu.Lock()
	change()
	n.mu.Unlock()
	n.agent.changed.Set(struct{}{})
}

func (n *fakeNetwork) Status() Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.status
}

func (n *fakeNetwork) Judge(stored registry.Network, err error) belief.Verdict {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case !n.status.Defined:
		return belief.NoAnswer
	case n.decline && err == nil:
		return belief.Declined
	}
	known := belief.Definition{Network: n.status.Definition, Used: n.used, Confirmed: true}
	return known.Judge(stored, err)
}

func (n *fakeNetwork) Resumed() (Resumed, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.resumed == nil {
		return Resumed{}, false
	}
	return *n.resumed, true
}

func (n *fakeNetwork) RefreshLeases(context.Context, registry.Network) { n.refreshes.Add(1) }

func (n *fakeNetwork) Leases(bool) (registry.LeaseSet, error) {
	set, ok, _ := n.leases.Get()
	if !ok {
		return set, fmt.Errorf("leases: %w: not read yet", registry.ErrUnavailable)
	}
	return set, nil
}

func (n *fakeNetwork) LeasesChanged() []<-chan struct{} {
	_, _, changed := n.leases.Get()
	return []<-chan struct{}{changed}
}

func (n *fakeNetwork) Peers(withHistory bool) api.PeerList {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.peers
	out.Peers = slices.Clone(out.Peers)
	for i := range out.Peers {
		if p := out.Peers[i].Path; p != nil && !withHistory {
			path := *p
			path.History, out.Peers[i].Path = nil, &path
		}
	}
	return out
}

func (n *fakeNetwork) Hosts() ([]api.Host, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hosts, nil
}

func (n *fakeNetwork) Probe(ctx context.Context, r api.ProbeRequest) (api.Probe, error) {
	return n.probe(ctx, r)
}

func (n *fakeNetwork) Renew(context.Context, registry.Registry) (api.Renewal, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return api.Renewal{Subnet: n.status.Lease.Subnet()}, n.refusal
}

func (n *fakeNetwork) Release(context.Context, registry.Registry) error { return nil }

var (
	_ Agent   = (*fakeAgent)(nil)
	_ Network = (*fakeNetwork)(nil)
)

// host is a server of an agent "a" that has the first subnet of network n, where its peer "b" has the second one.
type host struct {
	t        testing.TB
	store    *memory.Store
	registry registry.Registry // what the server gets
	agent    *fakeAgent
	n        *fakeNetwork
	options  Options
	server   *Server
	address  string
	client   *api.Client
	said     agenttest.Lines
	unwatch  func() // ends what prepare started
	end      context.CancelFunc
	served   chan error
}

// newHost returns a host that does not serve yet. change, if not nil, changes the limits.
func newHost(t testing.TB, change func(*Limits)) *host {
	t.Helper()
	h := &host{t: t, store: memory.New()}
	h.registry = h.store.Client()
	h.agent = &fakeAgent{
		store: h.registry, refresh: errors.New("this agent cannot read its configuration again"),
		known: watch.New[Networks](), events: watch.New[[]api.Event](), joined: watch.New[struct{}](), changed: watch.New[struct{}](),
		self: api.Self{NodeName: "a", NodeID: "id-a", Version: "test"}, config: config.Defaults(), networks: map[string]*fakeNetwork{},
	}
	h.n = h.join(h.define("n", "10.5.0.0/22"), lease(1, "a", "s"), lease(2, "b", "s"))
	c := config.Defaults().Log
	c.Level = "TRACE"
	logs, err := logging.New(&h.said, false, c)
	must(t, err)
	board := health.New(time.Now, nil)
	board.Set("", health.Consul, api.Passing, "the store answers")
	board.Set("n", health.Lease, api.Passing, "held")
	board.SetReady("n", true)
	limits := DefaultLimits()
	if change != nil {
		change(&limits)
	}
	kind := backend.Type{Normalize: func(o json.RawMessage) (json.RawMessage, error) { return o, nil }}
	h.options = Options{
		Agent: h.agent, Logs: logs, Registry: h.registry, Health: board, Limits: limits,
		Backends:  map[string]backend.Type{"recorder": kind, "other": kind, "metered": kind},
		Telemetry: telemetry.New(telemetry.Config{Retention: time.Minute}, logs.Logger(), func(*telemetry.Reading) {}),
		NewLoop:   retry.NewOutageDetector(nil, func(error) retry.Class { return retry.Transient }).NewLoop,
		LookupName: func(_ context.Context, name string) (string, []netip.Addr, error) {
			return "", nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
		},
	}
	return h
}

// define stores a network.
func (h *host) define(name, pool string) registry.Network {
	h.t.Helper()
	n := registry.Network{Name: name, Plan: registry.Plan{{Prefix: netip.MustParsePrefix(pool)}}}
	var err error
	n.Plan, err = n.Plan.Normalize()
	must(h.t, err)
	n.Backend, err = registry.NewBackend("recorder", nil)
	must(h.t, err)
	must(h.t, h.store.Client().PutNetwork(h.t.Context(), n))
	n, err = h.store.Client().Network(h.t.Context(), name)
	must(h.t, err)
	return n
}

// join makes the agent take part in a network with leases, of which the first is its own.
func (h *host) join(n registry.Network, leases ...registry.Lease) *fakeNetwork {
	part := &fakeNetwork{agent: h.agent, leases: watch.New[registry.LeaseSet](), peers: api.PeerList{Peers: []api.Peer{}}}
	for i := range leases {
		l := &leases[i]
		l.Network, l.Subnets, l.Backend = n.Name, n.Plan.Subnets(l.Slot), n.Backend
		if i > 0 {
			part.peers.Peers = append(part.peers.Peers, api.Peer{Node: l.Node, Subnets: l.Subnets, PublicIPs: l.PublicIPs, Held: l.Held()})
		}
	}
	part.status = Status{Definition: n, Defined: true, Local: api.Local{State: "running"}}
	if len(leases) > 0 {
		part.status.Local.Subnets = leases[0].Subnets
		part.status.Lease = leases[0]
		part.leases.Set(registry.LeaseSet{Leases: leases})
	}
	h.agent.mu.Lock()
	defer h.agent.mu.Unlock()
	h.agent.networks[n.Name] = part
	return part
}

// lease is a lease of a host, held if there is a session.
func lease(slot uint64, node, session string) registry.Lease {
	return registry.Lease{Slot: slot, Node: node, NodeID: "id-" + node, Session: session, MTU: 1450,
		PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, node[0]})}}
}

// prepare makes the server, which has read the networks, without serving.
func (h *host) prepare() *Server {
	h.t.Helper()
	var err error
	h.server, err = New(h.options)
	must(h.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { h.agent.watch(ctx, h.registry) })
	h.unwatch = func() {
		cancel()
		watching.Wait()
	}
	h.t.Cleanup(h.unwatch)
	agenttest.Eventually(h.t, func() error {
		if known, _ := h.agent.Networks(); !known.Read {
			return errors.New("the networks are not read")
		}
		return nil
	})
	return h.server
}

// serve serves on an address, such as "127.0.0.1:0", until the end of the test or stop.
func (h *host) serve(address string) *host {
	h.t.Helper()
	h.prepare()
	l, err := h.server.Listen(address)
	must(h.t, err)
	h.address = l.Addr().String()
	h.served = make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	h.end = cancel
	go func() { h.served <- h.server.Serve(ctx, l) }()
	h.t.Cleanup(func() {
		if err := h.stop(); err != nil {
			h.t.Error(err)
		}
	})
	at := h.address
	if strings.HasPrefix(address, "unix://") {
		at = address
	}
	h.client, err = api.New(api.Config{Address: at, HTTPClient: &http.Client{Timeout: 2 * time.Minute}})
	must(h.t, err)
	h.t.Cleanup(h.client.Close)
	return h
}

// stop ends the server and returns what Serve did.
func (h *host) stop() error {
	h.end()
	if h.served == nil {
		return nil
	}
	err := <-h.served
	h.served = nil
	h.unwatch()
	return err
}

// serving returns a host that serves on TCP under the limits given.
func serving(t testing.TB, change func(*Limits)) *host {
	t.Helper()
	return newHost(t, change).serve("127.0.0.1:0")
}

// onSocket returns a host that serves on a socket.
func onSocket(t testing.TB) *host {
	t.Helper()
	return newHost(t, nil).serve("unix://" + filepath.Join(t.TempDir(), "leno.sock"))
}

func (h *host) dial() net.Conn {
	h.t.Helper()
	network := "tcp"
	if strings.HasPrefix(h.address, "/") {
		network = "unix"
	}
	conn, err := net.Dial(network, h.address)
	must(h.t, err)
	h.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// answers makes one request on a connection of its own.
func (h *host) answers(request string) (*http.Response, string) {
	h.t.Helper()
	conn := h.dial()
	defer conn.Close()
	must(h.t, conn.SetDeadline(time.Now().Add(time.Minute)))
	go func() { _, _ = io.WriteString(conn, request) }()
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		h.t.Fatalf("%.100q: %v", request, err)
	}
	defer r.Body.Close()
	body, _ := io.ReadAll(r.Body)
	return r, string(body)
}

// request makes a request with a body, "" for none.
func (h *host) request(method, path, body string) (int, string) {
	h.t.Helper()
	length := ""
	if body != "" {
		length = fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	r, text := h.answers(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + length + "\r\n" + body)
	return r.StatusCode, text
}

// well waits until /healthz answers a new connection.
func (h *host) well() {
	h.t.Helper()
	if r, body := h.answers("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); r.StatusCode != http.StatusOK {
		h.t.Errorf("healthz: %d %s", r.StatusCode, body)
	}
}

// readers waits until so many reads wait for a change.
func (h *host) readers(want int) {
	h.t.Helper()
	agenttest.Eventually(h.t, func() error {
		if n := h.server.cache.Waiting(); n != want {
			return fmt.Errorf("%d readers wait, want %d", n, want)
		}
		return nil
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
