package peers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/events"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testNetwork returns the network of the leases of agenttest.Lease.
func testNetwork(t testing.TB) registry.Network {
	t.Helper()
	return registry.Network{
		Name:        "n",
		Plan:        agenttest.Plan(t, "10.5.0.0/20"),
		Backend:     agenttest.Backend(t, "alloc", ""),
		CreateIndex: 7,
	}
}

// A flakyStore is a store that can fail. Other than a faulty.Registry, it tells watches from reads of the leases on
// request: reads may hang and watches see no change while the others work.
type flakyStore struct {
	registry.Registry

	mu      sync.Mutex
	err     error         // of all reads of leases
	hangs   bool          // reads of all leases on request end only with their context
	isBlind bool          // watches see no change
	failed  bool          // the last watch failed, so the next one returns at once
	reads   int           // on request
	denied  bool          // reads of reservations are refused
	changed chan struct{} // closed when a field above has changed
}

func (s *flakyStore) set(change func(s *flakyStore)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *flakyStore) fail(err error) { s.set(func(s *flakyStore) { s.err = err }) }

func (s *flakyStore) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

func (s *flakyStore) WatchLeases(
	ctx context.Context, n registry.Network, after uint64,
) (registry.LeaseSet, uint64, error) {
	s.mu.Lock()
	if after == 0 {
		s.reads++
	}
	s.mu.Unlock()
	for ctx.Err() == nil {
		s.mu.Lock()
		err, waits, changed := s.err, after == 0 && s.hangs || after != 0 && after != registry.Known && s.isBlind, s.changed
		if after != 0 {
			if s.failed {
				after = registry.Known
			}
			s.failed = err != nil
		}
		s.mu.Unlock()
		if err != nil {
			return registry.LeaseSet{}, 0, err
		}
		if waits {
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		call, cancel := context.WithCancel(ctx)
		var interrupter sync.WaitGroup
		interrupter.Go(func() {
			select {
			case <-changed:
				cancel()
			case <-call.Done():
			}
		})
		set, index, err := s.Registry.WatchLeases(call, n, after)
		cancel()
		interrupter.Wait()
		if !errors.Is(err, context.Canceled) {
			return set, index, err
		}
	}
	return registry.LeaseSet{}, 0, ctx.Err()
}

func (s *flakyStore) WatchReservations(ctx context.Context, n registry.Network, after uint64) (
	registry.ReservationSet, uint64, error) {
	s.mu.Lock()
	denied := s.denied
	if after == 0 {
		s.reads++
	}
	s.mu.Unlock()
	if denied {
		return registry.ReservationSet{}, 0, registry.ErrDenied
	}
	return s.Registry.WatchReservations(ctx, n, after)
}

// A host is a Follower under test with all that it needs, in a network 10.5.0.0/20 named n. This host is a, on slot 1.
type host struct {
	*Follower
	t       *testing.T
	store   *memory.Store
	flaky   *flakyStore
	network registry.Network
	defined *watch.Value[registry.Network]
	own     *watch.Value[registry.Lease]
	setBack *watch.Value[struct{}]
	health  *health.Board
	events  *events.Log
	log     *agenttest.Lines

	mu         sync.Mutex
	remembered *Snapshot
	suspicions []string
	answers    int
}

// newHost returns a host whose Follower does not run.
func newHost(t *testing.T) *host {
	t.Helper()
	store := memory.New()
	h := &host{
		t:       t,
		store:   store,
		flaky:   &flakyStore{Registry: store.Client(), changed: make(chan struct{})},
		defined: watch.New[registry.Network](),
		own:     watch.New[registry.Lease](),
		setBack: watch.New[struct{}](),
		health:  health.New(time.Now, nil),
		events:  events.New(time.Now),
		log:     &agenttest.Lines{},
	}
	must(t, store.Client().PutNetwork(t.Context(), registry.Network{
		Name:    "n",
		Plan:    agenttest.Plan(t, "10.5.0.0/20"),
		Backend: agenttest.Backend(t, "alloc", ""),
	}))
	n, err := store.Client().Network(t.Context(), "n")
	must(t, err)
	h.network = n
	h.defined.Set(n)
	h.Follower = h.newFollower(h.flaky, t.TempDir())
	return h
}

// newFollower returns another Follower for the host, as another process has.
func (h *host) newFollower(reg registry.Registry, dataDir string) *Follower {
	log := hclog.New(&hclog.LoggerOptions{Output: h.log, Level: hclog.Trace})
	return New(Options{
		Network:  "n",
		DataDir:  dataDir,
		Identity: func() state.Identity { return state.Identity{Node: "a", NodeID: "id-a"} },
		Settings: config.Lease{TTL: 10 * time.Second, Hold: time.Hour},
		Registry: reg,
		Outage:   retry.NewOutageDetector(nil, func(error) retry.Class { return retry.Transient }),
		SetBack:  h.setBack,
		Report: report.New(report.Options{
			Network:   "n",
			Log:       log,
			Health:    h.health,
			Events:    h.events,
			Telemetry: telemetry.New(telemetry.Config{}, log, func(*telemetry.Reading) {}),
			Changed:   watch.New[struct{}](),
		}),
		Suspect: func(c Conflict) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.suspicions = append(h.suspicions, c.Reason)
		},
		Answered: func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.answers++
		},
		Remembered: func() (Snapshot, bool) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.remembered == nil {
				return Snapshot{}, false
			}
			return *h.remembered, true
		},
	})
}

// join acquires a lease for a host on a slot, and returns it.
func (h *host) join(name string, slot uint64, addrs ...netip.Addr) registry.Lease {
	h.t.Helper()
	like := agenttest.Lease(name, slot, "", 0)
	if len(addrs) > 0 {
		like.PublicIPs = addrs
	}
	lease, err := h.store.Client().Acquire(context.Background(), h.network, registry.Claim{
		Node:      name,
		NodeID:    like.NodeID,
		PublicIPs: like.PublicIPs,
		MTU:       1450,
		Backend:   h.network.Backend,
		Prefer:    like.Subnet(),
		TTL:       24 * time.Hour,
		Hold:      24 * time.Hour,
	})
	must(h.t, err)
	if lease.Slot != slot {
		h.t.Fatalf("%s has slot %d, want %d", name, lease.Slot, slot)
	}
	return lease
}

// key returns the key of a lease's record.
func key(l registry.Lease) string {
	return memory.Prefix + "/leases/n/" + registry.SubnetKey(l.Subnet())
}

// start gives this host slot 1 and runs its Follower until stop is called or the test ends.
func (h *host) start() (stop func()) {
	h.t.Helper()
	if _, held, _ := h.own.Get(); !held {
		h.own.Set(h.join("a", 1))
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	follower := h.Follower
	go func() { done <- follower.Run(ctx, h.defined, h.own) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			h.t.Errorf("Run returned %v", err)
		}
	})
	h.t.Cleanup(stop)
	synctest.Wait()
	return stop
}

// view returns the current view as text, such as "10.5.1.0/24 <- b@10.5.2.0/24", or "none".
func (h *host) view() string {
	synctest.Wait()
	v, ok, _ := h.Views().Get()
	if !ok {
		return "none"
	}
	var peers []string
	for _, p := range v.Peers() {
		peers = append(peers, fmt.Sprint(p.Node, "@", p.Subnets[0]))
	}
	return fmt.Sprint(v.Own.Subnet(), " <- ", strings.Join(peers, ", "))
}

func (h *host) wantView(want string) {
	h.t.Helper()
	if got := h.view(); got != want {
		h.t.Errorf("view %q, want %q", got, want)
	}
}

// wantCheck expects a health check with a status and words of its reason. The status is "" for a check that is missing.
func (h *host) wantCheck(name, status string, words ...string) {
	h.t.Helper()
	synctest.Wait()
	all, _ := h.health.Report()
	checks := all.Networks[0].Checks
	i := slices.IndexFunc(checks, func(c api.Check) bool { return c.Name == name })
	if i < 0 {
		if status != "" {
			h.t.Errorf("no check %s in %+v", name, checks)
		}
		return
	}
	missing := func(word string) bool { return !strings.Contains(checks[i].Reason, word) }
	if c := checks[i]; c.Status != status || slices.ContainsFunc(words, missing) {
		h.t.Errorf("%+v, want %s and %q", c, status, words)
	}
}

// messagesOf returns the messages of all events of a kind.
func (h *host) messagesOf(kind string) []string {
	synctest.Wait()
	list, _, _ := h.events.After(0, "n")
	return messages(slices.DeleteFunc(list, func(v api.Event) bool { return v.Kind != kind }))
}

// suspected returns what Suspect was called with so far.
func (h *host) suspected() []string {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.suspicions)
}
