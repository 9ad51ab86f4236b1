package agent

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/flapping"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// place holds this host's underlay and what the backend derives from it.
type place struct {
	choice     underlay.Choice
	mtu        int              // of the overlay, in bytes
	overhead   string           // of the backend, such as "50 for VXLAN over IPv4"; "" for none
	attributes registry.Backend // for peers
}

// equal reports whether two places are the same for backends and peers.
func (p place) equal(o place) bool {
	return p.mtu == o.mtu && p.attributes.Equal(o.attributes) && reflect.DeepEqual(p.underlay(), o.underlay())
}

// arithmetic returns how the overlay's MTU is computed, for example "1450 = 1500 of eth0 - 50 for VXLAN over IPv4".
func (p place) arithmetic() string {
	s := fmt.Sprintf("%d of %s", p.choice.MTU, p.choice.MTUFrom)
	if p.overhead != "" {
		s = fmt.Sprintf("%d = %s - %s", p.mtu, s, p.overhead)
	}
	return s
}

// underlay returns the underlay in the form that backends take.
func (p place) underlay() backend.Underlay {
	return backend.Underlay{Interface: p.choice.Interface, Index: p.choice.Index, MTU: p.choice.MTU, Addrs: p.choice.Addrs, Own: p.choice.Own, Devices: p.choice.Devices}
}

// awaitUnderlay blocks until the host has a device and an address that the backend can use. It looks again after each
// change in the kernel, and from time to time.
func (r *runner) awaitUnderlay(ctx context.Context, n registry.Network) (place, error) {
	backoff := retry.NewBackoff()
	for {
		_, _, changed := r.env.kernel.Get()
		p, err := r.locate(n)
		if err == nil {
			r.showPlace(n, p)
			return p, nil
		}
		r.displaced()
		r.report.Wait(health.Underlay, fmt.Sprintf("waiting for the underlay: %v", err))
		select {
		case <-ctx.Done():
			return place{}, ctx.Err()
		case <-time.After(backoff.Next()):
		case <-changed:
			if err := retry.Sleep(ctx, settle); err != nil {
				return place{}, err
			}
		}
	}
}

func (r *runner) locate(n registry.Network) (place, error) {
	var peers []netip.Addr
	if r.carrier.carries != nil {
		for _, lease := range r.carrier.carries.leases {
			peers = append(peers, lease.PublicIPs...)
		}
	}
	r.show(func(v *view) { v.remote = append(peers[:len(peers):len(peers)], r.config.Underlay.CanReach) })
	choice, err := r.env.selectUnderlay(r.config.Underlay, n.Plan.Prefixes(), peers)
	if err != nil {
		return place{}, err
	}
	p := place{choice: choice}
	advert, err := r.carrier.advertise(p.underlay())
	if err != nil {
		return place{}, fmt.Errorf("backend %s on %s: %w", r.carrier.kind, choice.Interface, err)
	}
	p.mtu, p.overhead = advert.MTU, advert.Overhead
	p.attributes, err = registry.NewBackend(r.carrier.kind, advert.Attributes)
	return p, err
}

// displaced records that there is no usable underlay at the moment, so any device may become it.
func (r *runner) displaced() { r.show(func(v *view) { v.placed = false }) }

// patience returns the pause between a change in the kernel and the next pass, after a pass that failed and is retried
// after pause. Without an underlay the pause is short: the change may have brought the underlay, and the datapath
// writes nothing that would itself cause changes.
func (r *runner) patience(pause time.Duration) time.Duration {
	if !r.shown().placed {
		return settle
	}
	return min(pause, flapping.LongestPause)
}

// usesLink reports whether the underlay depends on the device, or may come to depend on it.
func (r *runner) usesLink(link string) bool {
	v := r.shown()
	return !v.placed || slices.Contains(v.devices, link) || underlay.Names(r.config.Underlay, link)
}

// reaches reports whether packets to other hosts may take a route to the prefix.
func (r *runner) reaches(prefix netip.Prefix) bool {
	return slices.ContainsFunc(r.shown().remote, prefix.Contains)
}

func (r *runner) showPlace(n registry.Network, p place) {
	r.report.Check(health.Underlay, api.Passing, fmt.Sprintf("%s (%s)", p.choice.Interface, p.choice.Reason))
	r.show(func(v *view) {
		v.local.Backend, v.local.MTU, v.local.MTUReason = n.Backend.Type, p.mtu, p.arithmetic()
		v.local.Underlay = api.Underlay{Interface: p.choice.Interface, MTU: p.choice.MTU, Addresses: p.choice.Addrs, Reason: p.choice.Reason}
		if !slices.Equal(p.choice.Own, p.choice.Addrs) {
			v.local.Underlay.Own = p.choice.Own
		}
		v.placed, v.devices = true, p.choice.Devices
	})
}

// makeClaim returns this host's claim, which is complete from the first write.
func (r *runner) makeClaim(n registry.Network, p place) registry.Claim {
	c := registry.Claim{
		Node: r.env.id.Node, NodeID: r.env.id.NodeID, PublicIPs: p.choice.Addrs, MTU: p.mtu, Backend: p.attributes,
		TTL: r.config.Lease.TTL, Hold: r.config.Lease.Hold,
	}
	if lease, held, _ := r.lease.Get(); held {
		c.Session, c.Prefer, c.Since = lease.Session, lease.Subnet(), lease.ModifyIndex
		c.Lately = r.lately(r.shown().local.Renewed)
	} else {
		r.previous(n, &c)
	}
	return c
}

// relocate selects the underlay again. If the underlay has changed, it updates the claim, so that the lease follows. If
// there is no underlay at the moment, it returns the previous place.
func (r *runner) relocate(n registry.Network, before place) place {
	now, err := r.locate(n)
	if err == nil && now.choice.Down && !before.choice.Down {
		// The kernel removes the addresses of a device that is down. That does not mean that the host has moved.
		err = fmt.Errorf("%s is down", now.choice.Interface)
	}
	if err != nil {
		r.displaced()
		if r.report.Check(health.Underlay, api.Warning, fmt.Sprintf("keeping %s: %v", before.choice.Interface, err)) {
			r.log.Warn("underlay cannot be used at the moment, keeping it", "link", before.choice.Interface, "error", err)
		}
		return before
	}
	back := !r.shown().placed
	r.showPlace(n, now)
	if now.equal(before) {
		if back {
			r.log.Info("underlay can be used again", "link", now.choice.Interface)
		}
		return now
	}
	r.log.Info("underlay changed", "link", now.choice.Interface, "addresses", fmt.Sprint(now.choice.Addrs), "mtu", now.choice.MTU, "devices", strings.Join(now.choice.Devices, " "),
		"because", now.choice.Reason)
	if idle, ok := r.env.registry.(interface{ Close() error }); ok && !reflect.DeepEqual(now.choice.Addrs, before.choice.Addrs) {
		// The claim could not be sent over connections from an address that is gone.
		if err := idle.Close(); err != nil {
			r.log.Debug("idle connections stay", "error", err)
		}
	}
	r.claim.Set(r.makeClaim(n, now))
	return now
}
