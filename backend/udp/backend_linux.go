package udp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/reconcile"
)

// Type describes the backend. Options: "mtu" (0: no limit), and "port", the UDP port of this host, 1..65535,
// default 8285. A host advertises {"port":8285}. The MTU it advertises is 28 bytes below the
// underlay's when the underlay's first address is IPv4, and 48 below when it is IPv6.
func Type() backend.Type {
	queues := min(runtime.GOMAXPROCS(0), maxQueues)
	return backend.Type{
		Name:      Name,
		Normalize: normalize,
		Port:      port,
		// Peers learn of the new port from the lease, a moment later.
		Interrupts: map[string]string{"port": "peers send to the old port until they have read of the new one"},
		Threads:    queues, // the lanes
		Device:     true,
		Tunnels:    true,
		SamePort:   true,
		Overhead:   overhead,
		NeedsTUN:   func() bool { return true },
		Drops:      dropReasons(),
		New:        func(c backend.Config) (backend.Backend, error) { return newBackend(c, queues) },
	}
}

// maxQueues is the maximum number of queues and sockets: one for each CPU that the process may use,
// up to the point where more of them only cost memory and gain nothing from the kernel's hashing.
const maxQueues = 8

// Backend is the udp backend of one network. The datapath lives in the process: while no process is
// attached to the device, the kernel drops what it routes there. Addresses and routes stay.
type Backend struct {
	config backend.Config
	opts   options
	engine *engine
	queues int      // number of the device's queues, and of the sockets
	want   offloads // everything, except in tests

	handle *kernel.Handle // opened by the first Apply
	index  int            // ifindex of the device the engine is attached to, or 0
	listen netip.AddrPort // where the engine's sockets listen
	can    offloads       // of the device and the sockets
	single error          // why there is one queue although several were wanted, or nil
	vrf    int            // the VRF that they are bound to
	peers  []peerPlan     // in the engine's table
	own    []netip.Prefix // in the engine's table

	// What was wanted before, to tell repairs from changes; nil if unknown.
	partial bool // whether the previous state was partial
	mtu     int
	addrs   map[netip.Prefix]kernel.Address
	routes  map[kernel.RouteKey]kernel.Route
}

var (
	_ backend.Backend = (*Backend)(nil)
	_ backend.Counter = (*Backend)(nil)
	_ backend.Changer = (*Backend)(nil)
)

func newBackend(c backend.Config, queues int) (backend.Backend, error) {
	opts, err := decodeOptions(c.Options)
	if err != nil {
		return nil, err
	}
	return &Backend{config: c, opts: opts, engine: newEngine(c.Logger), queues: queues, want: allOffloads}, nil
}

// Change implements backend.Changer. The engine keeps running, and the next Apply gives it what
// differs.
func (b *Backend) Change(c backend.Config) error {
	opts, err := decodeOptions(c.Options)
	if err != nil {
		return err
	}
	b.config, b.opts = c, opts
	return nil
}

// Advertise implements backend.Backend. It needs no device and no file.
func (b *Backend) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	return advertise(b.config.Pools, b.opts, u)
}

// Counters returns counters by peer node name; packets that belong to no peer are counted under "".
// A peer's counters start again from zero when it leaves and comes back. Drops are named by
// direction, rx from the wire and tx to it: rx_unknown_peer, rx_foreign_source,
// rx_foreign_destination, rx_overflow, tx_no_peer, tx_foreign_source, tx_multicast, tx_too_big,
// tx_bad_offload, tx_congested, and for both directions truncated, bad_version, bad_length,
// not_written, detached. Counters may be called at any time by any goroutine.
func (b *Backend) Counters() map[string]backend.Counters { return b.engine.counters() }

// Apply implements backend.Backend.
func (b *Backend) Apply(ctx context.Context, s backend.State) (backend.Report, error) {
	if b.handle == nil {
		handle, err := kernel.Open()
		if err != nil {
			return backend.Report{}, err
		}
		b.handle = handle
	}
	if s.Zero() {
		return b.remove(ctx, backend.NewElsewhere(s.Elsewhere))
	}
	p, err := newPlan(b.config.Pools, b.opts, s)
	if err != nil {
		return backend.Report{}, err
	}
	report := backend.Report{Skipped: p.skipped}
	b.fillTable(p, &report)
	binds, socketErr := b.openSockets(p.listen, p.vrf, &report)
	before := b.index
	link, devices, err := b.attach(p.addrs, &report)
	socketErr = backend.About(backend.Routes, errors.Join(socketErr, b.engine.start(devices, binds)))
	err = backend.About(backend.Device, err)
	if err != nil {
		return report, errors.Join(socketErr, err)
	}
	created := b.index != before
	bare := created || link.Attrs().Flags&net.FlagUp == 0
	if !s.Partial && b.partial {
		b.addrs, b.routes = nil, nil // entries left alone by a partial state are not another program's
	}
	b.partial = s.Partial
	err = errors.Join(socketErr, b.setUp(link, s, created, &report), b.program(ctx, p, s, bare, &report))
	report.Notes = b.notes()
	if b.engine.started() && b.engine.binds.alive() {
		report.Peers = len(p.peers)
	}
	return report, err
}

// notes tells users what the forwarder does without.
func (b *Backend) notes() []string {
	notes := b.can.lacking(b.want)
	if b.single != nil {
		notes = append(notes, fmt.Sprintf("one queue instead of %d: %v", b.queues, b.single))
	}
	return notes
}

// Close implements backend.Backend. The device stays, with its addresses and routes, for the next
// process.
func (b *Backend) Close() error {
	err := b.detach()
	if b.handle != nil {
		err = errors.Join(err, b.handle.Close())
		b.handle = nil
	}
	return err
}

// detach stops the engine's readers and forgets what was wanted.
func (b *Backend) detach() error {
	b.index, b.listen = 0, netip.AddrPort{}
	b.mtu, b.addrs, b.routes = 0, nil, nil
	return b.engine.close()
}

// remove applies the zero State.
func (b *Backend) remove(ctx context.Context, elsewhere backend.Elsewhere) (backend.Report, error) {
	var report backend.Report
	b.fillTable(plan{}, &report)
	errs := []error{b.detach()}
	link, err := b.handle.Link(b.config.Link)
	if err == nil && link != nil && isTUN(link) {
		// Addresses and routes over the device disappear with it.
		if err = b.handle.DeleteLink(link); err == nil {
			report.Writes++
		}
	}
	errs = append(errs, err)
	table := b.handle.Routes(kernel.Owner{Pools: b.config.Pools, Elsewhere: elsewhere})
	result, err := reconcile.Apply(ctx, reconcile.Want("route", table, kernel.CompareRoutes, nil, nil))
	report.Writes += result.Writes()
	return report, errors.Join(append(errs, err)...)
}

// fillTable gives the engine the peers of a plan if they differ from those it has.
func (b *Backend) fillTable(p plan, report *backend.Report) {
	if slices.Equal(b.own, p.own) && slices.EqualFunc(b.peers, p.peers, peerPlan.equal) {
		return
	}
	b.own, b.peers = p.own, p.peers
	b.engine.setTable(b.own, b.peers)
	report.Writes++
}

// setUp sets the MTU and brings the device up. What a device lacks that was just attached is not reported as a repair.
func (b *Backend) setUp(link netlink.Link, s backend.State, created bool, report *backend.Report) error {
	known := b.mtu == s.MTU && !created
	b.mtu = s.MTU
	return backend.About(backend.Device, errors.Join(
		b.handle.SetUpDevice(link, s.MTU, b.config.DeviceAlias(), known, report),
		kernel.AcceptElsewhere(b.config.Link, s.Elsewhere, report)))
}

// program makes the device's addresses and the network's routes agree with the plan. Addresses are
// deleted last: without any, the kernel drops the routes too. A bare device has lost its entries,
// and their loss is not reported separately.
func (b *Backend) program(ctx context.Context, p plan, s backend.State, bare bool, report *backend.Report) error {
	apply := reconcile.Apply
	if s.Partial {
		apply = reconcile.Fill
	}
	ipv6 := kernel.FindIPv6(b.config.Link)
	report.Uncarried = ipv6.Uncarried(b.config.Pools)
	addrs := map[netip.Prefix]kernel.Address{}
	for _, addr := range p.addrs {
		addrs[addr] = kernel.Address{}
	}
	routes := kernel.Unreachable(b.config.Pools)
	for _, peer := range p.peers {
		for _, subnet := range peer.subnets {
			routes[kernel.RouteKey{Dst: subnet}] = kernel.PeerRoute(b.index, subnet)
		}
	}
	kernel.LimitMTU(routes, s, 1)
	elsewhere := backend.NewElsewhere(s.Elsewhere)
	kernel.RemoveRoutes(routes, elsewhere)
	addrs, routes = ipv6.Addresses(addrs), ipv6.Routes(routes)
	owner := kernel.Owner{
		Links: []int{b.index}, Pools: b.config.Pools, Elsewhere: elsewhere,
		Stood: b.routes, Wanted: routes,
	}
	result, err := apply(ctx,
		reconcile.OfDevice(reconcile.Want("address", b.handle.Addresses(b.index), kernel.CompareAddresses, addrs, b.addrs)),
		reconcile.Want("route", b.handle.Routes(owner), kernel.CompareRoutes, routes, b.routes))
	if b.addrs, b.routes = addrs, kernel.PreviousRoutes(routes, elsewhere); err != nil {
		b.addrs, b.routes = nil, nil // entries that could not be added were not removed by another program
	}
	report.Writes += result.Writes()
	if bare {
		result = result.Explain("address", "route")
	} else if result.Lost("address") {
		result = result.Explain("route")
	}
	report.Healed = append(report.Healed, result.Healed()...)
	return err
}
