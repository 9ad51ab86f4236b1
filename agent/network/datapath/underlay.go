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
	"github.com/lenonet/leno/agent/network/report"
	"github.com/lenonet/leno/agent/retry"
	"github.com/lenonet/leno/agent/underlay"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/registry"
)

// An UnderlayState is this host's underlay and what the backend derives from it.
type UnderlayState struct {
	Choice     underlay.Choice
	MTU        int              // of the overlay, in bytes
	Attributes registry.Backend // for peers

	overhead string // of the backend, such as "50 for VXLAN over IPv4"; "" for none
}

// isEqual reports whether two states are the same for backends and peers.
func (u UnderlayState) isEqual(o UnderlayState) bool {
	return u.MTU == o.MTU && u.Attributes.Equal(o.Attributes) && u.hasUnderlayOf(o)
}

// hasUnderlayOf reports whether two states have the same underlay.
func (u UnderlayState) hasUnderlayOf(o UnderlayState) bool {
	return reflect.DeepEqual(u.backendUnderlay(), o.backendUnderlay())
}

// mtuReason returns how the overlay's MTU is computed, for example "1450 = 1500 of eth0 - 50 for VXLAN over IPv4".
func (u UnderlayState) mtuReason() string {
	s := fmt.Sprintf("%d of %s", u.Choice.MTU, u.Choice.MTUFrom)
	if u.overhead != "" {
		s = fmt.Sprintf("%d = %s - %s", u.MTU, s, u.overhead)
	}
	return s
}

// backendUnderlay returns the underlay in the form that backends take.
func (u UnderlayState) backendUnderlay() backend.Underlay {
	return backend.Underlay{
		Interface: u.Choice.Interface,
		Index:     u.Choice.Index,
		MTU:       u.Choice.MTU,
		Addrs:     u.Choice.Addrs,
		Own:       u.Choice.Own,
		VRF:       u.Choice.VRF,
		Devices:   u.Choice.Devices,
		Ports:     u.Choice.Ports,
	}
}

// missingAddrs returns the addresses of before for which the same interface has none of their family now. Another
// interface lacks nothing: the host was told to use it.
func (u UnderlayState) missingAddrs(before UnderlayState) []netip.Addr {
	if u.Choice.Index != before.Choice.Index {
		return nil
	}
	var out []netip.Addr
	for _, had := range before.Choice.Addrs {
		if !slices.ContainsFunc(u.Choice.Addrs, func(a netip.Addr) bool { return a.Is4() == had.Is4() }) {
			out = append(out, had)
		}
	}
	return out
}

// An underlaySelector selects the underlay of one network on this host, decides whether the host keeps the one that it
// has, and shows that in the status.
type underlaySelector struct {
	settings config.Underlay
	previous func() Previous // where an earlier process left this host; nil if that is not known
	host     *Host
	report   *report.Reporter
	status   *sharedStatus
	missing  missingAddress
}

// missingAddress is an address that the underlay has lost and may get back; zero if there is none. One goroutine uses
// it.
type missingAddress struct {
	since time.Time
	over  <-chan time.Time // receives after addressPatience
}

// await blocks until the host has a device and an address that the backends of i can use. It looks again after each
// change in the kernel, and from time to time.
func (s *underlaySelector) await(ctx context.Context, n registry.Network, i *Instance) (UnderlayState, error) {
	backoff := retry.NewBackoff()
	for {
		_, _, changed := s.host.Kernel.Get()
		u, err := s.selectAndShow(n, i)
		if err == nil {
			return u, nil
		}
		s.markLost()
		s.report.Wait(health.Underlay, fmt.Sprintf("waiting for the underlay: %v", err))
		select {
		case <-ctx.Done():
			return UnderlayState{}, ctx.Err()
		case <-time.After(backoff.Next()):
		case <-changed:
			if err := retry.Sleep(ctx, settle); err != nil {
				return UnderlayState{}, err
			}
		}
	}
}

// selectAndShow selects the underlay and shows it in the status.
func (s *underlaySelector) selectAndShow(n registry.Network, i *Instance) (UnderlayState, error) {
	u, err := s.selectAgain(n, i, nil)
	if err == nil {
		s.show(n, u)
	}
	return u, err
}

// selectAgain selects the underlay of a host that may have one, in this process or an earlier one. The default route
// alone may move to another interface, such as a backup, while the other hosts are still reached through the present
// one. The host then stays.
func (s *underlaySelector) selectAgain(n registry.Network, i *Instance, before *UnderlayState) (UnderlayState, error) {
	now, err := s.selectFrom(s.settings, n, i)
	if !underlay.FollowsDefaultRoute(s.settings) {
		return now, err
	}
	had := s.lastKnown()
	if before != nil {
		had = Previous{Interface: before.Choice.Interface, Index: before.Choice.Index, Addrs: before.Choice.Addrs}
	}
	if had.Interface == "" || err == nil && had.isOn(now.Choice) {
		return now, err
	}
	present := s.settings
	present.Interfaces = []string{had.Interface}
	kept, keptErr := s.selectFrom(present, n, i)
	has := kept.Choice
	if keptErr != nil || has.Down || !has.ToPeers || !had.isOn(has) || !slices.Equal(has.Addrs, had.Addrs) {
		return now, err
	}
	kept.Choice.Reason = "the other hosts are reached through it, although the default route does not leave through it"
	return kept, nil
}

// selectFrom selects the underlay by settings. Until the peers are known, it asks for routes to those of an earlier
// process.
func (s *underlaySelector) selectFrom(
	settings config.Underlay, n registry.Network, i *Instance,
) (UnderlayState, error) {
	var remote []netip.Addr
	if content := i.content.Load(); content == nil {
		remote = s.lastKnown().Peers
	} else {
		for _, lease := range content.Leases {
			remote = append(remote, lease.PublicIPs...)
		}
	}
	s.status.update(func(st *Status) { st.remote = append(remote[:len(remote):len(remote)], s.settings.CanReach) })
	choice, err := s.host.SelectUnderlay(settings, n.Plan.Prefixes(), remote)
	if err != nil {
		return UnderlayState{}, err
	}
	u := UnderlayState{Choice: choice}
	advert, err := i.advertise(u.backendUnderlay())
	if err != nil {
		return UnderlayState{}, fmt.Errorf("backend %s on %s: %w", i.kind(), choice.Interface, err)
	}
	u.MTU, u.overhead = advert.MTU, advert.Overhead
	u.Attributes, err = registry.NewBackend(i.kind(), advert.Attributes)
	return u, err
}

// markLost records that there is no usable underlay at the moment, so any device may become it.
func (s *underlaySelector) markLost() { s.status.update(func(st *Status) { st.HasUnderlay = false }) }

// Link returns the name of the device of the network's backend, or of the current one during a switch.
func Link(n registry.Network) string { return carriage.Of(n.Carriage()).Links(n.Name)[0] }

// show sets the check of the underlay, and shows it in the status.
func (s *underlaySelector) show(n registry.Network, u UnderlayState) {
	status, reason := api.Passing, fmt.Sprintf("%s (%s)", u.Choice.Interface, u.Choice.Reason)
	if left := s.noteDeparture(u); left != nil {
		status, reason = api.Warning, fmt.Sprintf("%s; the host has left %s", reason, left)
	}
	s.report.Check(health.Underlay, status, reason)
	s.status.update(func(st *Status) {
		st.Link = ""
		if s.host.Backends[n.Backend.Type].Device {
			st.Link = Link(n)
		}
		st.Backend, st.MTU, st.MTUReason = n.Backend.Type, u.MTU, u.mtuReason()
		st.Underlay = api.Underlay{
			Interface: u.Choice.Interface,
			MTU:       u.Choice.MTU,
			Addresses: u.Choice.Addrs,
			Reason:    u.Choice.Reason,

			PublicPorts: u.Choice.Ports,
		}
		if !slices.Equal(u.Choice.Own, u.Choice.Addrs) {
			st.Underlay.Own = u.Choice.Own
		}
		st.VRF, st.HasUnderlay, st.Devices = u.Choice.VRF, true, u.Choice.Devices
	})
}

// remainsReason returns why the host keeps the underlay before although now was selected, nil if it changes to now.
func (s *underlaySelector) remainsReason(now, before UnderlayState) error {
	lost := now.missingAddrs(before)
	if lost == nil {
		s.missing = missingAddress{}
	}
	switch {
	case now.Choice.Down && !before.Choice.Down:
		// The kernel removes the addresses of a device that is down. That does not mean that the host has moved.
		return fmt.Errorf("%s is down", now.Choice.Interface)
	case lost == nil:
		return nil
	case s.missing.since.IsZero():
		s.missing = missingAddress{time.Now(), time.After(addressPatience)}
	case time.Since(s.missing.since) >= addressPatience:
		return nil
	}
	return fmt.Errorf("its address %s is missing", lost[0])
}

// update selects the underlay again. If there is none at the moment, it returns before; the error is only for a host
// that has had no underlay yet, for which before is nil.
func (s *underlaySelector) update(n registry.Network, i *Instance, before *UnderlayState) (*UnderlayState, error) {
	log := s.report.Log()
	now, err := s.selectAgain(n, i, before)
	switch {
	case err != nil:
		s.missing = missingAddress{} // what comes back first may not be all of it
	case before != nil:
		err = s.remainsReason(now, *before)
	}
	if err != nil {
		s.markLost()
		if before == nil {
			s.report.Check(health.Underlay, api.Critical, fmt.Sprintf("waiting for the underlay: %v", err))
			return nil, err
		}
		if s.report.Check(health.Underlay, api.Warning, fmt.Sprintf("keeping %s: %v", before.Choice.Interface, err)) {
			log.Warn("underlay cannot be used at the moment, keeping it", "link", before.Choice.Interface, "error", err)
		}
		return before, nil
	}
	recovered := !s.status.get().HasUnderlay
	s.show(n, now)
	if before == nil {
		return &now, nil
	}
	s.logChange(*before, now, recovered)
	return &now, nil
}

// logChange logs what has changed since before. recovered is true if there was no usable underlay in between.
func (s *underlaySelector) logChange(before, now UnderlayState, recovered bool) {
	log := s.report.Log()
	if !now.hasUnderlayOf(before) {
		log.Info("underlay changed", "link", now.Choice.Interface, "addresses", fmt.Sprint(now.Choice.Addrs),
			"mtu", now.Choice.MTU, "devices", strings.Join(now.Choice.Devices, " "), "because", now.Choice.Reason)
		return // from which the rest follows
	}
	if recovered {
		log.Info("underlay can be used again", "link", now.Choice.Interface)
	}
	if now.MTU != before.MTU { // of the backends of a switch, one can be used now or no longer
		log.Info("MTU of the overlay changed", "mtu", now.MTU, "because", now.mtuReason())
	}
	if !now.Attributes.Equal(before.Attributes) { // at each step of a switch, or because a key was replaced
		log.Debug("attributes of the lease changed", "backend", now.Attributes.Type)
	}
}
