package agent

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/flapping"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/telemetry"
)

// Rules are the firewall of this host, written as a whole.
type Rules interface {
	// Apply is called by one goroutine at a time, as Touched is.
	Apply(ctx context.Context, s firewall.State) (firewall.Report, error)
	// Touched says whether rules that nobody tells of are other than at the last
	// Apply. It is cheap.
	Touched() bool
	// Watch blocks until ctx ends and calls changed when somebody, this process
	// included, may have changed rules.
	Watch(ctx context.Context, changed func()) error
}

var _ Rules = (*firewall.Firewall)(nil)

// firewallKeeper gathers what the networks want of the firewall, which is
// written as a whole, keeps it that way, and says so in health. Safe for
// concurrent use.
type firewallKeeper struct {
	log       hclog.Logger
	health    *health.Board
	rules     Rules
	stirred   chan struct{} // receives one value for any number of changes
	applies   chan struct{} // receives one value for any number of calls of apply
	expected  expectation
	told      func()            // of each change of nf_tables; nil for nobody
	healed    func(what string) // told of what somebody else had changed
	telemetry *telemetry.Telemetry

	turn sync.Mutex // held around the rules' methods, taken before mu

	mu      sync.Mutex // never held while a program runs: that may hang
	busy    bool       // rules.Apply runs
	config  config.Firewall
	wanted  map[string]firewall.Network
	shown   map[string]bool // networks of wanted that are there, by their lease or by what stands
	applied *attempt        // with success, nil after a failure
	failed  *attempt        // the last one, nil after a success
	err     error           // of failed
	retry   *retry.Backoff
	again   time.Time // when to try again after a failure
	looked  time.Time // when the rules were last looked at, with success or not
	report  firewall.Report
	drift   flapping.Detector
	faults  health.ActiveFaults
}

// attempt is what was wanted at some time.
type attempt struct {
	config config.Firewall
	wanted map[string]firewall.Network
}

func newFirewallKeeper(rules Rules, c config.Firewall, log hclog.Logger, h *health.Board) *firewallKeeper {
	return &firewallKeeper{log: log, health: h, rules: rules, config: c, stirred: make(chan struct{}, 1), applies: make(chan struct{}, 1),
		wanted: map[string]firewall.Network{}, shown: map[string]bool{}, retry: retry.NewBackoff(), healed: func(string) {}}
}

func firewallNetwork(local config.Network, pools, subnets []netip.Prefix) firewall.Network {
	return firewall.Network{Name: local.Name, Pools: pools, Subnets: subnets, IPMasq: local.IPMasq, Forward: local.Forward}
}

// remember starts from what an earlier process left for the networks this host
// still wants, so that the first network that is ready does not take the others'
// rules away.
func (k *firewallKeeper) remember(c config.Config, wanted func(name string) (config.Network, bool)) {
	// wanted takes a lock that others hold while they ask the keeper.
	left := map[string]firewall.Network{}
	for _, name := range state.Networks(c.DataDir) {
		// A broken state file is reported where the lease needs it.
		before, err := state.Load(c.DataDir, name)
		local, ok := wanted(name)
		if err == nil && ok && len(before.Subnets) > 0 && before.Backend.Type != "alloc" {
			left[name] = firewallNetwork(local, before.Pools, before.Subnets)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.Copy(k.wanted, left)
}

// stands says that the datapath of a network that is remembered stands, so that
// its rules are kept before anything confirms them.
func (k *firewallKeeper) stands(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.wanted[name]; ok {
		k.shown[name] = true
		poke(k.stirred)
	}
}

// configure takes over how rules are kept.
func (k *firewallKeeper) configure(c config.Firewall) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.config = c
	poke(k.stirred)
}

// put sets one network's wishes, and has them in force when it returns without an
// error. What failed for the same wishes is tried again at its time, and not at
// each call.
func (k *firewallKeeper) put(ctx context.Context, n firewall.Network) error {
	k.want(n)
	k.expected.meet(n.Name)
	k.expected.wait(ctx)
	if tried, err := k.tried(n.Name); tried {
		return err
	}
	k.turn.Lock()
	defer k.turn.Unlock()
	if tried, err := k.tried(n.Name); tried {
		return err // by whoever had the turn
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.apply(ctx)
}

// tried shows a network and says whether what is wanted now was applied, with
// success, or so lately that it is not yet to be tried again, or is being: nobody
// has to wait for that.
func (k *firewallKeeper) tried(network string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shown[network] = true
	now := attempt{k.config, k.wanted}
	failed := reflect.DeepEqual(k.failed, &now) && (k.busy || time.Now().Before(k.again))
	if !failed && !reflect.DeepEqual(k.applied, &now) {
		return false, nil
	}
	k.tell()
	return true, k.err
}

func (k *firewallKeeper) want(n firewall.Network) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wanted[n.Name] = n
}

// drop takes one network's rules away, also those of an earlier process that were
// not remembered.
func (k *firewallKeeper) drop(ctx context.Context, name string) error {
	k.expected.meet(name)
	k.turn.Lock()
	defer k.turn.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	_, known := k.wanted[name]
	if !known && k.applied != nil {
		return nil
	}
	delete(k.wanted, name)
	delete(k.shown, name)
	err := k.apply(ctx)
	if !known && errors.Is(err, firewall.ErrNotInstalled) {
		return nil // there are no rules where nothing could have made them
	}
	return err
}

// apply looks at the rules and mends them; turn and mu are held, and mu not
// meanwhile.
func (k *firewallKeeper) apply(ctx context.Context) error {
	state := firewall.State{Type: firewall.Type(k.config.Type), RandomFully: k.config.RandomFully}
	for _, name := range slices.Sorted(maps.Keys(k.wanted)) {
		state.Networks = append(state.Networks, k.wanted[name])
	}
	now := &attempt{k.config, maps.Clone(k.wanted)}
	k.busy = true
	k.mu.Unlock()
	started := time.Now()
	report, err := k.rules.Apply(ctx, state)
	k.mu.Lock()
	k.busy = false
	k.looked = time.Now()
	k.counted(k.looked.Sub(started), report.Writes, len(report.Healed), err)
	poke(k.applies)
	k.note(k.looked, report.Healed)
	if err == nil {
		k.applied, k.failed, k.err, k.report = now, nil, nil, report
		k.retry.Reset()
	} else {
		k.applied = nil
		if ctx.Err() == nil {
			k.failed, k.err, k.again = now, err, k.looked.Add(k.retry.Next())
		}
	}
	k.tell()
	return err
}
