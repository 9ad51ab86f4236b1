// Package datapath makes the kernel agree with what is known of one network: it selects the underlay, builds the
// backend, gives it the peers, and repairs what other programs change.
//
// An agent that starts may find the datapath of an earlier process in the kernel. If the kernel forwards packets by
// itself, the agent changes nothing before it has read the store; if that takes long, it puts back what another program
// removes. If the device exists with this host's addresses but without a carrier, packets pass through the agent's
// process, and are lost until a process reads them. The agent resumes such a datapath at once, with the peers in its
// files, whether the store answers or not.
//
// Resuming a datapath claims nothing: the subnet is the one that the kernel has been using since the earlier process
// held its lease. Until the store has confirmed the lease, the host is not ready, writes no subnet file, and only keeps
// the firewall rules of the earlier process. From then on the store decides. Both are the same loop: its views are
// first the one that is remembered, then those from the store.
package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/switchover"
	"github.com/lenonet/leno/registry"
)

// settle is the time in which a burst of kernel events can end before the tables are read.
const settle = 100 * time.Millisecond

// A Host is what the datapaths of all networks on a host share.
type Host struct {
	NodeID     func() string
	Backends   map[string]backend.Type // by name, for example "vxlan"
	Processors *Processors
	Kernel     *watch.Value[struct{}] // set at each change of the kernel's tables

	SelectUnderlay func(c config.Underlay, pools []netip.Prefix, peers []netip.Addr) (underlay.Choice, error)
	// EnsureForwarding reports whether the kernel forwards packets of the family of subnet that arrive by those of the
	// devices that exist, and switches forwarding on if set is true. It may be called concurrently.
	EnsureForwarding func(subnet netip.Prefix, links []string, set bool) (forwarding.State, error)
	// Guard makes the kernel refuse packets to pools that no other route leads to, or ends that, as kernel.Guard does.
	Guard func(ctx context.Context, owner kernel.Owner, wanted bool) error
	// PreferMain makes or removes routing rules for pools, as kernel.PreferMain does.
	PreferMain func(ctx context.Context, owner kernel.Owner, priority int, stood bool) ([]backend.Repair, error)
	// ReplacePools removes routes and routing rules for the pools that a network had before, as kernel.ReplacePools does.
	ReplacePools func(ctx context.Context, before kernel.Owner, present []netip.Prefix, guards bool) error
	// FindDetours asks the kernel which routes packets to peers take, as kernel.FindDetours does.
	FindDetours func(q kernel.PathQuery) ([]kernel.Detour, error)
}

// Options are what New builds a Reconciler from.
type Options struct {
	Network      string
	DataDir      string // the backend's files are in a directory below it that has the network's name
	Forward      bool   // whether to switch forwarding on
	RulePriority int    // of the routing rules for the pools, 0 for none
	Underlay     config.Underlay
	Previous     func() Previous       // where an earlier process left this host; nil if that is not known
	Others       func() []netip.Prefix // the pools that other networks use now: this one neither refuses nor removes there
	Host         *Host
	Report       *report.Reporter

	// Change makes the backends those of another definition of the network, with Configure and Build. It is called between
	// two passes that Run makes. An error ends Run.
	Change func(ctx context.Context, n registry.Network) error
	// Serve does what containers need besides the datapath. It is called after each pass that Run makes. applied is
	// false after a failed pass over a datapath that was in place before.
	Serve func(ctx context.Context, v *peers.View, s backend.State, applied bool) error
	// ServeSaved does what containers need before the store has confirmed the lease. It is called after each pass that
	// Resume makes, also a failed one.
	ServeSaved func(ctx context.Context, v *peers.View, s backend.State) error
	// UnderlayChanged is called when Run has found another underlay than before. readdressed is true if the host's
	// addresses have changed.
	UnderlayChanged func(n registry.Network, u UnderlayState, readdressed bool)
}

// A Reconciler keeps the datapath of one network right. Status, UsesLink and Reaches are safe for concurrent use.
type Reconciler struct {
	o        Options
	instance *Instance // nil before Build and after Close
	checks   checks
	status   *sharedStatus
	underlay *underlaySelector
	resumed  func()         // stops the loop that Resume has started, nil if there is none
	ruled    []netip.Prefix // the pools for which there were routing rules after the last pass
	used     []netip.Prefix // the subnets of all hosts in the content that Drop has forgotten last
}

// New returns a reconciler that takes over the instance of another one, or has none if before is nil.
func New(o Options, before *Instance) *Reconciler {
	status := &sharedStatus{value: watch.New[Status](), report: o.Report}
	return &Reconciler{
		o:        o,
		instance: before,
		status:   status,
		underlay: &underlaySelector{
			settings: o.Underlay,
			previous: o.Previous,
			host:     o.Host,
			report:   o.Report,
			status:   status,
		},
		checks: checks{network: o.Network, forward: o.Forward, host: o.Host, report: o.Report},
	}
}

// Configure returns backends with their effective options, and the configuration for them.
func (r *Reconciler) Configure(c registry.Carriage,
	pools []netip.Prefix) (switchover.Definition, backend.Config, error) {
	d, err := carriage.Of(c).Normalize(r.o.Host.Backends)
	return d, r.config(pools), err
}

func (r *Reconciler) config(pools []netip.Prefix) backend.Config {
	return backend.Config{
		Network: r.o.Network,
		Link:    backend.LinkName(r.o.Network),
		NodeID:  r.o.Host.NodeID(),
		DataDir: filepath.Join(r.o.DataDir, r.o.Network),
		Pools:   pools,
		Logger:  r.o.Report.Log(),
	}
}

// Follows reports whether the backends can change to those of d while they carry packets.
func (r *Reconciler) Follows(d switchover.Definition) bool {
	return r.instance != nil && r.instance.definition.Follows(d)
}

// owner returns what belongs to this network in pools that it has, had or asks for. except is left out, too.
func (o *Options) owner(pools []netip.Prefix, except ...netip.Prefix) kernel.Owner {
	return kernel.Owner{Pools: pools, Except: slices.Concat(except, o.Others())}
}

// Guard makes the kernel refuse packets to the pools of a network that requires encryption, until the same network, or
// another one with its pools, requires none. It stays when the agent ends or leaves the network: containers on this
// host may go on sending.
func (r *Reconciler) Guard(ctx context.Context, n registry.Network) error {
	required := n.Encryption != ""
	if err := r.o.Host.Guard(ctx, r.o.owner(n.Plan.Prefixes()), required); err != nil {
		return fmt.Errorf("guard of network %s: %w", n.Name, err)
	}
	return nil
}

// keepRules makes the routing rules for the pools of a network, if this host is configured to have some.
func (r *Reconciler) keepRules(ctx context.Context, n registry.Network) (repaired []backend.Repair, err error) {
	if r.o.RulePriority == 0 || n.Backend.Type == "alloc" {
		return nil, nil
	}
	pools := n.Plan.Prefixes()
	repaired, err = r.o.Host.PreferMain(ctx, r.o.owner(pools), r.o.RulePriority, slices.Equal(r.ruled, pools))
	if err != nil {
		r.ruled = nil // rules that could not be made were not removed by another program
		return repaired, fmt.Errorf("routing rules for the pools of network %s: %w", n.Name, err)
	}
	r.ruled = pools
	return repaired, nil
}

// Carried returns the backend and the pools of the instance or, if there is none, of an earlier process whose state
// file is before.
func (r *Reconciler) Carried(before state.Network) (kind string, pools []netip.Prefix) {
	if r.instance != nil {
		return r.instance.kind(), r.instance.config.Pools
	}
	return before.Backend.Type, before.Pools
}

// Refuse makes the kernel refuse packets to pools that no other route leads to, whatever the network requires.
func (r *Reconciler) Refuse(ctx context.Context, pools []netip.Prefix) error {
	err := r.o.Host.Guard(ctx, r.o.owner(pools), true)
	if r.o.RulePriority != 0 { // so that no other program's rules take the packets elsewhere
		_, rulesErr := r.o.Host.PreferMain(ctx, r.o.owner(pools), r.o.RulePriority, false)
		err = errors.Join(err, rulesErr)
	}
	if err != nil {
		return fmt.Errorf("guard of network %s: %w", r.o.Network, err)
	}
	return nil
}

// EndRefusal removes what Refuse has made for pools: the routing rules except those for the present pools and, unless
// guarded is true, the routes.
func (r *Reconciler) EndRefusal(ctx context.Context, pools, present []netip.Prefix, guarded bool) error {
	_, err := r.o.Host.PreferMain(ctx, r.o.owner(pools, present...), 0, false)
	if !guarded {
		err = errors.Join(err, r.o.Host.Guard(ctx, r.o.owner(pools), false))
	}
	if err != nil {
		return fmt.Errorf("end the guard of network %s: %w", r.o.Network, err)
	}
	return nil
}

// KeepRefused keeps packets to pools refused until ctx ends. It first calls remove until that succeeds, unless it is
// nil.
func (r *Reconciler) KeepRefused(ctx context.Context, pools []netip.Prefix, remove func(context.Context) error) error {
	backoff := retry.NewBackoff()
	for {
		_, _, changed := r.o.Host.Kernel.Get()
		err := r.Refuse(ctx, pools)
		if remove != nil {
			removeErr := remove(ctx)
			if removeErr == nil {
				remove = nil
			}
			err = errors.Join(err, removeErr)
		}
		wait := slowTick
		if err != nil {
			r.o.Report.Failing(health.Routes, api.Critical, advice.Datapath, err)
			wait = backoff.Next()
		} else {
			r.o.Report.Forget(health.Routes)
			backoff.Reset()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		case <-changed:
			if err := retry.Sleep(ctx, settle); err != nil {
				return err
			}
		}
	}
}

// Build makes the backends, unless there are some that have the same configuration or can change to it.
func (r *Reconciler) Build(d switchover.Definition, c backend.Config) error {
	if !r.reuses(d, c) {
		r.Close()
		b, err := switchover.New(r.o.Host.Backends, d, c)
		if err != nil {
			return err
		}
		r.instance = &Instance{backend: b, definition: d, config: c, lent: &lent{from: r.o.Host.Processors}}
		r.instance.lent.set(b.Threads())
	}
	abilities := r.instance.backend.Abilities()
	r.status.update(func(s *Status) { s.Abilities = abilities })
	return nil
}

// reuses reports whether there are backends that have a configuration, after changing them if necessary. If not, they
// must be built again, which interrupts packets that pass through this process.
func (r *Reconciler) reuses(d switchover.Definition, c backend.Config) bool {
	if r.instance == nil {
		return false
	}
	log := r.o.Report.Log().With("backend", r.instance.kind(), "next", d.Current.Type)
	err := r.instance.takes(d, c)
	switch {
	case err == nil:
	case errors.Is(err, switchover.ErrDoesNotFollow):
		log.Debug("backend is built again for another configuration", "reason", err)
	default:
		log.Warn("backend could not be changed and is built again; packets may be lost in the meantime", "error", err)
	}
	return err == nil
}

// AwaitUnderlay blocks until the host has a device and an address that the backend can use. There must be a backend.
func (r *Reconciler) AwaitUnderlay(ctx context.Context, n registry.Network) (UnderlayState, error) {
	return r.underlay.await(ctx, n, r.instance)
}

// SelectUnderlay selects the underlay and shows it in the status. There must be a backend.
func (r *Reconciler) SelectUnderlay(n registry.Network) (UnderlayState, error) {
	return r.underlay.selectAndShow(n, r.instance)
}

// Content returns what the datapath was made from last, or nil if there is none.
func (r *Reconciler) Content() *peers.View {
	if r.instance == nil {
		return nil
	}
	return r.instance.content.Load()
}

// StopResumed stops keeping a resumed datapath right, which stays as it is. It reports whether there was one.
func (r *Reconciler) StopResumed() bool {
	if r.resumed == nil {
		return false
	}
	r.resumed()
	r.resumed = nil
	return true
}

// Drop stops a resumed datapath and forgets its content, because the network has another definition now. The datapath
// in the kernel stays until Retire or the next pass.
func (r *Reconciler) Drop() {
	r.StopResumed()
	if content := r.Content(); content != nil {
		r.used = content.Subnets()
		r.instance.content.Store(nil)
	}
}

// Close closes the backend and logs a failure; the datapath in the kernel stays.
func (r *Reconciler) Close() {
	r.StopResumed()
	if r.instance == nil {
		return
	}
	if err := r.instance.Close(); err != nil {
		r.o.Report.Log().Error("backend could not be closed", "error", err)
	}
	r.instance = nil
}

// HandOver stops a resumed datapath and returns the instance, which stays open, or nil if there is none.
func (r *Reconciler) HandOver() *Instance {
	r.StopResumed()
	before := r.instance
	r.instance = nil
	return before
}

// Retire removes what neither the backends of d nor the pools of c have any more: of the instance or, if there is none,
// of an earlier process whose state file is before. If d follows its backends and some pools overlap, packets keep
// flowing: its routes and rules outside the present pools are removed once those for the present ones are there. The
// guard stays if hosts may have had subnets there, to which containers may go on sending.
func (r *Reconciler) Retire(ctx context.Context, d switchover.Definition, c backend.Config,
	before state.Network) error {
	old, left := r.instance, carriage.Of(before.Carriage)
	_, pools := r.Carried(before)
	if old != nil {
		left = old.definition
	}
	stays := left.Follows(d) && slices.ContainsFunc(pools, func(p netip.Prefix) bool {
		return slices.ContainsFunc(c.Pools, p.Overlaps)
	})
	covered := covers(c.Pools, pools)
	ruled := pools // whose routing rules are not wanted any more
	if r.o.RulePriority == 0 {
		ruled = slices.Concat(pools, c.Pools)
	}
	if r.o.RulePriority == 0 || !stays && !covered {
		if _, err := r.o.Host.PreferMain(ctx, r.o.owner(ruled), 0, false); err != nil {
			r.o.Report.Log().Warn("routing rules of an earlier configuration could not be removed", "error", err)
		}
	}
	switch {
	case !stays && old != nil:
		r.StopResumed()
		_, err := old.apply(ctx, backend.State{})
		return err
	case !stays:
		return r.removeSaved(ctx, before)
	case !covered && d.Current.Type != "alloc":
		if r.o.RulePriority != 0 {
			if _, err := r.o.Host.PreferMain(ctx, r.o.owner(c.Pools), r.o.RulePriority, false); err != nil {
				return fmt.Errorf("routing rules for the pools of network %s: %w", r.o.Network, err)
			}
		}
		guards := r.used != nil && covers(c.Pools, r.used)
		if err := r.o.Host.ReplacePools(ctx, r.o.owner(pools), c.Pools, guards); err != nil {
			return fmt.Errorf("routes of the earlier pools of network %s: %w", r.o.Network, err)
		}
	}
	if old != nil || reflect.DeepEqual(left, d) {
		return nil
	}
	// What the earlier process carried the network with, and c does not have, is removed once c is in place.
	earlier, config, err := r.Configure(before.Carriage, before.Pools)
	if err != nil {
		return nil // what this version does not know stays
	}
	return r.Build(earlier, config)
}

// Remove removes the datapath from the kernel and closes the backend. If there is no instance, it removes the datapath
// that the state file of an earlier process describes. The routing rules for refused pools stay.
func (r *Reconciler) Remove(ctx context.Context, before state.Network, refused []netip.Prefix) error {
	r.StopResumed()
	_, pools := r.Carried(before)
	_, rulesErr := r.o.Host.PreferMain(ctx, r.o.owner(pools, refused...), 0, false)
	var err error
	if r.instance != nil {
		_, err = r.instance.apply(ctx, backend.State{})
		r.Close()
	} else {
		err = r.removeSaved(ctx, before)
	}
	r.status.update(func(s *Status) { s.Link, s.Report, s.Abilities = "", backend.Report{}, backend.Abilities{} })
	return errors.Join(err, rulesErr)
}

// covers reports whether each of the old pools lies within one of the new ones. If so, the backend recognizes the whole
// old datapath as its own and changes what differs.
func covers(pools, old []netip.Prefix) bool {
	return !slices.ContainsFunc(old, func(o netip.Prefix) bool {
		return !slices.ContainsFunc(pools, func(p netip.Prefix) bool { return registry.Contains(p, o) })
	})
}

// removeSaved removes the datapath that a state file describes. It does nothing if there is none, or if this version
// does not know the backend or its options.
func (r *Reconciler) removeSaved(ctx context.Context, before state.Network) error {
	d, c, err := r.Configure(before.Carriage, before.Pools)
	if err != nil || len(before.Pools) == 0 {
		return nil
	}
	c.Except = r.o.Others()
	r.o.Report.Log().Info("removing the datapath of an earlier definition", "backend", d.Current.Type)
	b, err := switchover.New(r.o.Host.Backends, d, c)
	if err != nil {
		return err
	}
	_, err = b.Apply(ctx, backend.State{})
	return errors.Join(err, b.Close())
}
