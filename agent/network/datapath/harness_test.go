package datapath

import (
	"bytes"
	"context"
	"encoding/json"
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
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/registry"
)

// A lab is a reconciler of network n whose backend, kernel and underlay are the test's.
type lab struct {
	t       *testing.T
	options Options
	board   *health.Board
	events  *events.Log
	log     bytes.Buffer
	views   *watch.Value[*peers.View]
	r       *Reconciler

	mu      sync.Mutex
	choice  underlay.Choice
	named   underlay.Choice // of an interface that is named
	gone    error           // why there is no underlay
	forward func(links []string, set bool) (forwarding.State, error)
	fail    error          // of Apply
	result  backend.Report // of Apply

	overhead   int    // in the result of Advertise
	attributes string // in the result of Advertise
	passes     []pass
	served     []string // such as "10.5.1.0/24 true" for each call of Serve
	moved      []string // such as "192.0.2.9 true" for each call of UnderlayChanged
	closed     int
	guarded    []string // such as "[10.5.0.0/16] true" for each call of Guard
	rules      []string // such as "[10.5.0.0/16] 100" for each call of PreferMain
	replaced   []string // such as "[10.4.0.0/15] [10.5.0.0/16] true" for each call of ReplacePools
	onApply    func()

	detours map[string]kernel.Detour // by node name
	saved   []string                 // what ServeSaved was called with: the subnet and the MTU
	asked   []string                 // names of the peers of each call of FindDetours, such as "b c"
}

// A pass is a call of Apply.
type pass struct {
	at    time.Time
	state backend.State
}

// newLab returns a lab on eth0 with the address 192.0.2.1, without a backend.
func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, views: watch.New[*peers.View](), overhead: 50, attributes: "{}"}
	l.choice = underlay.Choice{
		Interface: "eth0",
		Index:     2,
		MTU:       1500,
		MTUFrom:   "eth0",
		Reason:    "test",
		Addrs:     []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Devices:   []string{"eth0"},
	}
	log := hclog.New(&hclog.LoggerOptions{Output: &l.log, Level: hclog.Trace})
	l.board, l.events = health.New(time.Now, nil), events.New(time.Now)
	l.options = Options{
		Network: "n",
		DataDir: t.TempDir(),
		Forward: true,
		Others:  func() []netip.Prefix { return nil },
		Host: &Host{
			NodeID:           func() string { return "id-a" },
			Backends:         map[string]backend.Type{"recorder": l.kind("recorder"), "other": l.kind("other")},
			Processors:       &Processors{},
			Kernel:           watch.New[struct{}](),
			SelectUnderlay:   l.selectUnderlay,
			EnsureForwarding: l.ensureForwarding,
			Guard:            l.guard,
			PreferMain:       l.preferMain,
			ReplacePools:     l.replacePools,
			FindDetours:      l.findDetours,
		},
		Report: report.New(report.Options{
			Network:   "n",
			Log:       log,
			Health:    l.board,
			Events:    l.events,
			Telemetry: telemetry.New(telemetry.Config{}, log, func(*telemetry.Reading) {}),
			Changed:   watch.New[struct{}](),
		}),
		Serve: func(_ context.Context, v *peers.View, s backend.State, applied bool) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.served = append(l.served, fmt.Sprint(v.Own.Subnet(), " ", applied))
			return nil
		},
		ServeSaved: func(_ context.Context, v *peers.View, s backend.State) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.saved = append(l.saved, fmt.Sprint(v.Own.Subnet(), " ", s.MTU))
			return nil
		},
		UnderlayChanged: func(_ registry.Network, u UnderlayState, readdressed bool) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.moved = append(l.moved, fmt.Sprint(u.Choice.Addrs[0], " ", readdressed))
		},
	}
	l.r = New(l.options, nil)
	return l
}

func (l *lab) selectUnderlay(u config.Underlay, _ []netip.Prefix, _ []netip.Addr) (underlay.Choice, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(u.Interfaces) > 0 && u.Interfaces[0] == l.named.Interface {
		return l.named, nil
	}
	return l.choice, l.gone
}

func (l *lab) guard(_ context.Context, owner kernel.Owner, wanted bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.guarded = append(l.guarded, fmt.Sprint(owner.Parts(), wanted))
	return nil
}

func (l *lab) preferMain(_ context.Context, owner kernel.Owner, priority int, _ bool) ([]backend.Repair, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rules = append(l.rules, fmt.Sprint(owner.Parts(), priority))
	return nil, nil
}

func (l *lab) replacePools(_ context.Context, before kernel.Owner, present []netip.Prefix, guards bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.replaced = append(l.replaced, fmt.Sprint(before.Pools, present, guards))
	return nil
}

func (l *lab) findDetours(q kernel.PathQuery) (out []kernel.Detour, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for _, p := range q.Peers {
		names = append(names, p.Node)
		if d, ok := l.detours[p.Node]; ok {
			out = append(out, d)
		}
	}
	l.asked = append(l.asked, strings.Join(names, " "))
	return out, nil
}

func (l *lab) ensureForwarding(_ netip.Prefix, links []string, set bool) (forwarding.State, error) {
	if l.forward == nil {
		return forwarding.State{}, nil
	}
	return l.forward(links, set)
}

func (l *lab) kind(name string) backend.Type {
	return backend.Type{
		Name:      name,
		Device:    true,
		Normalize: func(o json.RawMessage) (json.RawMessage, error) { return o, nil },
		New:       func(backend.Config) (backend.Backend, error) { return recording{l}, nil },
	}
}

// recording is the lab's backend.
type recording struct{ lab *lab }

func (b recording) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	b.lab.mu.Lock()
	defer b.lab.mu.Unlock()
	return backend.Advertisement{
		MTU:        u.MTU - b.lab.overhead,
		Overhead:   fmt.Sprint(b.lab.overhead, " for a test"),
		Attributes: json.RawMessage(b.lab.attributes),
	}, nil
}

func (b recording) Apply(_ context.Context, s backend.State) (backend.Report, error) {
	b.lab.mu.Lock()
	b.lab.passes = append(b.lab.passes, pass{time.Now(), s})
	result, err, hook := b.lab.result, b.lab.fail, b.lab.onApply
	b.lab.mu.Unlock()
	result.Peers = len(s.Peers)
	if hook != nil {
		hook()
	}
	return result, err
}

func (recording) Abilities() backend.Abilities { return backend.Abilities{} }

func (b recording) Close() error {
	b.lab.mu.Lock()
	defer b.lab.mu.Unlock()
	b.lab.closed++
	return nil
}

// network returns network n with the backend "recorder".
func (l *lab) network() registry.Network {
	l.t.Helper()
	plan, err := registry.Plan{{Prefix: netip.MustParsePrefix("10.5.0.0/16")}}.Normalize()
	if err != nil {
		l.t.Fatal(err)
	}
	b, err := registry.NewBackend("recorder", json.RawMessage(`{}`))
	if err != nil {
		l.t.Fatal(err)
	}
	return registry.Network{Name: "n", Plan: plan, Backend: b}
}

// view returns a view in which this host has slot 1 and the peers have slots 2 and up.
func (l *lab) view(others ...string) *peers.View {
	l.t.Helper()
	v := &peers.View{Network: l.network(), Own: leaseOf("a", 1)}
	v.Leases = append(v.Leases, v.Own)
	for i, name := range others {
		v.Leases = append(v.Leases, leaseOf(name, uint64(i+2)))
	}
	return v
}

func leaseOf(host string, slot uint64) registry.Lease {
	return registry.Lease{
		Network:   "n",
		Slot:      slot,
		Subnets:   []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.5.%d.0/24", slot))},
		Node:      host,
		NodeID:    "id-" + host,
		Session:   "s" + host,
		PublicIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(slot)})},
	}
}

// built makes the backend.
func (l *lab) built() *lab {
	l.t.Helper()
	d, c, err := l.r.Configure(l.network().Carriage(), l.network().Plan.Prefixes())
	if err == nil {
		err = l.r.Build(d, c)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return l
}

// run runs the reconciler until the returned function is called. The caller is in a synctest bubble.
func (l *lab) run() (stop func()) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(l.t.Context())
	u, err := l.r.AwaitUnderlay(ctx, l.network())
	if err != nil {
		l.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- l.r.Run(ctx, l.network(), l.views, u) }()
	return func() {
		cancel()
		if err := <-ended; err != context.Canceled {
			l.t.Errorf("Run returned %v", err)
		}
	}
}

// kick tells the reconciler that the kernel has changed.
func (l *lab) kick() { l.options.Host.Kernel.Set(struct{}{}) }

// edit changes what the lab's kernel and backend do.
func (l *lab) edit(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// applied returns the number of passes and the state of the last one, such as "10.5.1.0/24 <- b c".
func (l *lab) applied() (int, string) {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.passes) == 0 {
		return 0, ""
	}
	s := l.passes[len(l.passes)-1].state
	var names []string
	for _, p := range s.Peers {
		names = append(names, p.Node)
	}
	return len(l.passes), fmt.Sprintf("%s <- %s", s.Subnets[0], strings.Join(names, " "))
}

// check fails the test unless the check has the status and its reason contains all words.
func (l *lab) check(name, status string, words ...string) {
	l.t.Helper()
	all, _ := l.board.Report()
	i := slices.IndexFunc(all.Networks[0].Checks, func(c api.Check) bool { return c.Name == name })
	if i < 0 {
		l.t.Errorf("there is no check %s", name)
		return
	}
	c := all.Networks[0].Checks[i]
	missing := slices.DeleteFunc(words, func(w string) bool { return strings.Contains(c.Reason, w) })
	if c.Status != status || len(missing) > 0 {
		l.t.Errorf("check %s is %s: %s; want %s with %q", name, c.Status, c.Reason, status, missing)
	}
}

func (l *lab) logged(text string) int { return strings.Count(l.log.String(), text) }

// recorded returns the messages of the events about the network.
func (l *lab) recorded() (out []string) {
	all, _, _ := l.events.After(0, "n")
	for _, e := range all {
		if e.Kind == api.EventNetwork {
			out = append(out, e.Message)
		}
	}
	return out
}
