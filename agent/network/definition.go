package network

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/definition"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network/peers"
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/agent/watch"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/belief"
	"github.com/lenonet/leno/registry/flannel"
)

// A network ends only when an operator deletes it, which leaves a registry.Deletion in the store. A definition that is
// missing without one was lost: the hosts that use it, or remember it, keep it in force and restore it. A host that
// remembers it from another location of a store, after a change of its configuration, only waits.

// Reasons for the end of a runner's round.
var (
	errDefinitionChanged = errors.New("the network's definition changed")
	errNetworkGone       = errors.New("the network was deleted")
	errDefinitionLost    = errors.New("the store has lost the network's definition")
	errOtherLocation     = errors.New("the network is not defined where the configuration says")
)

// lostLeases is what a definitionKeeper needs for the leases that the store has probably lost with the definition.
type lostLeases struct {
	note  func(count int) // see lease.Keeper.NoteLoss
	count func() int      // how many this host knows of, 0 if it has not read them
}

// A definitionKeeper finds the definition of one network and keeps it in force. Its methods must be called one after
// the other, except now, wasLeft, differs and reportDefined, which are safe for concurrent use.
type definitionKeeper struct {
	deps   *Deps
	config config.Config // the agent's, as it was when the runner was created
	local  config.Network
	report *report.Reporter
	leases lostLeases

	known    *belief.Definition // nil if this host does not know one
	loss     lastLoss
	deletion *state.Deletion // of the network, as far as this host knows; nil for none
	missing  time.Time       // since when other hosts have been seen in a network without a definition

	inForce *watch.Value[registry.Network]
	status  *watch.Value[definitionStatus]
}

// A definitionStatus is what other goroutines need to know of a network's definition besides the one in force.
type definitionStatus struct {
	differs []string           // where this host's block differs from it
	applied uint64             // the ModifyIndex of the version that the datapath was made from, 0 for none
	known   *belief.Definition // nil if none is known
	left    bool               // this host has left the network because it was deleted

	// followed is set while all parts of a round run: they follow inForce, as long as canFollow says that they can.
	followed bool

	ignored string // why the definition in the store has no effect, "" if it has
}

// now returns the status.
func (d *definitionKeeper) now() definitionStatus {
	s, _, _ := d.status.Get()
	return s
}

// update changes the status and wakes the readers of the API.
func (d *definitionKeeper) update(change func(*definitionStatus)) {
	d.status.Update(change)
	d.report.Changed()
}

// judge returns what the store's answer means for the definition in force, and NoAnswer if there is none.
func (d *definitionKeeper) judge(stored registry.Network, err error) belief.Verdict {
	if _, defined, _ := d.inForce.Get(); !defined {
		return belief.NoAnswer
	}
	_, verdict, _ := judge(d.now().known, stored, err, d.deps.Datapaths.Backends)
	return verdict
}

// judge returns the store's answer, with what flannel cannot express of a definition as it is known, and what it means.
// A definition that this host cannot carry instead of the known one is judged as one that cannot be read.
func judge(known *belief.Definition, stored registry.Network, err error, kinds map[string]backend.Type) (
	registry.Network, belief.Verdict, error) {
	if known != nil && err == nil {
		stored = flannel.Complete(stored, known.Network)
	}
	verdict := known.Judge(stored, err)
	if verdict == belief.InForce && known.IsUsable() {
		if err = definition.CheckReplacement(known.Network, stored, kinds); err != nil {
			verdict = belief.Unreadable
		}
	}
	return stored, verdict, err
}

// wasLeft reports whether this host has left the network because it was deleted.
func (d *definitionKeeper) wasLeft() bool { return d.now().left }

// recall reads what an earlier process, or an earlier runner of this process, knew.
func (d *definitionKeeper) recall() {
	if d.known == nil {
		d.known = rememberedDefinition(d.config, d.local.Name)
	}
	d.recallDeletion()
	if d.known.IsUsable() { // until the store says otherwise
		d.inForce.Set(d.known.Network)
		d.update(func(s *definitionStatus) { s.known = d.known })
	}
}

// forget ends the network on this host, because it was deleted.
func (d *definitionKeeper) forget() {
	d.known = nil
	d.inForce.Clear()
	d.update(func(s *definitionStatus) { s.known = nil })
	d.abandon()
}

// await blocks until this host knows the network's definition: from the store or, if the store has lost it,
// from its own memory. If there has never been a definition, it stores the one in this host's block.
func (d *definitionKeeper) await(ctx context.Context) (registry.Network, error) {
	backoff := d.deps.Store.Outage.NewLoop()
	for {
		_, _, networksChanged := d.deps.Store.Networks.Get()
		n, err := d.find(ctx)
		if ctx.Err() != nil {
			return registry.Network{}, ctx.Err()
		}
		d.report.Used(report.Definition, err)
		if err == nil || errors.Is(err, errNetworkGone) {
			return n, err
		}
		reason := fmt.Sprintf("waiting for the store: %v", err)
		deleted := &registry.DeletedError{}
		switch {
		case errors.Is(err, errOtherLocation):
			reason = fmt.Sprintf("%v; correct the configuration, or define the network there", err)
		case errors.As(err, &deleted) && report.Away(err):
			reason = fmt.Sprintf("%v; `leno network apply` defines the network again", err)
		case errors.As(err, &deleted):
			reason = fmt.Sprintf("the network was deleted at %s: `leno network apply` defines it again",
				deleted.Time.UTC().Format(time.RFC3339))
		case errors.Is(err, registry.ErrNetworkNotFound):
			reason = undefined(d.deps.Store.Kind, err)
		case errors.Is(err, definition.ErrNotDefinable), errors.Is(err, errDefinitionLost):
			reason = err.Error()
		case errors.Is(err, registry.ErrInvalid):
			reason = fmt.Sprintf("the network's definition cannot be used: %v", err)
		case errors.Is(err, registry.ErrToken):
			secret := "token"
			if d.deps.Store.Kind == config.StoreEtcd {
				secret = "password"
			}
			reason = fmt.Sprintf("waiting for a %s: %v", secret, err)
		case errors.Is(err, registry.ErrDenied):
			reason = fmt.Sprintf("waiting for rights: %v", err)
		}
		if errors.Is(err, errOtherLocation) { // critical also while packets flow
			d.report.Check(health.Network, api.Critical, reason)
			d.report.Waiting(health.Network, reason)
		} else {
			d.report.Wait(health.Network, reason)
		}
		if err := backoff.Wait(ctx, err, networksChanged); err != nil {
			return registry.Network{}, err
		}
	}
}

// undefined returns the reason for waiting while a store has no definition of the network. err says where it would be.
func undefined(store string, err error) string {
	remedy := "use `leno network apply` or give its block a prefix"
	if store == config.StoreKubernetes { // flannel's operator defines it
		remedy = "check the kubernetes block"
	}
	return fmt.Sprintf("waiting for the network to be defined: %s (%v)", remedy, err)
}

// find returns the definition in force. It returns errNetworkGone if the network was deleted and this host still
// takes part in it.
func (d *definitionKeeper) find(ctx context.Context) (registry.Network, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	asked := time.Now()
	n, err := d.deps.Store.Registry.Network(ctx, d.local.Name)
	if from := otherLocation(d.config, d.known, d.deletion); from != "" && errors.Is(err, registry.ErrNetworkNotFound) &&
		d.known.Judge(n, err) == belief.NoAnswer {
		return n, fmt.Errorf("%w: this host knows it from %s, and now uses %s: %w", errOtherLocation, from,
			d.config.StoreLocation(), err)
	}
	if _, isDeleted := errors.AsType[*registry.DeletedError](err); errors.Is(err, registry.ErrNetworkNotFound) &&
		!isDeleted {
		if lost := d.lostDeletion(); lost != nil {
			n, err = d.restoreDeletion(ctx, lost)
		}
	}
	n, verdict, err := judge(d.known, n, err, d.deps.Datapaths.Backends)
	if verdict == belief.NoAnswer && errors.Is(err, registry.ErrNetworkNotFound) && len(d.local.Pools) > 0 {
		if n, err = d.define(ctx); err == nil {
			verdict = belief.InForce
		}
	}
	switch verdict {
	case belief.InForce:
		d.confirm(n, asked)
	case belief.Ended:
		d.rememberDeletion(err)
		if d.known != nil {
			return n, errNetworkGone
		}
		d.abandon()
		return n, err
	case belief.NoAnswer:
		return n, err
	case belief.Unreadable:
		d.ignore(unusable(d.local.Name, err))
	case belief.Declined:
		d.ignore(declined(d.config.StoreName(), d.known.Network, n, d.deps.Datapaths.Backends))
	case belief.Lost:
		d.leases.note(0)
	}
	n = d.known.Network
	differs := d.differs(n)
	d.inForce.Set(n)
	d.update(func(s *definitionStatus) { s.differs, s.known, s.left = differs, d.known, false })
	if len(differs) > 0 {
		d.report.Log().Warn("the network's definition in the store wins over the configuration",
			"differs", strings.Join(differs, "; "))
	}
	return n, nil
}

// abandon makes the agent end this runner if the network has no block.
func (d *definitionKeeper) abandon() {
	d.update(func(s *definitionStatus) { s.left = true })
	d.deps.Left.Set(struct{}{})
}

// confirm records that the store has the definition. asked is when the store was asked for it: since then, this process
// may have been suspended and the network deleted. A definition that was restored shows a loss that this host may not
// have seen.
func (d *definitionKeeper) confirm(n registry.Network, asked time.Time) {
	if d.loss.isNew(n, d.config.Lease) {
		d.leases.note(n.RestoredLeases)
	}
	now, isDiverged := d.known.Confirm(n, asked)
	if isDiverged {
		d.report.Log().Warn("the definition in the store is a change that was made without knowing the one in force before; "+
			"it is in force now", "generation", n.Generation, "revision", n.Revision, "before", d.known.Network.Revision)
	}
	d.known = now
	d.update(func(s *definitionStatus) { s.known, s.ignored = d.known, "" })
	d.forgetDeletion()
}

// definedElsewhere returns an errDefinitionLost if the network has no definition while other hosts have sessions for
// it. They know the definition, which may differ from this host's block, and restore it. This host does not wait for
// hosts that cannot do so once their sessions would have ended.
func (d *definitionKeeper) definedElsewhere(ctx context.Context) error {
	holders, err := d.deps.Store.Registry.Holders(ctx, d.local.Name)
	if err != nil {
		return err
	}
	var nodes []string
	for _, h := range holders {
		if h.Node != d.deps.Identity.Get().Node && !slices.Contains(nodes, h.Node) {
			nodes = append(nodes, h.Node)
		}
	}
	switch {
	case len(nodes) == 0:
		d.missing = time.Time{}
		return nil
	case d.missing.IsZero():
		d.missing = time.Now()
	case time.Since(d.missing) > peers.SettleTime(d.config.Lease):
		return nil
	}
	// The definition was read before the sessions: on a first start, another host may have defined the network and
	// taken part in it in between.
	_, err = d.deps.Store.Registry.Network(ctx, d.local.Name)
	if deleted := (&registry.DeletedError{}); errors.As(err, &deleted) || !errors.Is(err, registry.ErrNetworkNotFound) {
		d.missing = time.Time{}
		return err
	}
	d.leases.note(0)
	until := d.missing.Add(peers.SettleTime(d.config.Lease))
	return fmt.Errorf("%w: waiting for %s to put it back, until %s at the latest", errDefinitionLost,
		definition.FirstFew(nodes), until.UTC().Format(time.RFC3339))
}

// define stores the definition in this host's block, unless a network in the store conflicts with it, or other hosts
// take part in this network and know its definition.
func (d *definitionKeeper) define(ctx context.Context) (registry.Network, error) {
	n, err := definition.FromBlock(d.local)
	if err != nil {
		return n, err
	}
	if err := d.definedElsewhere(ctx); err != nil {
		return n, err
	}
	set, _, err := d.deps.Store.Registry.WatchNetworks(ctx, 0)
	if err != nil {
		return n, fmt.Errorf("read the other networks: %w", err)
	}
	if err := definition.CheckBlock(n, set.Networks, d.deps.Datapaths.Backends); err != nil {
		return n, err
	}
	n = n.Replacing(registry.Network{})
	n.FromBlock, n.ModifyIndex = true, registry.Absent
	switch err := d.deps.Store.Registry.PutNetwork(ctx, n); {
	case err == nil:
		d.report.Log().Info("network defined", "pools", n.Plan.Prefixes(), "backend", n.Backend.Type)
	case !errors.Is(err, registry.ErrConflict): // another host was first, or an operator has deleted the network
		return n, fmt.Errorf("define the network: %w", err)
	}
	return d.deps.Store.Registry.Network(ctx, d.local.Name)
}

// differs returns where the block of this host differs from the definition n. A block without pools does not differ.
func (d *definitionKeeper) differs(n registry.Network) []string {
	if len(d.local.Pools) == 0 {
		return nil
	}
	own, err := definition.FromBlock(d.local)
	if err != nil {
		return []string{err.Error()}
	}
	return definition.DifferencesOfBlock(own, n, d.deps.Datapaths.Backends)
}

// reportDefined shows that the network has the definition n, or why the one in the store has no effect.
func (d *definitionKeeper) reportDefined(n registry.Network) {
	status, reason := api.Passing, "defined"
	if ignored := d.now().ignored; ignored != "" {
		status, reason = api.Warning, ignored
	} else if differs := d.differs(n); len(differs) > 0 {
		reason = "defined; " + Differing(d.config, d.local, n, differs)
	}
	d.report.Check(health.Network, status, reason)
}

// watch keeps the definition n in force until the store has one that the parts of a round cannot follow, or the network
// was deleted, and returns which of the two as an error. It restores a definition that the store has lost. A record
// that cannot be used changes nothing.
func (d *definitionKeeper) watch(ctx context.Context, n registry.Network) error {
	backoff := d.deps.Store.Outage.NewLoop()
	var restore time.Time // when to restore a lost definition, zero while it is not lost
	failing := false      // the check reports a problem
	_, _, setBack := d.deps.Store.SetBack.Get()
	var mark <-chan time.Time // when to write that the store was set back
	for {
		known, read, changed := d.deps.Store.Networks.Get()
		verdict := belief.InForce
		// The set of all networks may have been read at another time, so the store is asked for this one.
		now, found := known.Set.Find(n.Name)
		isSame := found && now.ModifyIndex == n.ModifyIndex && now.CreateIndex == n.CreateIndex
		if read && (!isSame || d.now().ignored != "") {
			var err error
			verdict, err = d.compare(ctx, &n)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(err, errDefinitionChanged), errors.Is(err, errNetworkGone):
				return err
			case err != nil:
				if err := backoff.Wait(ctx, err, changed); err != nil {
					return err
				}
				continue
			}
		}
		if verdict == belief.Lost {
			d.leases.note(0)
		}
		var due <-chan time.Time
		switch {
		case verdict == belief.InForce:
			if failing {
				d.reportDefined(n)
			}
			restore, failing, due = time.Time{}, false, d.settle(ctx, n)
		case verdict != belief.Lost:
			failing = true
		case restore.IsZero():
			restore, failing = time.Now().Add(d.restoreAfter()), true
			d.report.Log().Warn("the store has lost the network's definition, packets keep flowing")
			d.report.Check(health.Network, api.Warning,
				"the store has lost the network's definition, which stays in force; putting it back")
			due = time.After(time.Until(restore))
		case time.Now().Before(restore):
			due = time.After(time.Until(restore))
		default:
			if err := d.restore(ctx, n); err != nil {
				remedy := "`leno network apply` puts it back"
				if errors.Is(err, registry.ErrNotSupported) { // the error says where it is defined
					remedy = "put it back there"
				}
				d.report.Check(health.Network, api.Warning, fmt.Sprintf(
					"the store has lost the network's definition, which stays in force, "+
						"and this agent cannot put it back: %v; %s", err, remedy))
				if err := backoff.Wait(ctx, err, changed); err != nil {
					return err
				}
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-due:
		case <-setBack:
			_, _, setBack = d.deps.Store.SetBack.Get()
			mark = time.After(rand.N(d.deps.Store.Outage.Policy.RestoreInUse))
			d.loss.postpone(d.config.Lease)
		case <-mark:
			mark = nil
			if verdict == belief.InForce && d.markSetBack(ctx, n) {
				mark = time.After(d.restoreAfter())
			}
		}
	}
}

// compare reads the definition from the store and compares it with n, the one in force. One that the parts of a round
// can follow replaces n. The error is errDefinitionChanged, errNetworkGone, or the store's.
func (d *definitionKeeper) compare(ctx context.Context, n *registry.Network) (belief.Verdict, error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	asked := time.Now()
	now, err := d.deps.Store.Registry.Network(call, n.Name)
	now, verdict, err := judge(d.known, now, err, d.deps.Datapaths.Backends)
	switch verdict {
	case belief.InForce:
	case belief.Ended:
		d.rememberDeletion(err)
		return verdict, errNetworkGone
	case belief.Lost:
		return verdict, nil
	case belief.Unreadable:
		d.ignore(unusable(n.Name, err))
		return verdict, nil
	case belief.Declined:
		d.ignore(declined(d.config.StoreName(), d.known.Network, now, d.deps.Datapaths.Backends))
		return verdict, nil
	default:
		return verdict, err
	}
	isChanged := len(definition.Differences(now, *n)) > 0
	if isChanged {
		d.report.Log().Info("network definition changed")
		d.report.Event(api.EventNetwork, api.Info, "the network's definition changed", map[string]string{"change": "changed"})
		if !d.now().followed || !canFollow(*n, now, d.deps.Datapaths.Backends) {
			return verdict, errDefinitionChanged
		}
	}
	*n = now
	d.confirm(now, asked)
	differs := d.differs(now)
	d.update(func(s *definitionStatus) { s.differs = differs })
	if isChanged {
		d.reportDefined(now)
	}
	d.inForce.Set(now)
	return verdict, nil
}

// canFollow reports whether the parts of a round can change from definition n to now while they run. With the same
// plan, leases stay as they are. Packets keep flowing if one of the backends of n is the current one of now.
func canFollow(n, now registry.Network, kinds map[string]backend.Type) bool {
	return slices.Equal(n.Plan, now.Plan) && carriage.Of(n.Carriage()).Follows(carriage.Of(now.Carriage())) &&
		definition.CheckEncryption(now, kinds) == nil
}

// ignore shows why the definition in the store has no effect, in the check and the notes.
func (d *definitionKeeper) ignore(reason string) {
	d.update(func(s *definitionStatus) { s.ignored = reason })
	d.report.Check(health.Network, api.Warning, reason)
}
