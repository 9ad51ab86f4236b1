package overlay

import (
	"context"
	"net/netip"
	"reflect"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/reconcile"
)

// An Overlay owns what backends have in common: the sockets to the kernel, what a network's devices contain, its
// routes, and what was wanted of them before, which tells repairs from changes. It does not own the devices, see
// Device.
//
// In each Apply, a backend calls Open and finds or makes its devices, then calls Program, or Refuse if there is no
// device. For the zero State it removes its devices and calls Clear. Whatever fails is tried again by the next Apply.
type Overlay struct {
	Config         backend.Config
	*kernel.Handle // nil before Open

	underlay backend.Underlay // of the last state
	last     Wanted           // what the kernel has had since; empty if that is not known

	announced announcement // the last one
}

// Open opens the sockets, unless they are open.
func (o *Overlay) Open() (err error) {
	if o.Handle == nil {
		o.Handle, err = kernel.Open()
	}
	return err
}

// Forget makes the next differences changes and not repairs.
func (o *Overlay) Forget() { o.last = Wanted{} }

// Program makes the entries of the devices and the routes agree with what is wanted, as far as the host has IPv6. It
// adds writes, repairs and pools that are not carried to the report. With a partial state, it only adds what is
// missing. Addresses are deleted last: without any, the kernel drops the routes too.
func (o *Overlay) Program(ctx context.Context, s backend.State, want Wanted, report *backend.Report) error {
	link := s.Underlay.Interface
	if len(want.Devices) > 0 {
		link = o.Config.Link
	}
	ipv6 := kernel.FindIPv6(link)
	report.Uncarried = ipv6.Uncarried(o.Config.Pools)
	want.Routes = ipv6.Routes(want.Routes)
	elsewhere := backend.NewElsewhere(s.Elsewhere)
	owner := kernel.Owner{Pools: o.Config.Pools, Elsewhere: elsewhere, Stood: o.last.Routes, Wanted: want.Routes}
	var steps []reconcile.Step
	bare := false
	for i := range want.Devices {
		d := want.Devices[i]
		d.Addresses, d.Neighbours = ipv6.Addresses(d.Addresses), ipv6.Neighbours(d.Neighbours)
		if i == len(o.last.Devices) {
			o.last.Devices = append(o.last.Devices, Entries{})
		}
		steps = append(steps, o.steps(d, &o.last.Devices[i])...)
		owner.Links = append(owner.Links, d.Link)
		bare = bare || d.Bare
	}
	steps = append(append(steps, want.Steps...),
		reconcile.Want("route", o.Routes(owner), kernel.CompareRoutes, want.Routes, &o.last.Routes))
	apply := reconcile.Apply
	if s.Partial {
		apply = reconcile.Fill
	}
	result, err := apply(ctx, steps...)
	switch {
	case bare:
		result = result.Explain("address", "FDB entry", "neighbour", "route")
	case result.Lost("address"):
		result = result.Explain("neighbour", "route")
	case !reflect.DeepEqual(o.underlay, s.Underlay):
		result = result.Explain("route") // the kernel removes routes with an address or a device of the underlay
	}
	report.Writes += result.Writes()
	report.Repaired = append(report.Repaired, result.Repaired()...)
	o.last.Routes, o.underlay = previousRoutes(o.last.Routes, elsewhere), s.Underlay
	o.announce(s.Underlay)
	return err
}

// announce tells the other hosts on the underlay when this host's IPv6 address has another MAC address than before.
// Otherwise, they could send to the previous one for up to a minute: when this host forwards packets of containers, it
// asks for neighbours from a link-local address, and the other hosts do not learn the MAC address of its public one.
// IPv4 needs nothing: each ARP request is a broadcast from the public address. A failure, such as for lack of
// CAP_NET_RAW, is no fault: the other hosts find out by themselves. The next Program tries again.
func (o *Overlay) announce(u backend.Underlay) {
	own, _, ok := u.SourceOf(netip.IPv6Unspecified())
	if !ok {
		return
	}
	now, ok := newAnnouncement(u.Index, own)
	if ok && now != o.announced && now.send(u.Interface) == nil {
		o.announced = now
	}
}

// steps returns the tables of a device, in the order in which a path to a peer becomes complete.
func (o *Overlay) steps(want Entries, last *Entries) []reconcile.Step {
	steps := []reconcile.Step{reconcile.OfDevice(
		reconcile.Want("address", o.Addresses(want.Link), kernel.CompareAddresses, want.Addresses, &last.Addresses))}
	if want.FDB != nil {
		steps = append(steps, reconcile.Want("FDB entry", o.FDB(want.Link), kernel.CompareFDB, want.FDB, &last.FDB))
	}
	if want.Neighbours != nil {
		steps = append(steps,
			reconcile.Want("neighbour", o.Neighbours(want.Link), kernel.CompareNeighbours, want.Neighbours, &last.Neighbours))
	}
	return steps
}

// Refuse makes the kernel refuse packets to the network, and changes nothing else. While there is no device, packets to
// the overlay would leave in the clear by another route.
func (o *Overlay) Refuse(ctx context.Context, s backend.State, report *backend.Report) error {
	want := kernel.FindIPv6(o.Config.Link).Routes(CompleteRoutes(nil, o.Config.Pools, s, 0, 1))
	table := o.Routes(kernel.Owner{Pools: o.Config.Pools, Elsewhere: backend.NewElsewhere(s.Elsewhere)})
	result, err := reconcile.Fill(ctx, reconcile.Want("route", table, kernel.CompareRoutes, want, nil))
	report.Writes += result.Writes()
	return err
}

// Clear removes the network's routes that remain after its devices, for the zero State.
func (o *Overlay) Clear(ctx context.Context, s backend.State, report *backend.Report) error {
	o.Forget()
	table := o.Routes(kernel.Owner{Pools: o.Config.Pools, Except: o.Config.Except,
		Elsewhere: backend.NewElsewhere(s.Elsewhere)})
	result, err := reconcile.Apply(ctx, reconcile.Want("route", table, kernel.CompareRoutes, nil, nil))
	report.Writes += result.Writes()
	return err
}

// Close closes the sockets, and leaves everything in the kernel in place. It may be called more than once.
func (o *Overlay) Close() error {
	o.Forget()
	if o.Handle == nil {
		return nil
	}
	err := o.Handle.Close()
	o.Handle = nil
	return err
}
