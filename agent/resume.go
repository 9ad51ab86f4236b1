package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// A process that starts finds the datapath of the one before in the kernel. Where
// the kernel carries packets alone, nothing of it is changed before the store was
// read; when that takes long, what somebody takes away meanwhile is put back. A
// device that stands with this host's addresses and has no carrier is one whose
// packets pass through the process: until one reads it they are lost. It is
// carried on at once, with the peers that were written down, whether the store
// answers or not.
//
// Nothing is claimed by that: the subnet is the one that the kernel has carried
// since the process before held its lease. The host is not ready, writes no
// subnet file, and of rules only keeps those of the process before, until the store
// has confirmed the lease, and what the store says counts from then on, by the
// ordinary ways.

// A KernelState is what the kernel has of a network's datapath when an agent starts.
type KernelState struct {
	Routes  int          // of leno's in the network's pools, without those that refuse packets
	Refuses bool         // one of leno's routes refuses packets to subnets that no peer has
	Device  bool         // there is a device of the network's name
	Addrs   []netip.Addr // on the device
	Up      bool         // the device is administratively up
	Carrier bool         // the kernel or a process takes the device's packets
}

// isEmpty reports whether the kernel has nothing of the datapath.
func (s KernelState) isEmpty() bool { return !s.Device && s.Routes == 0 && !s.Refuses }

// What the kernel may do with packets.
type standing int

const (
	nothingStands standing = iota
	packetsFlow            // without a process
	packetsWait            // for a process to read the device
)

// standing judges the state for a host with these subnets. A device without an address in each of them was created for
// other subnets, or by another program. If there is no device but the route that refuses packets, the device was
// removed in this boot, and is created again.
func (s KernelState) standing(subnets []netip.Prefix) standing {
	isUncovered := func(subnet netip.Prefix) bool { return !slices.ContainsFunc(s.Addrs, subnet.Contains) }
	switch {
	case len(subnets) == 0:
		return nothingStands
	case !s.Device && s.Routes > 0:
		return packetsFlow
	case !s.Device && s.Refuses:
		return packetsWait
	case !s.Device || !s.Up || slices.ContainsFunc(subnets, isUncovered):
		return nothingStands
	case s.Carrier:
		return packetsFlow
	}
	return packetsWait
}

// resumed is the part in a network that an earlier process of this boot left, or
// this one before a reload, until the store has confirmed or refused it.
type resumed struct {
	subnets []netip.Prefix
	as      string                      // whose it is, after "carried on as"
	recall  func() (recollected, error) // may read the files, once: of a large network they are large
}

// recollected is what a datapath was made of, by the files of an earlier process
// only as far as they tell.
type recollected struct {
	network registry.Network
	own     registry.Lease   // slot, subnets and node id at least
	leases  []registry.Lease // of the others at least
}

// resume finds out what an earlier process left and carries it on. That there is
// nothing, or not enough, is where every host begins.
func (r *runner) resume(ctx context.Context) {
	found, waits := r.before(ctx)
	if found == nil {
		return
	}
	known, err := found.recall()
	if err == nil {
		err = r.carryOn(ctx, known, waits)
	}
	switch {
	case err != nil && waits:
		r.log.Warn("what was carried before waits for the store", "error", err)
		return
	case err != nil:
		r.log.Debug("what was carried before is left alone until the store was read", "error", err)
	}
	r.mu.Lock()
	r.resumed = found
	r.mu.Unlock()
	r.show(func(v *view) { v.local.Subnets = found.subnets })
	r.env.firewall.Resume(r.local.Name)
	unconfirmed := fmt.Sprintf("%s is carried on as %s, the store has not been read yet", found.subnets[0], found.as)
	r.check(health.Network, api.Warning, unconfirmed)
	r.check(health.Lease, api.Warning, unconfirmed)
}

// before is what stands of the network, nil for nothing, and whether it waits for
// this process: after a reload it is this process's own, whatever somebody may
// have done to it.
func (r *runner) before(ctx context.Context) (found *resumed, waits bool) {
	if r.carrier != nil && r.carrier.carries != nil {
		known := *r.carrier.carries
		r.stood = known.own.Subnet()
		return &resumed{known.own.Subnets, "before the reload", func() (recollected, error) { return known, nil }}, true
	}
	before, err := state.Load(r.config.DataDir, r.local.Name)
	if err != nil || len(before.Subnets) == 0 {
		return nil, false // an error is reported where the lease needs it
	}
	left, err := r.env.readKernelState(ctx, backend.LinkName(r.local.Name), before.Pools)
	if err != nil {
		r.log.Warn("what an earlier process left cannot be seen", "error", err)
		return nil, false
	}
	stands := left.standing(before.Subnets)
	if stands == nothingStands {
		return nil, false
	}
	r.stood = before.Subnets[0]
	switch {
	case slices.Contains(before.Subnets, before.Revoked):
		return nil, false
	case time.Since(before.Renewed) > r.config.Lease.Hold:
		r.log.Warn("what an earlier process left may be another host's by now, it waits for the store", "subnet", before.Subnets[0])
		return nil, false
	}
	return &resumed{before.Subnets, "the process before left it", sync.OnceValues(func() (recollected, error) {
		return recollect(r.config.DataDir, before, r.env.id.NodeID)
	})}, stands == packetsWait
}

// recollect is the part in a network that the files tell of, an error when they
// are incomplete or contradict each other. They are read like what other hosts
// write.
func recollect(dataDir string, before state.Network, nodeID string) (recollected, error) {
	file, err := state.LoadPeers(dataDir, before.Network)
	if err != nil {
		return recollected{}, fmt.Errorf("remembered peers: %w", err)
	}
	n, err := registry.ParseNetwork(before.Network, file.Definition)
	if err != nil {
		return recollected{}, fmt.Errorf("remembered definition: %w", err)
	}
	n.CreateIndex = file.Created
	own := registry.Lease{Network: n.Name, NodeID: nodeID, Subnets: before.Subnets}
	if own.Slot, err = n.Plan.Slot(before.Subnets[0]); err != nil {
		return recollected{}, fmt.Errorf("remembered subnet: %w", err)
	}
	switch {
	case before.Definition != file.Created || !before.Backend.Equal(n.Backend) || !slices.Equal(before.Pools, n.Plan.Prefixes()):
		return recollected{}, errors.New("the remembered lease is of another definition than the peers")
	case !slices.Equal(before.Subnets, n.Plan.Subnets(own.Slot)):
		return recollected{}, fmt.Errorf("the remembered subnets %v are not those of slot %d", before.Subnets, own.Slot)
	}
	return recollected{network: n, own: own, leases: file.ParseLeases(n)}, nil
}

// carryOn builds the backend and has a goroutine keep right until relieve what is
// remembered. Packets that wait for it flow when it returns.
func (r *runner) carryOn(ctx context.Context, found recollected, waits bool) error {
	kind, config, err := r.backendConfig(found.network)
	if err != nil {
		return err
	}
	if reason := r.env.pools.take(r.local.Name, claimed(found.network, kind, config.Options)); reason != "" {
		return errors.New(reason)
	}
	if err := r.build(kind, config); err != nil {
		r.env.pools.give(r.local.Name)
		return err
	}
	r.carrier.carries = &found
	watching, cancel := context.WithCancel(ctx)
	first, done := make(chan struct{}), make(chan struct{})
	go func() { // waited for in relieve
		defer close(done)
		if !waits && retry.Sleep(watching, standInAfter) != nil {
			return
		}
		r.standIn(watching, found, !waits, first)
	}()
	r.relief = func() {
		cancel()
		<-done
	}
	if waits {
		<-first
	}
	return nil
}

// relieve ends the keeping of a resumed datapath, which stays as it is: once a
// lease is held, or before the backend or the datapath is made another. It may
// be repeated.
func (r *runner) relieve() {
	if r.relief != nil {
		r.relief()
		r.relief = nil
	}
}

// standInAfter is how long a datapath that flows without this process waits for the
// store before it is looked at.
const standInAfter = time.Second

// standIn does for a resumed datapath what reconcile does for one whose lease is
// held, as far as it needs no store, until ctx ends. It closes first after its
// first pass. One that flowed without this process, so that the kernel may know
// better than the files, is partial.
func (r *runner) standIn(ctx context.Context, found recollected, partial bool, first chan<- struct{}) {
	tick := time.NewTicker(slowTick)
	defer tick.Stop()
	backoff := retry.NewBackoff()
	calm := settle
	state := backend.State{Subnets: found.own.Subnets, Peers: peersOf(found.leases, found.own), Partial: partial}
	for began, told := time.Now(), false; ; {
		_, _, kernel := r.env.kernel.Get()
		var failed <-chan time.Time
		switch healed, err := r.keepOn(ctx, found.network, &state); {
		case err != nil: // its own writes would make it try at once, for ever
			pause := backoff.Next()
			failed, calm = time.After(pause), r.patience(pause)
		default:
			calm = r.calmer(calm, healed)
			backoff.Reset()
		}
		if !told && failed == nil {
			r.log.Info("datapath is carried on", "subnet", found.own.Subnet(), "peers", len(state.Peers),
				"took", time.Since(began).Round(time.Microsecond))
			told = true
		}
		if first != nil {
			close(first)
			first = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-failed:
		case <-tick.C:
		case <-kernel:
			if retry.Sleep(ctx, calm) != nil {
				return
			}
		}
	}
}

// keepOn makes one pass over a resumed datapath, where the host stands now, or
// where it stood when that cannot be said.
func (r *runner) keepOn(ctx context.Context, n registry.Network, s *backend.State) (healed bool, err error) {
	p, err := r.locate(n)
	switch {
	case err == nil:
		s.MTU, s.Underlay = p.mtu, p.underlay()
		r.showPlace(n, p)
	case s.MTU == 0:
		r.displaced()
		r.check(health.Underlay, api.Critical, fmt.Sprintf("waiting for the underlay: %v", err))
		return false, err
	default:
		r.displaced()
		r.check(health.Underlay, api.Warning, fmt.Sprintf("keeping %s: %v", s.Underlay.Interface, err))
	}
	started := time.Now()
	report, err := r.carrier.apply(ctx, *s)
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	r.looked(started, report, err)
	r.checkDatapath(n, *s, &report, err)
	r.show(func(v *view) { v.report, v.local.Peers, v.local.Notes = report, report.Peers, report.Notes })
	if err != nil {
		return false, err
	}
	return len(report.Healed) > 0, nil
}

// flows says whether packets flow, by a lease that is held or by what an earlier
// process left.
func (r *runner) flows() bool {
	_, held, _ := r.lease.Get()
	r.mu.Lock()
	defer r.mu.Unlock()
	return held || r.resumed != nil
}

// carries is the lease that this host's containers run by: the one that is held,
// or the one that an earlier process left.
func (r *runner) carries() (registry.Lease, bool) {
	if lease, held, _ := r.lease.Get(); held {
		return lease, true
	}
	known, ok := r.carriedOn()
	if known.own.Backend.Type == "" {
		known.own.Backend = known.network.Backend
	}
	return known.own, ok
}

// carriedOn is what an earlier process left, until the store has confirmed or
// refused it, as far as the files tell.
func (r *runner) carriedOn() (recollected, bool) {
	r.mu.Lock()
	found := r.resumed
	r.mu.Unlock()
	if found == nil {
		return recollected{}, false
	}
	known, err := found.recall()
	return known, err == nil
}

// settled says that the store has confirmed or refused what was carried on.
func (r *runner) settled() {
	r.mu.Lock()
	before := r.resumed
	r.resumed = nil
	r.mu.Unlock()
	if before == nil {
		return
	}
	lease, _, _ := r.lease.Get()
	r.show(func(v *view) { v.local.Subnets = lease.Subnets }) // and what peers are shown by is another thing now
}

// away says of an error that the store could not be used, so that it says
// nothing about what was asked.
func away(err error) bool {
	return errors.Is(err, registry.ErrUnavailable) || errors.Is(err, registry.ErrDenied) || errors.Is(err, registry.ErrUncertain) ||
		errors.Is(err, context.DeadlineExceeded)
}
