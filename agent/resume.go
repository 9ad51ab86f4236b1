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

// An agent that starts may find the datapath of an earlier process in the kernel. If the kernel forwards packets by
// itself, the agent changes nothing before it has read the store; if that takes long, it puts back what another program
// removes. If the device exists with this host's addresses but without a carrier, packets pass through the agent's
// process, and are lost until a process reads them. The agent resumes such a datapath at once, with the peers in its
// files, whether the store answers or not.
//
// Resuming a datapath claims nothing: the subnet is the one that the kernel has been using since the earlier process
// held its lease. Until the store has confirmed the lease, the host is not ready, writes no subnet file, and only keeps
// the firewall rules of the earlier process. From then on the store decides, in the usual ways.

// A KernelState is what the kernel has of a network's datapath when an agent starts.
type KernelState struct {
	Routes  int          // leno's routes in the network's pools, without those that refuse packets
	Refuses bool         // one of leno's routes refuses packets to subnets that no peer has
	Device  bool         // a device with the network's name exists
	Addrs   []netip.Addr // on the device
	Up      bool         // the device is administratively up
	Carrier bool         // the kernel or a process takes the device's packets
}

// isEmpty reports whether the kernel has nothing of the datapath.
func (s KernelState) isEmpty() bool { return !s.Device && s.Routes == 0 && !s.Refuses }

// standing is what happens to packets while no agent runs.
type standing int

const (
	nothingStands standing = iota
	packetsFlow            // the kernel forwards them without a process
	packetsWait            // they are lost until a process reads the device
)

// standing returns what happens to packets of a host with these subnets. A device without an address in each of them
// was created for other subnets, or by another program. If there is no device but a route that refuses packets, the
// device was removed during this boot and is created again.
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

// resumed is the part in a network that an earlier process left during this boot, or this process before a reload,
// until the store has confirmed or refused it.
type resumed struct {
	subnets []netip.Prefix
	as      string                      // ends "10.5.1.0/24 is carried on as", such as "before the reload"
	recall  func() (recollected, error) // the first call may read the files, which are large in a large network
}

// recollected is the content of a datapath. After a restart it is only as complete as the files of the earlier process.
type recollected struct {
	network registry.Network
	own     registry.Lease   // with at least slot, subnets and node id
	leases  []registry.Lease // at least those of the other hosts
}

// resume finds the datapath that an earlier process left and resumes it. It is no error if there is none, or not enough
// is known of it.
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
	r.report.Check(health.Network, api.Warning, unconfirmed)
	r.report.Check(health.Lease, api.Warning, unconfirmed)
}

// before returns the part in the network whose datapath exists, or nil, and whether packets wait for this process.
// After a reload the datapath is this process's own, whatever another program may have done to it.
func (r *runner) before(ctx context.Context) (found *resumed, waits bool) {
	if r.carrier != nil && r.carrier.carries != nil {
		known := *r.carrier.carries
		r.stood = known.own.Subnet()
		return &resumed{known.own.Subnets, "before the reload", func() (recollected, error) { return known, nil }}, true
	}
	before, err := state.Load(r.config.DataDir, r.local.Name)
	if err != nil || len(before.Subnets) == 0 {
		return nil, false // the runner reports an error when it needs a lease
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

// recollect returns the part in a network that the files describe, or an error if they are incomplete or contradict
// each other. It checks them as strictly as records that other hosts write.
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

// carryOn builds the backend and starts a goroutine that keeps the remembered datapath right until relieve is called.
// If packets wait for this process, they flow when carryOn returns.
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
	go func() { // relieve waits for it
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

// relieve stops the goroutine that keeps a resumed datapath right; the datapath stays as it is. The runner calls it
// once a lease is held, or before it changes the backend or the datapath. Calling it again does nothing.
func (r *runner) relieve() {
	if r.relief != nil {
		r.relief()
		r.relief = nil
	}
}

// standInAfter is how long a datapath that works without this process waits for the store before the agent examines it.
const standInAfter = time.Second

// standIn keeps a resumed datapath right until ctx ends. It does what reconcile does while a lease is held, as far as
// that needs no store. It closes first after its first pass. partial is set for a datapath that worked without this
// process, of which the kernel may have more than the files.
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
		case err != nil: // retrying on kernel changes at once would never end, since the pass itself causes them
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

// keepOn makes one pass over a resumed datapath with the current underlay, or with the previous one if the current one
// is not known.
func (r *runner) keepOn(ctx context.Context, n registry.Network, s *backend.State) (healed bool, err error) {
	p, err := r.locate(n)
	switch {
	case err == nil:
		s.MTU, s.Underlay = p.mtu, p.underlay()
		r.showPlace(n, p)
	case s.MTU == 0:
		r.displaced()
		r.report.Check(health.Underlay, api.Critical, fmt.Sprintf("waiting for the underlay: %v", err))
		return false, err
	default:
		r.displaced()
		r.report.Check(health.Underlay, api.Warning, fmt.Sprintf("keeping %s: %v", s.Underlay.Interface, err))
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

// flows reports whether packets flow, because a lease is held or an earlier process left a datapath.
func (r *runner) flows() bool {
	_, held, _ := r.lease.Get()
	r.mu.Lock()
	defer r.mu.Unlock()
	return held || r.resumed != nil
}

// carries returns the lease that this host's containers use: the held one, or the one that an earlier process left.
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

// carriedOn returns what an earlier process left, as far as the files describe it, until the store has confirmed or
// refused it.
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

// settled records that the store has confirmed or refused the resumed datapath.
func (r *runner) settled() {
	r.mu.Lock()
	before := r.resumed
	r.resumed = nil
	r.mu.Unlock()
	if before == nil {
		return
	}
	lease, _, _ := r.lease.Get()
	r.show(func(v *view) { v.local.Subnets = lease.Subnets }) // also wakes readers, since the peers have changed
}
