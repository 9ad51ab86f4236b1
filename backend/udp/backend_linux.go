package udp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/overlay"
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
	overlay overlay.Overlay
	device  overlay.Device // the one that the engine is attached to
	opts    options
	engine  *engine
	queues  int      // number of the device's queues, and of the sockets
	want    offloads // everything, except in tests

	listen netip.AddrPort // where the engine's sockets listen
	can    offloads       // of the device and the sockets
	single error          // why there is one queue although several were wanted, or nil
	vrf    int            // the VRF that they are bound to
	peers  []peerPlan     // in the engine's table
	own    []netip.Prefix // in the engine's table
}

var _ backend.Backend = (*Backend)(nil)

func newBackend(c backend.Config, queues int) (backend.Backend, error) {
	opts, err := decodeOptions(c.Options)
	if err != nil {
		return nil, err
	}
	b := &Backend{engine: newEngine(c.Logger), queues: queues, want: allOffloads}
	b.set(c, opts)
	return b, nil
}

// set takes a definition.
func (b *Backend) set(c backend.Config, opts options) {
	b.overlay.Config, b.opts = c, opts
	b.device.Name, b.device.Alias, b.device.IsKind = c.Link, c.DeviceAlias(), overlay.IsTUN
}

// Abilities implements backend.Backend.
func (b *Backend) Abilities() backend.Abilities {
	return backend.Abilities{Counters: b.Counters, Change: b.Change}
}

// Change takes another definition. The engine keeps running, and the next Apply gives it what differs.
func (b *Backend) Change(c backend.Config) error {
	opts, err := decodeOptions(c.Options)
	if err != nil {
		return err
	}
	b.set(c, opts)
	return nil
}

// Advertise implements backend.Backend. It needs no device and no file.
func (b *Backend) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	return advertise(b.overlay.Config.Pools, b.opts, u)
}

// Counters returns counters by peer node name; packets that belong to no peer are counted under "".
// A peer's counters start again from zero when it leaves and comes back. Drops are named by
// direction, rx from the wire and tx to it: rx_unknown_peer, rx_foreign_source,
// rx_foreign_destination, rx_overflow, tx_no_peer, tx_foreign_source, tx_multicast, tx_too_big,
// tx_bad_offload, tx_congested, and for both directions truncated, bad_version, bad_length,
// not_written, detached. Counters may be called at any time by any goroutine.
func (b *Backend) Counters() map[string]backend.Counters { return b.engine.counters() }

// Apply implements backend.Backend.
func (b *Backend) Apply(ctx context.Context, s backend.State) (report backend.Report, err error) {
	if err := b.overlay.Open(); err != nil {
		return report, err
	}
	if s.Zero() {
		b.fillTable(plan{}, &report)
		err = errors.Join(b.detach(), b.device.Remove(b.overlay.Handle, &report), b.overlay.Clear(ctx, s, &report))
		return report, err
	}
	p, err := newPlan(b.overlay.Config.Pools, b.opts, s)
	if err != nil {
		return report, err
	}
	report.Skipped = p.skipped
	b.fillTable(p, &report)
	binds, socketErr := b.openSockets(p.listen, p.vrf, &report)
	link, devices, err := b.attach(s.Subnets, &report)
	socketErr = backend.About(backend.Routes, errors.Join(socketErr, b.engine.start(devices, binds)))
	if err != nil {
		err = errors.Join(socketErr, backend.About(backend.Device, err), b.overlay.Refuse(ctx, s, &report))
		return report, err
	}
	bare, err := b.device.SetUp(b.overlay.Handle, link, s, 0, &report)
	routes := map[kernel.RouteKey]kernel.Route{}
	for _, peer := range p.peers {
		overlay.AddPeer(routes, b.device.Index(), peer.subnets)
	}
	err = errors.Join(socketErr, backend.About(backend.Device, err), b.overlay.Program(ctx, s, overlay.Wanted{
		Devices: []overlay.Entries{{Link: b.device.Index(), Bare: bare, Addresses: overlay.HostAddresses(s.Subnets)}},
		Routes:  overlay.CompleteRoutes(routes, b.overlay.Config.Pools, s, 0, 1),
	}, &report))
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
func (b *Backend) Close() error { return errors.Join(b.detach(), b.overlay.Close()) }

// detach stops the engine's readers and forgets what was wanted.
func (b *Backend) detach() error {
	b.listen = netip.AddrPort{}
	b.device.Forget()
	b.overlay.Forget()
	return b.engine.close()
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
