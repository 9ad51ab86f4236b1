package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/firewall"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

const (
	// slowTick bounds how long anything can stay wrong that no event told of.
	slowTick = 20 * time.Second
	// settle lets a burst of kernel events end before the tables are read.
	settle = 100 * time.Millisecond
)

// place is where this host stands on the underlay and what the backend makes
// of it.
type place struct {
	choice     underlay.Choice
	mtu        int              // of the overlay, bytes
	attributes registry.Backend // what peers need
}

// underlay is the place as backends know it.
func (p place) underlay() backend.Underlay {
	return backend.Underlay{Interface: p.choice.Interface, Index: p.choice.Index, MTU: p.choice.MTU, Addrs: p.choice.Addrs}
}

// awaitUnderlay blocks until the host has a device and address the backend can
// work on.
func (r *runner) awaitUnderlay(ctx context.Context, n registry.Network) (place, error) {
	retry := newPause()
	for {
		p, err := r.locate(n)
		if err == nil {
			r.showPlace(n, p)
			return p, nil
		}
		r.wait(checkUnderlay, fmt.Sprintf("waiting for the underlay: %v", err))
		if err := retry.wait(ctx); err != nil {
			return place{}, err
		}
	}
}

func (r *runner) locate(n registry.Network) (place, error) {
	choice, err := r.env.selectUnderlay(r.config.Underlay, n.Plan.Prefixes())
	if err != nil {
		return place{}, err
	}
	p := place{choice: choice}
	advert, err := r.carrier.advertise(p.underlay())
	if err != nil {
		return place{}, fmt.Errorf("backend %s on %s: %w", r.carrier.kind, choice.Interface, err)
	}
	p.mtu = advert.MTU
	p.attributes, err = registry.NewBackend(r.carrier.kind, advert.Attributes)
	return p, err
}

func (r *runner) showPlace(n registry.Network, p place) {
	r.check(checkUnderlay, api.Passing, fmt.Sprintf("%s (%s)", p.choice.Interface, p.choice.Reason))
	r.show(func(v *view) {
		v.local.Backend, v.local.MTU = n.Backend.Type, p.mtu
		v.local.Underlay = api.Underlay{Interface: p.choice.Interface, MTU: p.choice.MTU, Addresses: p.choice.Addrs, Reason: p.choice.Reason}
	})
}

// makeClaim is what this host says of itself, complete from its first write.
func (r *runner) makeClaim(n registry.Network, p place) registry.Claim {
	c := registry.Claim{
		Node: r.env.id.node, NodeID: r.env.id.nodeID, PublicIPs: p.choice.Addrs, MTU: p.mtu, Backend: p.attributes,
		TTL: r.config.Lease.TTL, Hold: r.config.Lease.Hold,
	}
	if lease, held, _ := r.lease.get(); held {
		c.Session, c.Prefer, c.Since = lease.Session, lease.Subnet(), lease.ModifyIndex
	} else {
		c.Session, c.Prefer, c.Since = r.previous(n)
	}
	return c
}

// reconcile makes the host agree with lease and snapshot, now and whenever one
// of them, the kernel or the underlay changes, and on a slow tick.
func (r *runner) reconcile(ctx context.Context, n registry.Network, p place) error {
	tick := time.NewTicker(slowTick)
	defer tick.Stop()
	retry := newPause()
	calm := settle
	var (
		lease registry.Lease
		snap  snapshot
		state backend.State
		fresh bool // state was never applied

		known   = r.remember(n)
		peers   []registry.Lease // behind state
		settled <-chan time.Time // when peers that the store lacks go
		doubted <-chan time.Time // when another host that is taken for this one may have gone
		saved   time.Time        // when the peers were written down

		remember <-chan time.Time // when they may be written down again
		unsaved  bool
	)
	defer func() {
		if unsaved {
			r.rememberPeers(known, n, peers, lease)
		}
	}()
	// A change of the kernel counts until it was looked at, whatever else comes
	// with it.
	_, _, kernel := r.env.kernel.get()
	for {
		nowLease, _, leaseChanged := r.lease.get()
		nowSnap, read, snapChanged := r.snapshot.get()
		kernelChanged := kernel
		var failed <-chan time.Time
		if !read {
			r.state("waiting for the leases of the other hosts")
		} else {
			if snap.read != nowSnap.read || !reflect.DeepEqual(lease, nowLease) {
				lease, snap, fresh = nowLease, nowSnap, true
				peers, settled = r.recall(known, n, snap.set.Leases)
				state.Subnets, state.Peers = lease.Subnets, peersOf(peers, lease)
				doubted = r.judge(snap.set.Leases, lease)
				unsaved = true
				r.carrier.carries = &recollected{n, lease, peers}
			}
			if u := p.underlay(); state.MTU != p.mtu || !reflect.DeepEqual(state.Underlay, u) {
				state.MTU, state.Underlay, fresh = p.mtu, u, true
			}
			report, err := r.apply(ctx, n, lease, state, fresh)
			switch {
			case err != nil:
				failed = time.After(retry.next())
				kernelChanged = nil // its own writes would make it try at once, for ever
			case len(report.Healed) > 0:
				// Somebody who changes it again and again is not to be outrun.
				calm = min(2*calm, localLast)
			case report.Writes == 0:
				calm = settle
			}
			if err == nil {
				retry.reset()
				fresh = false
			}
			remember = nil
			switch wait := time.Until(saved.Add(rememberPause(len(peers)))); {
			case unsaved && wait <= 0:
				r.rememberPeers(known, n, peers, lease)
				unsaved, saved = false, time.Now()
			case unsaved:
				remember = time.After(wait)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-leaseChanged:
			continue
		case <-snapChanged:
			continue
		case <-failed:
		case <-remember:
			continue
		case <-settled:
			snap = snapshot{} // look again at who is there
			continue
		case <-doubted:
			now, _ := r.leasesNow(ctx, n)
			doubted = r.judge(now.set.Leases, lease)
			continue
		case <-tick.C:
		case <-kernelChanged:
			if err := sleep(ctx, calm); err != nil {
				return err
			}
		}
		_, _, kernel = r.env.kernel.get()
		p = r.relocate(n, p)
	}
}

// judge says whether another host is taken for this one, and when to look again:
// that it fell silent is written by nobody.
func (r *runner) judge(leases []registry.Lease, own registry.Lease) <-chan time.Time {
	reason := conflicts(leases, own)
	r.suspect("leases", reason)
	if reason == "" {
		return nil
	}
	return time.After(freshEvery)
}

// relocate looks at the underlay again. When it changed, the lease follows;
// when there is none at the moment, the last one stays in force.
func (r *runner) relocate(n registry.Network, before place) place {
	now, err := r.locate(n)
	if err != nil {
		r.check(checkUnderlay, api.Warning, fmt.Sprintf("keeping %s: %v", before.choice.Interface, err))
		return before
	}
	r.showPlace(n, now)
	if reflect.DeepEqual(now, before) {
		return before
	}
	r.log.Info("underlay changed", "link", now.choice.Interface, "addresses", fmt.Sprint(now.choice.Addrs), "mtu", now.choice.MTU)
	if idle, ok := r.env.registry.(interface{ Close() error }); ok && !reflect.DeepEqual(now.choice.Addrs, before.choice.Addrs) {
		// Connections from an address that is gone would take the claim nowhere.
		if err := idle.Close(); err != nil {
			r.log.Debug("idle connections stay", "error", err)
		}
	}
	r.claim.set(r.makeClaim(n, now))
	return now
}

// apply makes one pass over datapath, firewall and files. wanted says that the
// state is another one than the last that was applied, so that writes are news
// and not drift.
func (r *runner) apply(ctx context.Context, n registry.Network, lease registry.Lease, s backend.State, wanted bool) (backend.Report, error) {
	started, stood := time.Now(), !r.shown().local.Applied.IsZero()
	report, err := r.carrier.apply(ctx, s)
	if ctx.Err() != nil {
		return report, ctx.Err()
	}
	r.show(func(v *view) {
		v.report, v.local.Peers = report, report.Peers
		if err == nil {
			v.local.Applied = time.Now()
		}
	})
	if err != nil {
		if r.env.health.set(r.local.Name, checkDatapath, api.Critical, err.Error()) {
			r.log.Error("datapath could not be applied whole, trying again", "error", err)
		}
		if stood {
			// It may be that only the containers of a subnet this host had before are
			// in the way, and they go once the file names the one it has.
			err = errors.Join(err, r.serve(ctx, n, lease, s))
		}
		return report, err
	}
	switch {
	case len(report.Healed) > 0:
		r.log.Warn("datapath was changed by somebody else, healed", "healed", strings.Join(report.Healed, "; "))
	case report.Writes > 0 && wanted:
		r.log.Info("datapath applied", "peers", report.Peers, "writes", report.Writes, "took", time.Since(started).Round(time.Microsecond))
	}
	r.checkPeers(report)
	if err := r.serve(ctx, n, lease, s); err != nil {
		return report, err
	}
	r.env.health.ready(r.local.Name, true)
	r.state("running")
	return report, nil
}

// serve does for the containers of this host what is not the backend's.
func (r *runner) serve(ctx context.Context, n registry.Network, lease registry.Lease, s backend.State) error {
	if err := r.writeFiles(n, lease, s); err != nil {
		if r.env.health.set(r.local.Name, checkSubnetFile, api.Critical, err.Error()) {
			r.log.Error("subnet file could not be written, the old one stays", "error", err)
		}
		return err
	}
	r.check(checkSubnetFile, api.Passing, r.local.SubnetFile+" is written")
	return r.forwarding(ctx, n, s)
}

func (r *runner) checkPeers(report backend.Report) {
	if len(report.Skipped) == 0 {
		r.check(checkDatapath, api.Passing, fmt.Sprintf("%d peers in place", report.Peers))
		return
	}
	first := report.Skipped[0]
	reason := fmt.Sprintf("%d peers in place, %d skipped, the first %q: %s", report.Peers, len(report.Skipped), first.Node, first.Reason)
	if r.env.health.set(r.local.Name, checkDatapath, api.Warning, reason) {
		for _, skip := range report.Skipped {
			r.log.Warn("peer skipped", "peer", skip.Node, "error", skip.Reason)
		}
	}
}

// forwarding keeps the firewall and the kernel's switch as this host's block
// asks.
func (r *runner) forwarding(ctx context.Context, n registry.Network, s backend.State) error {
	if n.Backend.Type == "alloc" {
		return nil // no datapath, nothing to forward
	}
	err := r.env.firewall.put(ctx, firewallNetwork(r.local, n.Plan.Prefixes(), s.Subnets))
	switch {
	case err == nil:
		r.check(checkFirewall, api.Passing, "rules are in place")
	case errors.Is(err, firewall.ErrNotInstalled) && !r.local.IPMasq:
		// Where nothing drops forwarded packets, nothing is missing.
		r.check(checkFirewall, api.Warning, err.Error())
	default:
		if r.env.health.set(r.local.Name, checkFirewall, api.Critical, err.Error()) {
			r.log.Error("firewall could not be applied, trying again", "error", err)
		}
		return err
	}
	var off []string
	for _, subnet := range s.Subnets {
		on, err := r.env.ensureForwarding(subnet.Addr(), r.local.Forward)
		switch {
		case err != nil:
			off = append(off, err.Error())
		case !on:
			off = append(off, "net."+strings.Join(forwardingSwitch(subnet.Addr()), ".")+" is 0: containers cannot reach other hosts until it is 1")
		}
	}
	if len(off) > 0 {
		r.check(checkForwarding, api.Warning, strings.Join(off, "; "))
	} else {
		r.check(checkForwarding, api.Passing, "the kernel forwards packets")
	}
	return nil
}

// forwardingSwitch is the sysctl below net that makes the kernel forward the
// family of a.
func forwardingSwitch(a netip.Addr) []string {
	if a.Is6() {
		return []string{"ipv6", "conf", "all", "forwarding"}
	}
	return []string{"ipv4", "ip_forward"}
}

// writeFiles writes the subnet file and the state file where they differ from
// what they should say.
func (r *runner) writeFiles(n registry.Network, lease registry.Lease, s backend.State) error {
	want := subnetFile(n.Plan, s.Subnets, s.MTU, r.local.IPMasq)
	if have, err := os.ReadFile(r.local.SubnetFile); err != nil || !bytes.Equal(have, want) {
		if err := writeFileAtomic(r.local.SubnetFile, want, 0o644); err != nil {
			return err
		}
		r.log.Info("subnet file written", "path", r.local.SubnetFile, "subnet", lease.Subnet())
	}
	return r.save(n, lease)
}

// save remembers the lease for the next process.
func (r *runner) save(n registry.Network, lease registry.Lease) error {
	r.saving.Lock()
	defer r.saving.Unlock()
	now := saved{Version: registry.Version, Network: n.Name, Subnets: lease.Subnets, Session: lease.Session,
		Lease: lease.ModifyIndex, Definition: n.CreateIndex, Revoked: r.revokedSubnet(), SubnetFile: r.local.SubnetFile, Pools: n.Plan.Prefixes(), Backend: n.Backend}
	renewed := r.shown().local.Renewed
	if renewed.IsZero() {
		renewed = time.Now() // it has just been acquired
	}
	now.Renewed = renewed.UTC().Truncate(time.Second)
	if before, err := loadSaved(r.config.DataDir, n.Name); err == nil {
		if before.Session == now.Session && now.Renewed.Sub(before.Renewed) < r.config.Lease.Hold/10 {
			now.Renewed = before.Renewed // not worth a write
		}
		if reflect.DeepEqual(before, now) {
			return nil
		}
	}
	return storeSaved(r.config.DataDir, now)
}
