package datapath

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/carriage"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// A Place holds this host's underlay and what the backend derives from it.
type Place struct {
	Choice     underlay.Choice
	MTU        int              // of the overlay, in bytes
	Attributes registry.Backend // for peers

	overhead string // of the backend, such as "50 for VXLAN over IPv4"; "" for none
}

// equal reports whether two places are the same for backends and peers.
func (p Place) equal(o Place) bool {
	return p.MTU == o.MTU && p.Attributes.Equal(o.Attributes) && p.isOn(o)
}

// isOn reports whether two places have the same underlay.
func (p Place) isOn(o Place) bool { return reflect.DeepEqual(p.underlay(), o.underlay()) }

// arithmetic returns how the overlay's MTU is computed, for example "1450 = 1500 of eth0 - 50 for VXLAN over IPv4".
func (p Place) arithmetic() string {
	s := fmt.Sprintf("%d of %s", p.Choice.MTU, p.Choice.MTUFrom)
	if p.overhead != "" {
		s = fmt.Sprintf("%d = %s - %s", p.MTU, s, p.overhead)
	}
	return s
}

// underlay returns the underlay in the form that backends take.
func (p Place) underlay() backend.Underlay {
	return backend.Underlay{
		Interface: p.Choice.Interface,
		Index:     p.Choice.Index,
		MTU:       p.Choice.MTU,
		Addrs:     p.Choice.Addrs,
		Own:       p.Choice.Own,
		VRF:       p.Choice.VRF,
		Devices:   p.Choice.Devices,
		Ports:     p.Choice.Ports,
	}
}

// AwaitUnderlay blocks until the host has a device and an address that the backend can use. It looks again after each
// change in the kernel, and from time to time.
func (r *Reconciler) AwaitUnderlay(ctx context.Context, n registry.Network) (Place, error) {
	backoff := retry.NewBackoff()
	for {
		_, _, changed := r.o.Host.Kernel.Get()
		p, err := r.Locate(n)
		if err == nil {
			return p, nil
		}
		r.markUnderlayLost()
		r.o.Report.Wait(health.Underlay, fmt.Sprintf("waiting for the underlay: %v", err))
		select {
		case <-ctx.Done():
			return Place{}, ctx.Err()
		case <-time.After(backoff.Next()):
		case <-changed:
			if err := retry.Sleep(ctx, settle); err != nil {
				return Place{}, err
			}
		}
	}
}

// Locate selects the underlay and shows it. There must be a backend.
func (r *Reconciler) Locate(n registry.Network) (Place, error) {
	p, err := r.selectAgain(n, nil)
	if err == nil {
		r.showPlace(n, p)
	}
	return p, err
}

// selectAgain selects the underlay of a host that may have one, in this process or an earlier one. The default route
// alone may move to another interface, such as a backup, while the other hosts are still reached through the present
// one. The host then stays.
func (r *Reconciler) selectAgain(n registry.Network, before *Place) (Place, error) {
	now, err := r.selectPlace(n, r.o.Underlay)
	if !underlay.FollowsDefaultRoute(r.o.Underlay) {
		return now, err
	}
	had := r.previous()
	if before != nil {
		had = Previous{Interface: before.Choice.Interface, Index: before.Choice.Index, Addrs: before.Choice.Addrs}
	}
	if had.Interface == "" || err == nil && had.isOn(now.Choice) {
		return now, err
	}
	present := r.o.Underlay
	present.Interfaces = []string{had.Interface}
	kept, keptErr := r.selectPlace(n, present)
	has := kept.Choice
	if keptErr != nil || has.Down || !has.ToPeers || !had.isOn(has) || !slices.Equal(has.Addrs, had.Addrs) {
		return now, err
	}
	kept.Choice.Reason = "the other hosts are reached through it, although the default route does not leave through it"
	return kept, nil
}

func (r *Reconciler) selectPlace(n registry.Network, settings config.Underlay) (Place, error) {
	var remote []netip.Addr
	if content := r.Content(); content == nil {
		remote = r.previous().Peers
	} else {
		for _, lease := range content.Leases {
			remote = append(remote, lease.PublicIPs...)
		}
	}
	r.update(func(s *Status) { s.remote = append(remote[:len(remote):len(remote)], r.o.Underlay.CanReach) })
	choice, err := r.o.Host.SelectUnderlay(settings, n.Plan.Prefixes(), remote)
	if err != nil {
		return Place{}, err
	}
	p := Place{Choice: choice}
	advert, err := r.instance.advertise(p.underlay())
	if err != nil {
		return Place{}, fmt.Errorf("backend %s on %s: %w", r.instance.kind(), choice.Interface, err)
	}
	p.MTU, p.overhead = advert.MTU, advert.Overhead
	p.Attributes, err = registry.NewBackend(r.instance.kind(), advert.Attributes)
	return p, err
}

// markUnderlayLost records that there is no usable underlay at the moment, so any device may become it.
func (r *Reconciler) markUnderlayLost() { r.update(func(s *Status) { s.Placed = false }) }

// Link returns the name of the device of the network's backend, or of the current one during a switch.
func Link(n registry.Network) string { return carriage.Of(n.Carriage()).Links(n.Name)[0] }

func (r *Reconciler) showPlace(n registry.Network, p Place) {
	status, reason := api.Passing, fmt.Sprintf("%s (%s)", p.Choice.Interface, p.Choice.Reason)
	if left := r.noteDeparture(p); left != nil {
		status, reason = api.Warning, fmt.Sprintf("%s; the host has left %s", reason, left)
	}
	r.o.Report.Check(health.Underlay, status, reason)
	r.update(func(s *Status) {
		s.Link = ""
		if r.o.Host.Backends[n.Backend.Type].Device {
			s.Link = Link(n)
		}
		s.Backend, s.MTU, s.MTUReason = n.Backend.Type, p.MTU, p.arithmetic()
		s.Underlay = api.Underlay{
			Interface: p.Choice.Interface,
			MTU:       p.Choice.MTU,
			Addresses: p.Choice.Addrs,
			Reason:    p.Choice.Reason,

			PublicPorts: p.Choice.Ports,
		}
		if !slices.Equal(p.Choice.Own, p.Choice.Addrs) {
			s.Underlay.Own = p.Choice.Own
		}
		s.VRF, s.Placed, s.Devices = p.Choice.VRF, true, p.Choice.Devices
	})
}

// stays returns why the host has not moved from before to now, or nil if it has.
func (r *Reconciler) stays(now, before Place) error {
	lost := now.lost(before)
	if lost == nil {
		r.missing = missing{}
	}
	switch {
	case now.Choice.Down && !before.Choice.Down:
		// The kernel removes the addresses of a device that is down. That does not mean that the host has moved.
		return fmt.Errorf("%s is down", now.Choice.Interface)
	case lost == nil:
		return nil
	case r.missing.since.IsZero():
		r.missing = missing{time.Now(), time.After(addressPatience)}
	case time.Since(r.missing.since) >= addressPatience:
		return nil
	}
	return fmt.Errorf("its address %s is missing", lost[0])
}

// lost returns the addresses of before for which the same interface has none of their family now. Another interface has
// lost nothing: the host was told to use it.
func (p Place) lost(before Place) []netip.Addr {
	if p.Choice.Index != before.Choice.Index {
		return nil
	}
	var out []netip.Addr
	for _, had := range before.Choice.Addrs {
		if !slices.ContainsFunc(p.Choice.Addrs, func(a netip.Addr) bool { return a.Is4() == had.Is4() }) {
			out = append(out, had)
		}
	}
	return out
}

// relocate selects the underlay again. If there is none at the moment, it returns the previous place; the error is only
// for a host that has not had a place yet, for which before is nil.
func (r *Reconciler) relocate(n registry.Network, before *Place) (*Place, error) {
	log := r.o.Report.Log()
	now, err := r.selectAgain(n, before)
	switch {
	case err != nil:
		r.missing = missing{} // what comes back first may not be all of it
	case before != nil:
		err = r.stays(now, *before)
	}
	if err != nil {
		r.markUnderlayLost()
		if before == nil {
			r.o.Report.Check(health.Underlay, api.Critical, fmt.Sprintf("waiting for the underlay: %v", err))
			return nil, err
		}
		if r.o.Report.Check(health.Underlay, api.Warning, fmt.Sprintf("keeping %s: %v", before.Choice.Interface, err)) {
			log.Warn("underlay cannot be used at the moment, keeping it", "link", before.Choice.Interface, "error", err)
		}
		return before, nil
	}
	back := !r.Status().Placed
	r.showPlace(n, now)
	if before == nil {
		return &now, nil
	}
	r.logChange(*before, now, back)
	return &now, nil
}

// logChange logs what has changed since the host was at the place before. back is true if there was no usable underlay
// in between.
func (r *Reconciler) logChange(before, now Place, back bool) {
	log := r.o.Report.Log()
	if !now.isOn(before) {
		log.Info("underlay changed", "link", now.Choice.Interface, "addresses", fmt.Sprint(now.Choice.Addrs),
			"mtu", now.Choice.MTU, "devices", strings.Join(now.Choice.Devices, " "), "because", now.Choice.Reason)
		return // from which the rest follows
	}
	if back {
		log.Info("underlay can be used again", "link", now.Choice.Interface)
	}
	if now.MTU != before.MTU { // of the backends of a switch, one can be used now or no longer
		log.Info("MTU of the overlay changed", "mtu", now.MTU, "because", now.arithmetic())
	}
	if !now.Attributes.Equal(before.Attributes) { // at each step of a switch, or because a key was replaced
		log.Debug("attributes of the lease changed", "backend", now.Attributes.Type)
	}
}
