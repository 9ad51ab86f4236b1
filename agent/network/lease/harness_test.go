package lease

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
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
	"github.com/lenonet/leno/internal/testkit/faulty"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A host keeps a lease of network "n" in a store. Its methods may be called in a synctest bubble only.
type host struct {
	t        testing.TB
	store    *memory.Store
	registry *faulty.Registry
	options  Options
	networks *watch.Value[struct{}]
	board    *health.Board
	events   *events.Log
	log      *agenttest.Lines
	id       state.Identity
	address  netip.Addr
	nat      netip.Addr // the public address of a host whose address is behind NAT
	dir      string

	mu       sync.Mutex
	answered int // calls of Options.Answered
	resumed  Resumed
	saveErr  error // of Options.Save

	keeper *Keeper
	end    context.CancelFunc
	exited chan error // has the result of Acquire or Keep
}

// newHost returns a host with a node name such as "a", which has not started. The network is defined with three slots,
// 10.5.1.0/24 to 10.5.3.0/24, if the store has none.
func newHost(t testing.TB, store *memory.Store, name string) *host {
	t.Helper()
	h := &host{
		t:        t,
		store:    store,
		registry: faulty.New(store.Client()),
		networks: watch.New[struct{}](),
		id:       state.Identity{Node: name, NodeID: "id-" + name},
		address:  netip.AddrFrom4([4]byte{192, 0, 2, name[0]}),
		dir:      t.TempDir(),
	}
	if _, err := store.Client().Network(t.Context(), "n"); errors.Is(err, registry.ErrNetworkNotFound) {
		must(t, store.Client().PutNetwork(t.Context(), definition(t)))
	}
	h.options = Options{
		Network:    "n",
		SubnetFile: filepath.Join(h.dir, "n.env"),
		Settings: config.Lease{
			TTL:         time.Minute,
			RenewMargin: 40 * time.Second,
			Hold:        time.Hour,
			OnLost:      config.OnLostRenumber,
		},
		Former:   state.NewFormerSubnets(h.dir),
		Identity: func() state.Identity { return h.id },
		Registry: h.registry,
		Outage:   retry.NewOutageDetector(nil, classify),
		Networks: func() <-chan struct{} {
			_, _, changed := h.networks.Get()
			return changed
		},
		Resumed: func() Resumed {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.resumed
		},
		Answered: func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.answered++
		},
		Save: func(n registry.Network, lease registry.Lease) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.saveErr != nil {
				return h.saveErr
			}
			return h.save(n, lease)
		},
	}
	h.build()
	return h
}

// build makes the keeper of a new process. It finds the files of the process before.
func (h *host) build() *host {
	h.board, h.events, h.log = health.New(time.Now, nil), events.New(time.Now), &agenttest.Lines{}
	log := hclog.New(&hclog.LoggerOptions{Output: h.log, Level: hclog.Trace})
	h.options.Report = report.New(report.Options{
		Network:   "n",
		Log:       log,
		Health:    h.board,
		Events:    h.events,
		Telemetry: telemetry.New(telemetry.Config{}, log, func(*telemetry.Reading) {}),
		Changed:   watch.New[struct{}](),
	})
	h.options.State = state.NewFile(h.dir, "n")
	h.keeper = New(h.options)
	return h
}

// start does what the runner of a network does with a keeper, until stop is called or the test ends. Settings must be
// changed with configure.
func (h *host) start() *host {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	k, n, exited := h.keeper, h.network(), make(chan error, 1)
	var all sync.WaitGroup
	all.Go(func() { k.RenewSession(ctx) })
	all.Go(func() { h.saveLeases(ctx, k, n) })
	all.Go(func() {
		round, stop := k.UntilReleased(ctx)
		defer stop()
		err := h.round(round, k, n, netip.Prefix{})
		for superseded := (*WithdrawnError)(nil); errors.As(err, &superseded); {
			err = h.round(round, k, n, superseded.Subnet)
		}
		if !errors.Is(k.Outcome(), ErrReleased) {
			exited <- err
			return
		}
		k.Reset()
		k.report.SetState(ReleasedAdvice)
		k.ConfirmRelease(nil)
		<-ctx.Done()
		exited <- ErrReleased
	})
	stop := sync.OnceFunc(func() {
		cancel()
		all.Wait()
		k.Close()
	})
	h.exited, h.end = exited, stop
	h.t.Cleanup(stop)
	return h
}

// round runs until the lease is lost. previous is the subnet that was withdrawn, if any.
func (h *host) round(ctx context.Context, k *Keeper, n registry.Network, previous netip.Prefix) error {
	var claim registry.Claim
	lease, err := k.Acquire(ctx, func() (registry.Network, registry.Claim) {
		claim = k.Claim(n, h.attributes())
		return n, claim
	})
	if err != nil {
		return err
	}
	if previous.IsValid() && previous != lease.Subnet() {
		if err := k.Moved(n, previous, lease); err != nil {
			return err
		}
	}
	k.SetClaim(claim)
	return k.Keep(ctx, defined(n), lease, claim)
}

// restart ends the process and starts another one.
func (h *host) restart() *host {
	h.t.Helper()
	h.end()
	return h.build().start()
}

func (h *host) configure(change func(*Options)) *host {
	change(&h.options)
	return h.build()
}

// saveLeases writes each lease down for the next process.
func (h *host) saveLeases(ctx context.Context, k *Keeper, n registry.Network) {
	for {
		lease, held, changed := k.Lease().Get()
		if held {
			must(h.t, h.save(n, lease))
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func (h *host) save(n registry.Network, lease registry.Lease) error {
	return h.options.State.Update(func(before state.Network, _ error) state.Network {
		return state.Network{
			Subnets:    lease.Subnets,
			Session:    lease.Session,
			Lease:      lease.ModifyIndex,
			Definition: n.CreateIndex,
			Renewed:    time.Now(),
			Revoked:    h.keeper.Status().Revoked,
			Carriage:   n.Carriage(),
		}
	})
}

// network returns the definition in the store.
func (h *host) network() registry.Network {
	h.t.Helper()
	n, err := h.store.Client().Network(context.Background(), "n")
	must(h.t, err)
	return n
}

func (h *host) attributes() Attributes {
	out := Attributes{PublicIPs: []netip.Addr{h.address}, MTU: 1450, Backend: vxlan()}
	if h.nat.IsValid() {
		attributes := fmt.Appendf(nil, `{"listen_port":51820,"local_ips":[%q]}`, h.address)
		out.PublicIPs = []netip.Addr{h.nat}
		out.Backend, _ = registry.NewBackend("wireguard", attributes)
	}
	return out
}

// own returns the claim of a host that never had a lease.
func (h *host) own() registry.Claim { return h.keeper.Claim(h.network(), h.attributes()) }

// lease returns the lease that the keeper publishes.
func (h *host) lease() registry.Lease {
	lease, _, _ := h.keeper.Lease().Get()
	return lease
}

func (h *host) subnet() netip.Prefix { return h.lease().Subnet() }

// record returns what the store has for a subnet.
func (h *host) record(subnet netip.Prefix) (value, session string) {
	data, session, _ := h.store.Get(leaseKey(subnet))
	return string(data), session
}

// held waits until the lease is held, in the store too, and the check passes.
func (h *host) held() registry.Lease {
	h.t.Helper()
	h.eventually("the lease is held", func() bool {
		_, session := h.record(h.subnet())
		return session != "" && session == h.lease().Session && h.checked(health.Lease).Status == api.Passing
	})
	return h.lease()
}

// eventually lets time pass until the condition is true, for at most ten minutes.
func (h *host) eventually(what string, condition func() bool) {
	h.t.Helper()
	for end := time.Now().Add(10 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		synctest.Wait()
		if condition() {
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("host %s: not so: %s\nlease check %+v\nlog:\n%s",
				h.id.Node, what, h.checked(health.Lease), h.log)
		}
	}
}

// checked returns a check of the network.
func (h *host) checked(name string) api.Check {
	all, _ := h.board.Report()
	for _, n := range all.Networks {
		for _, c := range n.Checks {
			if c.Name == name {
				return c
			}
		}
	}
	return api.Check{}
}

// check waits until a check has the status and names all words.
func (h *host) check(name, status string, words ...string) {
	h.t.Helper()
	h.eventually(name+" is "+status+": "+strings.Join(words, ", "), func() bool {
		c := h.checked(name)
		return c.Status == status && !slices.ContainsFunc(words, func(w string) bool {
			return !strings.Contains(c.Reason, w)
		})
	})
}

// eventTexts are how severe each change of a lease is, and what its event says besides the subnet.
var eventTexts = map[string][2]string{
	"taken":      {api.Info, "this host holds "},
	"lost":       {api.Warning, " was lost, taking it back: "},
	"revoked":    {api.Critical, " was revoked, taking another subnet"},
	"renumbered": {api.Critical, ": its containers must be restarted"},
	"superseded": {api.Critical, "this host has withdrawn it"},
}

// changes returns what the events say about the lease, for example "taken 10.5.1.0/24".
func (h *host) changes() (out []string) {
	h.t.Helper()
	all, _, _ := h.events.After(0, "n")
	for _, v := range all {
		if v.Kind != api.EventLease {
			continue
		}
		change, subnet := v.Fields["change"], v.Fields["subnet"]
		if want := eventTexts[change]; v.Severity != want[0] || !strings.Contains(v.Message, want[1]) || !strings.Contains(v.Message, subnet) {
			h.t.Errorf("event %+v, want severity %s and %q", v, want[0], want[1])
		}
		if before := v.Fields["before"]; !strings.Contains(v.Message, before) {
			h.t.Errorf("event %+v does not name %s", v, before)
		}
		out = append(out, change+" "+subnet)
	}
	return out
}

// rival takes a lease for another host, which has no keeper.
func (h *host) rival(name string, prefer netip.Prefix) registry.Lease {
	h.t.Helper()
	lease, err := h.store.Client().Acquire(context.Background(), h.network(), registry.Claim{
		Node:      name,
		NodeID:    "id-" + name,
		PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, name[0]})},
		MTU:       1450,
		Backend:   vxlan(),
		Prefer:    prefer,
		TTL:       time.Hour,
		Hold:      time.Hour,
	})
	must(h.t, err)
	return lease
}

// put writes a lease's value into the store and keeps the lock.
func (h *host) put(l registry.Lease) {
	h.t.Helper()
	value, err := registry.FormatLease(l)
	must(h.t, err)
	h.store.Put(leaseKey(l.Subnet()), value)
}

func leaseKey(subnet netip.Prefix) string {
	return memory.Prefix + "/leases/n/" + registry.SubnetKey(subnet)
}

// empty deletes everything from the store, as restoring a backup may.
func empty(store *memory.Store) {
	for _, key := range store.Keys("") {
		store.Delete(key)
	}
}

func definition(t testing.TB) registry.Network {
	t.Helper()
	return registry.Network{Name: "n", Plan: agenttest.Plan(t, "10.5.0.0/22"), Backend: vxlan()}
}

func vxlan() registry.Backend {
	return registry.Backend{Type: "vxlan", Object: []byte(`{"type":"vxlan"}`)}
}

// classify is like the agent's.
func classify(err error) retry.Class {
	switch {
	case errors.Is(err, registry.ErrUnavailable):
		return retry.Unavailable
	case errors.Is(err, registry.ErrDenied):
		return retry.Denied
	case errors.Is(err, registry.ErrNetworkFull), errors.Is(err, registry.ErrDuplicateNode):
		return retry.NeedsOperator
	}
	return retry.Transient
}

// defined returns n as the definition in force.
func defined(n registry.Network) *watch.Value[registry.Network] {
	v := watch.New[registry.Network]()
	v.Set(n)
	return v
}
