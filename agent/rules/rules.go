// Package rules merges what the networks of this host want from its firewall, keeps those rules as they are wanted,
// and watches for rules of other programs that are in the way. It writes one health check for each of both.
package rules

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// Firewall holds the rules of this host, which are written as a whole.
type Firewall interface {
	// Apply makes the firewall hold exactly these rules. One goroutine at a time calls Apply and Touched.
	Apply(ctx context.Context, s firewall.State) (firewall.Report, error)
	// Touched reports whether rules whose changes are not announced differ from those of the last Apply. It is cheap.
	IsTouched() bool
	// Watch blocks until ctx ends and calls changed when a program, possibly this process, may have changed rules.
	Watch(ctx context.Context, changed func()) error
}

var _ Firewall = (*firewall.Firewall)(nil)

// Hooks are called by a Keeper. They must not block or call the Keeper. Each may be nil.
type Hooks struct {
	Changed  func()               // a program, possibly this process, may have changed rules
	Repaired func(message string) // another program had changed leno's rules, which are right again
	Applied  func(Pass)
}

// Pass describes one look at the rules, which writes what differs.
type Pass struct {
	Took     time.Duration
	Writes   int // tables written
	Repaired int // tables that another program had changed
	Err      error
}

// Keeper keeps the rules that all networks want together. It is safe for concurrent use.
type Keeper struct {
	log     hclog.Logger
	health  *health.Board
	hooks   Hooks
	changed chan struct{} // receives one value for any number of changes
	applied chan struct{} // receives one value for any number of passes
	pending pendingNetworks
	faults  health.ActiveFaults
	writer  writer
	desired desired
}

// writer is the firewall, used by one caller at a time.
type writer struct {
	mu       sync.Mutex // taken before that of desired
	firewall Firewall
}

// New returns a Keeper. It changes nothing on the host.
func New(fw Firewall, c config.Firewall, log hclog.Logger, board *health.Board, hooks Hooks) *Keeper {
	if hooks.Changed == nil {
		hooks.Changed = func() {}
	}
	if hooks.Repaired == nil {
		hooks.Repaired = func(string) {}
	}
	if hooks.Applied == nil {
		hooks.Applied = func(Pass) {}
	}
	return &Keeper{
		log:     log,
		health:  board,
		hooks:   hooks,
		changed: make(chan struct{}, 1),
		applied: make(chan struct{}, 1),
		writer:  writer{firewall: fw},
		desired: newDesired(c),
	}
}

// Carried is a network as this host carries it.
type Carried struct {
	Pools, Subnets []netip.Prefix
	Carriage       registry.Carriage
	Underlay       backend.Underlay // the zero value if it is not known
	Peers          []netip.AddrPort // see backend.Report.Endpoints
}

// Wishes returns what a network wants from the firewall, given this host's block for it. kinds are the backends by
// type.
func Wishes(kinds map[string]backend.Type, local config.Network, c Carried) firewall.Network {
	out := firewall.Network{
		Name:     local.Name,
		Pools:    c.Pools,
		Subnets:  c.Subnets,
		IPMasq:   local.IPMasq,
		Forward:  local.Forward,
		Tunnels:  backend.LinkNames(local.Name),
		Peers:    slices.Clone(c.Peers),
		Underlay: c.Underlay.Devices,
	}
	backends := carriage.Of(c.Carriage)
	for _, port := range backends.Ports(kinds) {
		if port.Number != 0 {
			out.Ports = append(out.Ports, uint16(port.Number))
		}
	}
	slices.SortFunc(out.Peers, netip.AddrPort.Compare)
	out.Peers = slices.Compact(out.Peers) // two devices may reach one endpoint
	slices.Sort(out.Ports)
	out.Ports = slices.Compact(out.Ports)
	out.Sealed = backends.Tunnels(kinds)
	return out
}

// Remember starts from what an earlier process left in dataDir for the networks this host still wants, so that the
// first network that is ready does not remove the rules of the others.
func (k *Keeper) Remember(kinds map[string]backend.Type, dataDir string,
	wanted func(name string) (config.Network, bool)) {
	// wanted takes a lock that others hold while they call the Keeper: no lock is held here.
	var networks []firewall.Network
	for _, name := range state.Networks(dataDir) {
		// A broken state file is reported where the lease needs it.
		before, err := state.Load(dataDir, name)
		local, ok := wanted(name)
		if err == nil && ok && len(before.Subnets) > 0 && before.Backend.Type != "alloc" {
			networks = append(networks, Wishes(kinds, local, Carried{Pools: before.Reach(), Subnets: before.Subnets,
				Carriage: before.Carriage, Underlay: backend.Underlay{Devices: before.Devices}, Peers: before.Endpoints}))
		}
	}
	k.desired.want(networks...)
}

// Resume keeps the rules of a remembered network from now on, because its datapath exists, although the store has not
// confirmed them yet.
func (k *Keeper) Resume(name string) {
	if k.desired.resume(name) {
		poke(k.changed)
	}
}

// Configure takes over how rules are kept.
func (k *Keeper) Configure(c config.Firewall) {
	k.desired.configure(c)
	poke(k.changed)
}

// Expect adds a network whose rules exist in the firewall although nothing tells what they are. No rules are written
// until it is resolved or given up.
func (k *Keeper) Expect(name string) { k.pending.add(name) }

// Resolve removes a network that Expect added: its wishes are known, or it has none.
func (k *Keeper) Resolve(name string) { k.pending.resolve(name) }

// Put sets one network's wishes and blocks until they are in force. It returns an error if packets need rules that are
// not in force. Wishes that failed are tried again when their pause is over, not at each call.
func (k *Keeper) Put(ctx context.Context, n firewall.Network) error {
	k.desired.want(n)
	k.pending.resolve(n.Name)
	k.pending.wait(ctx)
	err := k.put(ctx, n.Name)
	if isHarmless(n, err) {
		return nil
	}
	return err
}

func (k *Keeper) put(ctx context.Context, network string) error {
	if done, err := k.tried(network); done {
		return err
	}
	k.writer.mu.Lock()
	defer k.writer.mu.Unlock()
	if done, err := k.tried(network); done {
		return err // another network's call applied the same wishes
	}
	return k.apply(ctx)
}

// tried marks a network as present. It reports whether the current wishes need no attempt now, because they were
// applied, failed a short time ago, or failed and are being applied, and returns the error of the last attempt.
func (k *Keeper) tried(network string) (done bool, err error) {
	k.desired.mu.Lock()
	defer k.desired.mu.Unlock()
	k.desired.present[network] = true
	if !k.desired.isTried(time.Now()) {
		return false, nil
	}
	k.writeChecks()
	return true, k.desired.last.err
}

// Drop removes one network's rules, also those of an earlier process that were not remembered. What stays is removed
// later by Run.
func (k *Keeper) Drop(ctx context.Context, name string) error {
	k.pending.resolve(name)
	k.writer.mu.Lock()
	defer k.writer.mu.Unlock()
	known, needed := k.desired.drop(name)
	if !needed {
		return nil
	}
	err := k.apply(ctx)
	if !known && errors.Is(err, firewall.ErrNotInstalled) {
		return nil // there are no rules where nothing could have made them
	}
	return err
}

// Status describes the rules that are in force.
type Status struct {
	Choice   firewall.Choice // the kind of firewall that holds them; the zero value when there are none
	Flapping int             // rules that another program changes again and again
}

// Status returns the current status.
func (k *Keeper) Status() Status {
	k.desired.mu.Lock()
	defer k.desired.mu.Unlock()
	return Status{Choice: k.desired.last.report.Choice, Flapping: k.desired.flapping.Count()}
}

// poke leaves a value in a channel that has room for one.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
