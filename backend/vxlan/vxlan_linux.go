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
	"github.com/lenonet/leno/backend/reconcile"
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
	config  backend.Config
	options options
	macs    [2]kernel.MAC  // of the first device and of the second
	settled bool           // macs are what they will be
	beside  bool           // another backend carries the network too
	kernel  *kernel.Handle // nil before it is needed
	bound   map[int]int    // the VRF that each device's socket is bound to, as far as known, by ifindex

	kernelRelease string   // "" before the first Apply
	below         string   // the devices whose drivers are known
	driversBelow  []string // their drivers

	// Read and switch a device's checksum offload; the kernel's functions, replaced in tests.
	txChecksum    func(link string) (bool, error)
	setTxChecksum func(link string, on bool) error

	// What was wanted before; used only to name repairs.
	lastDevices [2]device
	last        plan
	partial     bool // whether the previous state was partial

	planned planned
}

// planned holds a plan and its input. Planning a thousand peers takes 5 ms.
type planned struct {
	tunnels [2]tunnel
	state   backend.State
	direct  map[netip.Addr]bool
	plan    plan
}

var (
	_ backend.Backend = (*vxlan)(nil)
	_ backend.Meter   = (*vxlan)(nil)
)

func newBackend(c backend.Config) (backend.Backend, error) {
	o, err := decode(c.Options)
	if err != nil {
		return nil, err
	}
	mac := vtepMAC(c.NodeID, c.Network)
	return &vxlan{
		config: c, options: o, macs: [2]kernel.MAC{mac, mac}, bound: map[int]int{},
		txChecksum: kernel.TxChecksum, setTxChecksum: kernel.SetTxChecksum,
	}, nil
}

// Advertise publishes the address of the device that Apply will create or use. It rejects an
// underlay whose MTU is too small for the network's families (RFC 791, RFC 8200).
func (b *vxlan) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	want, err := b.wantDevice(backend.State{Underlay: u})
	if err != nil {
		return backend.Advertisement{}, err
	}
	capsule := backend.Encapsulation{Overhead: overhead(want.local), Name: "VXLAN over " + backend.Family(want.local)}
	mtu, because, err := capsule.MTU(u, b.config.Pools, b.options.MTU)
	if err != nil {
		return backend.Advertisement{}, err
	}
	public := attributes{VNI: b.options.VNI, Port: b.options.Port, MAC: want.mac.String()}
	if b.macs[1] != want.mac {
		public.MACv6 = b.macs[1].String()
	}
	published, err := json.Marshal(public)
	return backend.Advertisement{MTU: mtu, Overhead: because, Attributes: published}, err
}

// Apply makes the devices, forwarding entries, neighbours and routes agree with the state.
func (b *vxlan) Apply(ctx context.Context, s backend.State) (backend.Report, error) {
	if err := b.open(); err != nil {
		return backend.Report{}, err
	}
	b.beside = len(s.Elsewhere) > 0
	if s.Zero() {
		return b.remove(ctx, backend.NewElsewhere(s.Elsewhere))
	}
	first, err := b.wantDevice(s)
	if err != nil {
		return backend.Report{}, err
	}
	direct, err := b.direct(ctx, s)
	if err != nil {
		return backend.Report{}, backend.About(backend.Routes, err)
	}
	apply := reconcile.Apply
	if s.Partial {
		apply = reconcile.Fill
	} else if b.partial {
		b.last = plan{} // entries left alone by a partial state are not another program's
	}
	b.partial = s.Partial
	want := [2]device{first, {}}
	if second, ok := wantSecond(b.config, first, b.macs[1], s); ok {
		want[1] = second
	}
	tunnels, found, report, deviceErr := b.ensureAll(ctx, want, s)
	if tunnels[0].link == 0 {
		return report, deviceErr // nothing is healed yet
	}
	ipv6 := kernel.FindIPv6(b.config.Link)
	p := b.plan(tunnels, s, direct).accepted(ipv6)
	report.Uncarried = ipv6.Uncarried(b.config.Pools)
	report.Skipped, report.Peers = p.skipped, p.peers
	elsewhere := backend.NewElsewhere(s.Elsewhere)
	result, err := apply(ctx, b.steps(tunnels, p, elsewhere)...)
	report.Writes += result.Writes()
	report.Healed = append(report.Healed, explained(found, result).Healed()...)
	p.routes = kernel.PreviousRoutes(p.routes, elsewhere)
	b.lastDevices, b.last = want, p
	if want[1].name == "" && !s.Partial {
		// Only now, because its routes had to give way to others first.
		removed, removeErr := b.removeDevice(b.secondName())
		report.Writes += removed
		deviceErr = errors.Join(deviceErr, backend.About(backend.Device, removeErr))
	}
	if err = errors.Join(deviceErr, err); err != nil {
		b.last = plan{} // entries that could not be added were not removed by another program
	}
	return report, err
}

func (b *vxlan) open() (err error) {
	if b.kernel == nil {
		b.kernel, err = kernel.Open()
	}
	return err
}

// wantDevice returns the first device for a state that is not zero. Devices that exist already keep
// their MAC addresses: other hosts know them, and packets to another one would be dropped until
// those hosts know that. They are others than vtepMAC's if flannel made the devices.
func (b *vxlan) wantDevice(s backend.State) (device, error) {
	want, err := wantDevice(b.config, b.macs[0], b.options, s)
	if err != nil || b.settled || b.open() != nil {
		return want, err
	}
	if mac, ok := b.existing(want); ok {
		b.macs, want.mac = [2]kernel.MAC{mac, mac}, mac
	}
	// A lease has a second address only for IPv6.
	if local, _, ok := s.Underlay.SourceOf(otherFamily(want.local)); ok && want.local.Is4() {
		if mac, ok := b.existing(second(b.config, want, local)); ok {
			b.macs[1] = mac
		}
	}
	b.settled = true
	return want, nil
}

// existing returns the MAC address of a wanted device that exists, maybe under another name. While another program's
// device excludes the wanted one, as flannel's does, other hosts send to that device's address, and the wanted one
// takes it over when the other is gone.
func (b *vxlan) existing(want device) (mac kernel.MAC, ok bool) {
	link, err := b.own(want.name)
	if link == nil && err == nil {
		if renamed, _ := b.kernel.Renamed(want.name, want.alias, want.isMade); len(renamed) > 0 {
			link = renamed[0]
		} else if others, _ := b.excluding(context.Background(), want); len(others) > 0 {
			link = others[0]
		}
	}
	if link != nil {
		mac = shown(link).mac
	}
	return mac, mac.Unicast()
}

// ensureAll makes the wanted devices stand. A second device that cannot be made does not prevent
// the first from being used.
func (b *vxlan) ensureAll(ctx context.Context, want [2]device, s backend.State) (
	tunnels [2]tunnel, found [2]ensured, report backend.Report, err error,
) {
	var errs []error
	if !s.Partial {
		report.Writes, err = b.clearSecond(want[0])
		errs = append(errs, err)
	}
	for i, w := range want {
		if w.name == "" {
			continue
		}
		e, err := b.ensure(ctx, w, s.Partial)
		errs = append(errs, err)
		found[i] = e
		report.Writes += e.writes
		if i == 0 {
			report.Notes = []string{e.note}
		}
		if e.index == 0 {
			if i == 0 {
				break
			}
			continue
		}
		tunnels[i] = tunnel{w, e.index}
		errs = append(errs, kernel.AcceptElsewhere(w.name, s.Elsewhere, &report))
		report.Healed = append(report.Healed, b.healed(e, w, b.lastDevices[i])...)
	}
	return tunnels, found, report, backend.About(backend.Device, errors.Join(errs...))
}

// clearSecond removes a second device of the family that the first device is to have: the kernel
// allows one of each family. That happens when the underlay's family changes.
func (b *vxlan) clearSecond(first device) (writes int, err error) {
	link, err := b.own(b.secondName())
	if link == nil || err != nil || shown(link).local.Is4() != first.local.Is4() {
		return 0, ignoreForeign(err)
	}
	return b.removeDevice(b.secondName())
}

func (b *vxlan) secondName() string { return backend.SecondLinkName(b.config.Network) }

// plan returns newPlan's result, computed again only when its input has changed.
func (b *vxlan) plan(tunnels [2]tunnel, s backend.State, direct map[netip.Addr]bool) plan {
	if before := b.planned; before.tunnels != tunnels || !before.state.Equal(s) || !maps.Equal(before.direct, direct) {
		s.Peers, s.Elsewhere = slices.Clone(s.Peers), slices.Clone(s.Elsewhere)
		b.planned = planned{tunnels, s, direct, newPlan(b.config.Pools, b.options, tunnels, s, direct)}
	}
	return b.planned.plan
}

// accepted returns the plan without the entries that the kernel refuses because the devices have no IPv6.
func (p plan) accepted(ipv6 kernel.IPv6) plan {
	p.routes = ipv6.Routes(p.routes)
	for i := range p.devices {
		p.devices[i].addresses = ipv6.Addresses(p.devices[i].addresses)
		p.devices[i].neighbours = ipv6.Neighbours(p.devices[i].neighbours)
	}
	return p
}

// stepsOfDevice is the number of tables that steps lists for each device.
const stepsOfDevice = 3

// steps returns the tables in the order in which a path to a peer becomes complete: those of each
// device, and the routes.
func (b *vxlan) steps(tunnels [2]tunnel, p plan, elsewhere backend.Elsewhere) (out []reconcile.Step) {
	for i, t := range tunnels {
		if t.link == 0 {
			continue
		}
		want, last := p.devices[i], b.last.devices[i]
		out = append(out,
			reconcile.OfDevice(reconcile.Want("address", b.kernel.Addresses(t.link), kernel.CompareAddresses,
				want.addresses, last.addresses)),
			reconcile.Want("FDB entry", b.kernel.FDB(t.link), kernel.CompareFDB, want.fdb, last.fdb),
			reconcile.Want("neighbour", b.kernel.Neighbours(t.link), kernel.CompareNeighbours, want.neighbours, last.neighbours),
		)
	}
	routes := b.kernel.Routes(kernel.Owner{
		Links: []int{tunnels[0].link, tunnels[1].link}, Pools: b.config.Pools, Elsewhere: elsewhere,
		Stood: b.last.routes, Wanted: p.routes,
	})
	return append(out, reconcile.Want("route", routes, kernel.CompareRoutes, p.routes, b.last.routes))
}

// healed returns what had changed on a device although the wanted device is the same.
func (b *vxlan) healed(e ensured, want, last device) []backend.Repair {
	if want != last {
		return nil
	}
	return e.faults
}

// explained leaves out the entries that were lost with a device or with its addresses, because that
// loss is already reported.
func explained(found [2]ensured, r reconcile.Result) reconcile.Result {
	var out reconcile.Result
	routes := r[len(r)-1:]
	for _, e := range found {
		if e.index == 0 {
			continue
		}
		own := r[:stepsOfDevice]
		r = r[stepsOfDevice:]
		switch {
		case e.bare:
			own, routes = own.Explain("address", "FDB entry", "neighbour"), routes.Explain("route")
		case own.Lost("address"):
			own, routes = own.Explain("neighbour"), routes.Explain("route")
		}
		out = append(out, own...)
	}
	return append(out, routes...)
}

// direct asks the host's routing which peers are on the same layer 2. A query that the kernel could
// not answer ends the Apply: it is no reason to move a route.
func (b *vxlan) direct(ctx context.Context, s backend.State) (map[netip.Addr]bool, error) {
	if !b.options.DirectRouting {
		return nil, nil
	}
	asked := backend.PublicIPs(s.Peers)
	indirect, err := b.kernel.Direct(ctx, asked, s.Underlay.Index)
	if err != nil {
		return nil, err
	}
	out := map[netip.Addr]bool{}
	for _, ip := range asked {
		out[ip] = indirect[ip] == ""
	}
	return out, nil
}

// remove deletes the devices, and with them everything attached to them, then the routes that
// remain.
func (b *vxlan) remove(ctx context.Context, elsewhere backend.Elsewhere) (backend.Report, error) {
	var report backend.Report
	var errs []error
	for _, name := range []string{b.secondName(), b.config.Link} {
		writes, err := b.removeDevice(name)
		report.Writes += writes
		errs = append(errs, err)
	}
	routes := b.kernel.Routes(kernel.Owner{Pools: b.config.Pools, Elsewhere: elsewhere})
	result, err := reconcile.Apply(ctx, reconcile.Want("route", routes, kernel.CompareRoutes, nil, nil))
	report.Writes += result.Writes()
	b.lastDevices, b.last = [2]device{}, plan{}
	return report, errors.Join(append(errs, err)...)
}

// removeDevice deletes a device of ours if it exists, and returns the number of writes. A device of
// another kind with its name belongs to another program, and stays.
func (b *vxlan) removeDevice(name string) (writes int, err error) {
	link, err := b.own(name)
	if err != nil || link == nil {
		return 0, ignoreForeign(err)
	}
	if err := b.kernel.DeleteLink(link); err != nil {
		return 0, err
	}
	return 1, nil
}

// ignoreForeign returns nil for an error that a device belongs to another program.
func ignoreForeign(err error) error {
	if errors.Is(err, backend.ErrForeignDevice) {
		return nil
	}
	return err
}

// Totals returns what passed through the devices since they were made. It opens sockets of its own
// in the calling thread's namespace.
func (b *vxlan) Totals() (backend.Counters, error) {
	sum := backend.Counters{Drops: map[string]uint64{}}
	for _, name := range []string{b.config.Link, b.secondName()} {
		s, err := kernel.LinkStatistics(name, "vxlan")
		if err != nil {
			return backend.Counters{}, err
		}
		sum.RxPackets += s.RxPackets
		sum.RxBytes += s.RxBytes
		sum.TxPackets += s.TxPackets
		sum.TxBytes += s.TxBytes
		for reason, n := range s.Drops {
			sum.Drops[reason] += n
		}
	}
	return sum, nil
}

// Close closes the sockets and leaves the datapath in place.
func (b *vxlan) Close() error {
	if b.kernel == nil {
		return nil
	}
	err := b.kernel.Close()
	b.kernel = nil
	return err
}
