package vxlan

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/overlay"
)

// Type describes the backend. Options, all with defaults: vni (1), port (8472), gbp (false),
// direct_routing (false), checksum_offload ("auto": on, except where a fault is known, see
// chooseChecksum; Apply restores the choice when it was changed), mtu (0: no limit). The overlay's MTU is the
// underlay's less 50, or less 70 over IPv6, and at most mtu. A host publishes
// {"vni":1,"port":8472,"vtep_mac":"0a:…"}. The record of a host that runs flannel has
// {"own_family":true} as well. "vtep_mac_v6" is there if hosts that run flannel send IPv6 packets to
// another address.
func Type() backend.Type {
	return backend.Type{
		Name: Name, Normalize: normalize, Port: port, Interrupts: interrupts(), Device: true,
		Drops: kernel.LinkDrops(), Overhead: overhead, New: newBackend,
	}
}

type vxlan struct {
	overlay  overlay.Overlay
	options  options
	devices  [2]vtep // the first device and the second
	settled  bool    // their MAC addresses are what they will be
	beside   bool    // another backend carries the network too
	checksum checksum
	planned  planned
}

// planned holds a plan and its input. Planning a thousand peers takes 5 ms.
type planned struct {
	tunnels [2]tunnel
	state   backend.State
	direct  map[netip.Addr]bool
	plan    plan
}

var _ backend.Backend = (*vxlan)(nil)

func newBackend(c backend.Config) (backend.Backend, error) {
	o, err := decode(c.Options)
	if err != nil {
		return nil, err
	}
	mac := vtepMAC(c.NodeID, c.Network)
	v := &vxlan{overlay: overlay.Overlay{Config: c}, options: o,
		checksum: checksum{option: o.Checksum, read: kernel.TxChecksum, set: kernel.SetTxChecksum}}
	v.devices = [2]vtep{
		{mac: mac, Device: overlay.Device{Name: c.Link, Alias: c.DeviceAlias(), IsKind: isVXLAN}},
		{mac: mac, Device: overlay.Device{
			Name:   backend.OtherFamilyLinkName(c.Network),
			Alias:  backend.OtherFamilyLinkAlias(c.Network),
			IsKind: v.isSecond,
		}},
	}
	return v, nil
}

// Advertise publishes the address of the device that Apply will create or use. It rejects an
// underlay whose MTU is too small for the network's families (RFC 791, RFC 8200).
func (b *vxlan) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	want, err := b.wantDevice(backend.State{Underlay: u})
	if err != nil {
		return backend.Advertisement{}, err
	}
	capsule := backend.Encapsulation{Overhead: overhead(want.local), Name: "VXLAN over " + backend.Family(want.local)}
	mtu, because, err := capsule.MTU(u, b.overlay.Config.Pools, b.options.MTU)
	if err != nil {
		return backend.Advertisement{}, err
	}
	public := attributes{VNI: b.options.VNI, Port: b.options.Port, MAC: want.mac.String()}
	if b.devices[1].mac != want.mac {
		public.MACv6 = b.devices[1].mac.String()
	}
	published, err := json.Marshal(public)
	return backend.Advertisement{MTU: mtu, Overhead: because, Attributes: published}, err
}

// Apply makes the devices, forwarding entries, neighbours and routes agree with the state.
func (b *vxlan) Apply(ctx context.Context, s backend.State) (report backend.Report, err error) {
	if err := b.overlay.Open(); err != nil {
		return report, err
	}
	b.beside = len(s.Elsewhere) > 0
	if s.Zero() {
		err = errors.Join(b.devices[1].Remove(b.overlay.Handle, &report), b.devices[0].Remove(b.overlay.Handle, &report),
			b.overlay.Clear(ctx, s, &report))
		return report, err
	}
	want := [2]device{}
	if want[0], err = b.wantDevice(s); err != nil {
		return report, err
	}
	if second, ok := wantSecond(want[0], b.devices[1].mac, s); ok {
		want[1] = second
	}
	direct, err := b.direct(ctx, s)
	if err != nil {
		return report, backend.About(backend.Routes, err)
	}
	tunnels, deviceErr := b.ensureAll(ctx, want, s, &report)
	if tunnels[0].link == 0 {
		err = errors.Join(deviceErr, b.overlay.Refuse(ctx, s, &report))
		return report, err
	}
	p := b.plan(tunnels, s, direct)
	report.Skipped, report.Peers, report.Direct = p.skipped, p.peers, p.direct
	// A second device may have failed.
	devices := slices.DeleteFunc(slices.Clone(p.devices[:]), func(e overlay.Entries) bool { return e.Link == 0 })
	err = b.overlay.Program(ctx, s, overlay.Wanted{Devices: devices, Routes: p.routes}, &report)
	if want[1] == (device{}) && !s.Partial {
		// Only now, because its routes had to give way to others first.
		err = errors.Join(err, backend.About(backend.Device, b.devices[1].Remove(b.overlay.Handle, &report)))
	}
	return report, errors.Join(deviceErr, err)
}

// wantDevice returns the first device for a state that is not zero. Devices that exist already keep
// their MAC addresses: other hosts know them, and packets to another one would be dropped until
// those hosts know that. They are others than vtepMAC's if flannel made the devices.
func (b *vxlan) wantDevice(s backend.State) (device, error) {
	want, err := wantDevice(b.devices[0].mac, b.options, s)
	if err != nil || b.settled || b.overlay.Open() != nil {
		return want, err
	}
	if mac, ok := b.devices[0].existing(b.overlay.Handle, want); ok {
		b.devices[0].mac, b.devices[1].mac, want.mac = mac, mac, mac
	}
	// A lease has a second address only for IPv6.
	if local, _, ok := s.Underlay.SourceOf(otherFamily(want.local)); ok && want.local.Is4() {
		second := want
		second.local = local
		if mac, ok := b.devices[1].existing(b.overlay.Handle, second); ok {
			b.devices[1].mac = mac
		}
	}
	b.settled = true
	return want, nil
}

// ensureAll makes the wanted devices stand. A second device that cannot be made does not prevent
// the first from being used.
func (b *vxlan) ensureAll(
	ctx context.Context, want [2]device, s backend.State, report *backend.Report,
) (tunnels [2]tunnel, err error) {
	var errs []error
	if !s.Partial {
		errs = append(errs, b.clearSecond(want[0], report))
	}
	for i, w := range want {
		if w == (device{}) || i > 0 && tunnels[0].link == 0 {
			continue
		}
		tunnels[i], err = b.ensure(ctx, &b.devices[i], w, s, report)
		errs = append(errs, err)
	}
	return tunnels, backend.About(backend.Device, errors.Join(errs...))
}

// clearSecond removes a second device of the family that the first device is to have: the kernel
// allows one of each family. That happens when the underlay's family changes.
func (b *vxlan) clearSecond(first device, report *backend.Report) error {
	link, err := b.devices[1].Own(b.overlay.Handle)
	if err != nil || link == nil || shown(link).local.Is4() != first.local.Is4() {
		return nil // an error comes again where the device is used
	}
	return b.devices[1].Remove(b.overlay.Handle, report)
}

// plan returns newPlan's result, computed again only when its input has changed.
func (b *vxlan) plan(tunnels [2]tunnel, s backend.State, direct map[netip.Addr]bool) plan {
	if before := b.planned; before.tunnels != tunnels || !before.state.Equal(s) || !maps.Equal(before.direct, direct) {
		s.Peers, s.Elsewhere = slices.Clone(s.Peers), slices.Clone(s.Elsewhere)
		b.planned = planned{tunnels, s, direct, newPlan(b.overlay.Config.Pools, b.options, tunnels, s, direct)}
	}
	return b.planned.plan
}

// direct asks the host's routing which peers are on the same layer 2. A query that the kernel could
// not answer ends the Apply: it is no reason to move a route.
func (b *vxlan) direct(ctx context.Context, s backend.State) (map[netip.Addr]bool, error) {
	if !b.options.DirectRouting {
		return nil, nil
	}
	asked := backend.PublicIPs(s.Peers)
	indirect, err := b.overlay.Direct(ctx, asked, s.Underlay.Index)
	if err != nil {
		return nil, err
	}
	out := map[netip.Addr]bool{}
	for _, ip := range asked {
		out[ip] = indirect[ip] == ""
	}
	return out, nil
}

// Abilities implements backend.Backend.
func (b *vxlan) Abilities() backend.Abilities { return backend.Abilities{Totals: b.totals} }

// totals returns what passed through the devices since they were made. It opens sockets of its own
// in the calling thread's namespace.
func (b *vxlan) totals() (backend.Counters, error) {
	sum := backend.Counters{Drops: map[string]uint64{}}
	for i := range b.devices {
		s, err := kernel.LinkStatistics(b.devices[i].Name, "vxlan")
		if err != nil {
			return backend.Counters{}, err
		}
		sum = sum.Plus(s)
	}
	return sum, nil
}

// Close closes the sockets and leaves the datapath in place.
func (b *vxlan) Close() error { return b.overlay.Close() }
