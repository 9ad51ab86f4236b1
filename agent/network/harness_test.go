package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/events"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/firewall/foreign"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/rules"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/internal/testkit/faulty"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

const networkKey = memory.Prefix + "/networks/n"

// A host takes part in network n, with a store in memory and a datapath that records what is done to it.
type host struct {
	t        testing.TB
	name     string
	config   config.Config
	store    *memory.Store
	registry *faulty.Registry
	addrs    []netip.Addr
	deps     *Deps
	datapath *recorder
	wall     *wall
	said     agenttest.Lines // the log of all processes
}

// newHost returns a host whose name and id are known.
func newHost(t testing.TB, store *memory.Store, name string) *host {
	t.Helper()
	dir := t.TempDir()
	h := &host{
		t:        t,
		name:     name,
		config:   config.Defaults(),
		store:    store,
		addrs:    []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, name[len(name)-1]})},
		datapath: &recorder{},
		wall:     &wall{},
	}
	h.config.NodeName, h.config.DataDir = name, filepath.Join(dir, "data")
	h.config.Networks = []config.Network{{
		Name:       "n",
		Pools:      []config.Pool{{Prefix: netip.MustParsePrefix("10.5.0.0/22")}}, // three slots
		Backend:    &config.Backend{Type: "recorder"},
		SubnetFile: filepath.Join(dir, "n.env"),
	}}
	h.connect(store)
	return h
}

// connect makes the host use a store.
func (h *host) connect(store *memory.Store) {
	h.store, h.registry = store, faulty.New(store.Client())
	h.renew()
}

// renew makes what all networks of the host share, as a process does when it starts.
func (h *host) renew() {
	log := hclog.New(&hclog.LoggerOptions{Output: io.MultiWriter(testWriter{h.t}, &h.said), Level: hclog.Trace})
	to := events.New(time.Now)
	h.deps = &Deps{
		Log:      log,
		Identity: NewIdentity(),
		Store: Store{
			Registry: h.registry,
			Outage:   retry.NewOutageDetector(h.registry.Probe, func(error) retry.Class { return retry.Transient }),
			Networks: watch.New[Networks](),
			SetBack:  watch.New[struct{}](),
		},
		Reports: Reports{
			Health:    health.New(time.Now, to.AddCheck),
			Events:    to,
			Telemetry: telemetry.New(telemetry.Config{}, log, func(*telemetry.Reading) {}),
			Changed:   watch.New[struct{}](),
		},
		Datapaths: &datapath.Host{
			Backends:   map[string]backend.Type{"recorder": h.datapath.kind("recorder"), "other": h.datapath.kind("other")},
			Processors: &datapath.Processors{},
			Kernel:     watch.New[struct{}](),
			SelectUnderlay: func(config.Underlay, []netip.Prefix, []netip.Addr) (underlay.Choice, error) {
				return underlay.Choice{Interface: "eth0", Index: 2, MTU: 1500, Addrs: h.addrs, Devices: []string{"eth0"}}, nil
			},
			EnsureForwarding: func(netip.Prefix, []string, bool) (forwarding.State, error) { return forwarding.State{}, nil },
			Guard:            func(context.Context, kernel.Owner, bool) error { return nil },
			PreferMain:       func(context.Context, kernel.Owner, int, bool) ([]backend.Repair, error) { return nil, nil },
			ReplacePools:     func(context.Context, kernel.Owner, []netip.Prefix, bool) error { return nil },
			FindDetours:      func(kernel.PathQuery) ([]kernel.Detour, error) { return nil, nil },
		},
		Claims: NewHostClaims(),
		Former: state.NewFormerSubnets(h.config.DataDir),
		Left:   watch.New[struct{}](),
		ReadKernelState: func(context.Context, string, []netip.Prefix) (datapath.KernelState, error) {
			return datapath.KernelState{}, nil
		},
		SubnetFileOf: func(string, string) string { return "" },
	}
	h.deps.Datapaths.NodeID = h.deps.Identity.NodeID
	h.deps.Rules = Rules{
		Keeper: rules.New(h.wall, h.config.Firewall, log, h.deps.Reports.Health, rules.Hooks{}),
		Foreign: rules.NewForeignMonitor(log, func(context.Context, []foreign.OverlayPath) ([]foreign.Obstacle, error) {
			return nil, nil
		}, h.deps.Reports.Health),
	}
	h.deps.Identity.SetNode(h.name)
	h.deps.Identity.SetNodeID("id-" + h.name)
	h.deps.Identity.Settle()
}

// runner returns the runner of network n, which does not run.
func (h *host) runner() *Runner {
	h.t.Helper()
	return New(h.deps, h.config, h.config.Networks[0], nil)
}

// follow keeps what the host knows of all networks up to date until ctx ends.
func (h *host) follow(ctx context.Context) {
	backoff := h.deps.Store.Outage.NewLoop()
	for index := uint64(0); ctx.Err() == nil; {
		set, next, err := h.registry.WatchNetworks(ctx, index)
		if err != nil {
			_ = backoff.Wait(ctx, err, nil)
			index = 0
			continue
		}
		index = next
		h.deps.Store.Networks.Set(Networks{set, next})
	}
}

// put stores a definition of network n with this pool and backend.
func (h *host) put(pool, backend string) {
	h.t.Helper()
	n := registry.Network{Name: "n", Plan: agenttest.Plan(h.t, pool), Backend: agenttest.Backend(h.t, backend, "")}
	must(h.t, h.store.Client().PutNetwork(h.t.Context(), n))
}

// remove deletes network n.
func (h *host) remove() {
	h.t.Helper()
	must(h.t, h.store.Client().DeleteNetwork(h.t.Context(), "n"))
}

// define changes the definition of network n in the store and returns it.
func (h *host) define(change func(n *registry.Network)) registry.Network {
	h.t.Helper()
	old := h.inStore()
	n := old
	change(&n)
	must(h.t, h.store.Client().PutNetwork(h.t.Context(), n.Replacing(old)))
	return h.inStore()
}

// inStore returns network n as the store has it.
func (h *host) inStore() registry.Network {
	h.t.Helper()
	n, err := h.store.Client().Network(h.t.Context(), "n")
	must(h.t, err)
	return n
}

// acquire stores a lease of this host.
func (h *host) acquire() registry.Lease {
	h.t.Helper()
	l, err := h.store.Client().Acquire(h.t.Context(), h.inStore(), registry.Claim{
		Node:      h.name,
		NodeID:    "id-" + h.name,
		PublicIPs: h.addrs,
		MTU:       1450,
		Backend:   agenttest.Backend(h.t, "recorder", ""),
		TTL:       time.Minute,
		Hold:      time.Hour,
	})
	must(h.t, err)
	return l
}

// reason returns the reason of a check of network n, "" if there is no such check.
func (h *host) reason(check string) string {
	report, _ := h.deps.Reports.Health.Report()
	for _, n := range report.Networks {
		for _, c := range n.Checks {
			if c.Name == check {
				return c.Reason
			}
		}
	}
	return ""
}

// recorder makes backends that record what they are given.
type recorder struct {
	mu     sync.Mutex
	passes []string // such as "recorder {} [10.5.0.0/22]: [10.5.1.0/24]"
	fail   error
	built  int
	closed int
}

func (r *recorder) kind(name string) backend.Type {
	return backend.Type{
		Name:      name,
		Normalize: func(o json.RawMessage) (json.RawMessage, error) { return o, nil },
		New: func(c backend.Config) (backend.Backend, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.built++
			return recording{r, name, c}, nil
		},
	}
}

type recording struct {
	*recorder
	name   string
	config backend.Config
}

func (r recording) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	return backend.Advertisement{MTU: u.MTU - 50, Attributes: json.RawMessage(`{}`)}, nil
}

func (r recording) Apply(_ context.Context, s backend.State) (backend.Report, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail == nil {
		r.passes = append(r.passes, fmt.Sprintf("%s %s %v: %v", r.name, r.config.Options, r.config.Pools, s.Subnets))
	}
	return backend.Report{}, r.fail
}

func (recording) Abilities() backend.Abilities { return backend.Abilities{} }

func (r recording) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed++
	return nil
}

// wall is a firewall without rules.
type wall struct {
	mu      sync.Mutex
	err     error
	wanted  [][]firewall.Network // of each Apply
	changed func()               // tells the host that rules changed; nil until the host watches
}

func (w *wall) Apply(_ context.Context, s firewall.State) (firewall.Report, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted = append(w.wanted, slices.Clone(s.Networks))
	return firewall.Report{}, w.err
}

func (w *wall) IsTouched() bool { return false }

func (w *wall) Watch(ctx context.Context, changed func()) error {
	w.mu.Lock()
	w.changed = changed
	w.mu.Unlock()
	<-ctx.Done()
	return nil
}

// setErr makes Apply fail, or succeed again with nil.
func (w *wall) setErr(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// asked returns the networks of each Apply.
func (w *wall) asked() [][]firewall.Network {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.wanted)
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// leaseOf returns a lease of this host that is in no store.
func leaseOf(slot uint64, session string, index uint64) registry.Lease {
	return registry.Lease{
		Network:     "n",
		Slot:        slot,
		Subnets:     []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", slot))},
		Node:        "a",
		NodeID:      "id-a",
		Session:     session,
		ModifyIndex: index,
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// tree returns the paths below dir.
func tree(t testing.TB, dir string) (out []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		out = append(out, strings.TrimPrefix(path, dir))
		return err
	}))
	return slices.DeleteFunc(out, func(path string) bool { return path == "" })
}

// empty removes everything from a store.
func empty(store *memory.Store) {
	for _, key := range store.Keys("") {
		store.Delete(key)
	}
}
