package agent

import (
	"context"
	"fmt"
	"reflect"

	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
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
