package vxlan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/reconcile"
)

// Type describes the backend. Options, all with defaults: vni (1), port (8472), gbp (false),
// direct_routing (false), checksum_offload ("auto": on, except where a fault is known, see
// chooseChecksum; Apply restores the choice when it was changed). The overlay's MTU is the
// underlay's less 50, or less 70 over IPv6. A host publishes
// {"vni":1,"port":8472,"vtep_mac":"0a:…"}.
func Type() backend.Type {
	return backend.Type{
		Name: Name, Normalize: normalize, Port: port, Interrupts: interrupts(), Device: true,
		Drops: kernel.LinkDrops(), New: newBackend,
	}
}

type vxlan struct {
	config  backend.Config
	options options
	mac     kernel.MAC
	kernel  *kernel.Handle // nil before the first Apply

	kernelRelease string   // "" before the first Apply
	below         string   // the devices whose drivers are known
	driversBelow  []string // their drivers

	// Read and switch a device's checksum offload; the kernel's functions, replaced in tests.
	txChecksum    func(link string) (bool, error)
	setTxChecksum func(link string, on bool) error

	// What was wanted before; used only to name repairs.
	lastDevice device
	last       plan
	partial    bool // whether the previous state was partial

	planned planned
}

// planned holds a plan and its input. Planning a thousand peers takes 5 ms.
type planned struct {
	device device
	link   int
	state  backend.State
	direct map[netip.Addr]bool
	plan   plan
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
	return &vxlan{
		config: c, options: o, mac: vtepMAC(c.NodeID, c.Network),
		txChecksum: kernel.TxChecksum, setTxChecksum: kernel.SetTxChecksum,
	}, nil
}

// Advertise publishes the address of the device that Apply will create. It rejects an underlay
// whose MTU is too small for the network's families (RFC 791, RFC 8200).
func (b *vxlan) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	want, err := wantDevice(b.config.Network, b.mac, b.options, backend.State{Underlay: u})
	if err != nil {
		return backend.Advertisement{}, err
	}
	for _, pool := range b.config.Pools {
		least := 68
		if pool.Addr().Is6() {
			least = 1280
		}
		if want.mtu < least {
			return backend.Advertisement{}, fmt.Errorf("underlay %s has an MTU of %d: pool %s needs at least %d",
				u.Interface, u.MTU, pool, least+overhead(want.local))
		}
	}
	published, err := json.Marshal(attributes{VNI: b.options.VNI, Port: b.options.Port, MAC: b.mac.String()})
	return backend.Advertisement{
		MTU: want.mtu, Attributes: published,
		Overhead: fmt.Sprintf("%d for VXLAN over %s", overhead(want.local), backend.Family(want.local)),
	}, err
}

// Apply makes the device, forwarding entries, neighbours and routes agree with the state.
func (b *vxlan) Apply(ctx context.Context, s backend.State) (backend.Report, error) {
	if b.kernel == nil {
		var err error
		if b.kernel, err = kernel.Open(); err != nil {
			return backend.Report{}, err
		}
	}
	if s.Zero() {
		return b.remove(ctx)
	}
	want, err := wantDevice(b.config.Network, b.mac, b.options, s)
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
	e, deviceErr := b.ensure(ctx, want, s.Partial)
	deviceErr = backend.About(backend.Device, deviceErr)
	report := backend.Report{Writes: e.writes, Notes: []string{e.note}}
	if e.index == 0 {
		return report, deviceErr // nothing is healed yet
	}
	report.Healed = b.healed(e, want)
	p := b.plan(want, e.index, s, direct)
	report.Skipped, report.Peers = p.skipped, p.peers
	result, err := apply(ctx, b.steps(e.index, p)...)
	report.Writes += result.Writes()
	report.Healed = append(report.Healed, explained(e, result).Healed()...)
	b.lastDevice, b.last = want, p
	if err = errors.Join(deviceErr, err); err != nil {
		b.last = plan{} // entries that could not be added were not removed by another program
	}
	return report, err
}

// plan returns newPlan's result, computed again only when its input has changed.
func (b *vxlan) plan(want device, link int, s backend.State, direct map[netip.Addr]bool) plan {
	if before := b.planned; before.device != want || before.link != link || !before.state.Equal(s) || !maps.Equal(before.direct, direct) {
		s.Peers = slices.Clone(s.Peers)
		b.planned = planned{want, link, s, direct, newPlan(b.config.Pools, b.options, want, link, s, direct)}
	}
	return b.planned.plan
}

// steps returns the tables in the order in which a path to a peer becomes complete.
func (b *vxlan) steps(link int, p plan) []reconcile.Step {
	routes := b.kernel.Routes(kernel.Owner{Link: link, Pools: b.config.Pools, Stood: b.last.routes, Wanted: p.routes})
	return []reconcile.Step{
		reconcile.OfDevice(reconcile.Want("address", b.kernel.Addresses(link), kernel.CompareAddresses, p.addresses, b.last.addresses)),
		reconcile.Want("FDB entry", b.kernel.FDB(link), kernel.CompareFDB, p.fdb, b.last.fdb),
		reconcile.Want("neighbour", b.kernel.Neighbours(link), kernel.CompareNeighbours, p.neighbours, b.last.neighbours),
		reconcile.Want("route", routes, kernel.CompareRoutes, p.routes, b.last.routes),
	}
}

// healed returns what had changed on the device although the wanted device is the same.
func (b *vxlan) healed(e ensured, want device) []backend.Repair {
	if want != b.lastDevice {
		return nil
	}
	return e.faults
}

// explained leaves out the entries that were lost with the device or with its addresses, because
// that loss is already reported.
func explained(e ensured, r reconcile.Result) reconcile.Result {
	if e.bare {
		return r.Explain("address", "FDB entry", "neighbour", "route")
	}
	if r.Lost("address") {
		return r.Explain("neighbour", "route")
	}
	return r
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

// remove deletes the device, and with it everything attached to it, then the routes that remain.
func (b *vxlan) remove(ctx context.Context) (backend.Report, error) {
	var report backend.Report
	var errs []error
	link, err := b.own()
	switch {
	case errors.Is(err, backend.ErrForeignDevice): // not ours to remove
	case err != nil:
		errs = append(errs, err)
	case link != nil:
		if err := b.kernel.DeleteLink(link); err != nil {
			errs = append(errs, err)
			break
		}
		report.Writes++
	}
	routes := b.kernel.Routes(kernel.Owner{Pools: b.config.Pools})
	result, err := reconcile.Apply(ctx, reconcile.Want("route", routes, kernel.CompareRoutes, nil, nil))
	report.Writes += result.Writes()
	b.lastDevice, b.last = device{}, plan{}
	return report, errors.Join(append(errs, err)...)
}

// Totals returns what passed through the device since it was made. It opens a socket of its own in
// the calling thread's namespace.
func (b *vxlan) Totals() (backend.Counters, error) {
	s, err := kernel.LinkStatistics(b.config.Link, "vxlan")
	return backend.Counters{RxPackets: s.RxPackets, RxBytes: s.RxBytes, TxPackets: s.TxPackets, TxBytes: s.TxBytes, Drops: s.Drops}, err
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
