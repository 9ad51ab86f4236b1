package wireguard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/overlay"
	"github.com/lenonet/leno/backend/reconcile"
)

// Type describes the backend. Options, all with defaults: listen_port (51820), rotation_port (0: the one after
// listen_port, or before 65535), rotate_keys ("": never), persistent_keepalive (0: 25 seconds from a host behind NAT to
// peers outside, and none otherwise), mtu (0: the underlay's less 60, or less 80 over IPv6),
// key_file ("wireguard.key", below the network's state directory), psk_file ("": none). A host publishes
// {"public_key":"base64","listen_port":51820} and, behind NAT, {"public_port":51821,"local_ips":["192.168.0.2"]}.
//
// Both files contain a key in base64, as wg(8) writes it, and must have mode 0600 or less. The backend creates the
// private key if there is none. Advertise reads both files each time, so a replaced key is published and used at once.
func Type() backend.Type { return newType(false) }

// newType returns the type. With process set it ignores the kernel's WireGuard.
func newType(process bool) backend.Type {
	return backend.Type{
		Name:       Name,
		Normalize:  normalize,
		CheckFiles: checkFiles,
		Port:       port,
		Interrupts: interrupts(),
		Device:     true,
		Tunnels:    true,
		SamePort:   true,
		Overhead:   overhead,
		Rotate:     rotate,
		SparePort:  "rotation_port",

		RotateEvery:   rotateEvery,
		Encrypts:      true,
		SharedAddress: true,
		NeedsTUN: func() bool {
			inKernel, err := kernel.HasFamily(kernelKind)
			return err == nil && !inKernel
		},
		Drops: kernel.LinkDrops(),
		New: func(c backend.Config) (backend.Backend, error) {
			o, err := decode(c.Options)
			if err != nil {
				return nil, err
			}
			b := &Backend{tunnel: tunnel{process: process, socketDir: socketDir}}
			b.set(c, o)
			return b, nil
		},
	}
}

// Backend is the wireguard backend of one network. Keys, the device, paths and peers have owners. It plans what each is
// to have, and owns the addresses and routes.
type Backend struct {
	overlay overlay.Overlay
	options options
	keys    keyring
	tunnel  tunnel
	paths   paths
	peers   peers
	shown   atomic.Pointer[shown]
}

var _ backend.Backend = (*Backend)(nil)

// set takes a definition.
func (b *Backend) set(c backend.Config, o options) {
	b.overlay.Config, b.options = c, o
	b.tunnel.set(c)
	b.keys.dir, b.keys.log, b.paths.log = c.DataDir, c.Logger, c.Logger
	b.keys.change(o)
}

// Abilities implements backend.Backend.
func (b *Backend) Abilities() backend.Abilities {
	return backend.Abilities{Counters: b.Counters, Totals: b.totals, Rekey: b.keys.replace, Change: b.Change}
}

// Change takes another definition. The device keeps running, and the next Apply changes what differs.
func (b *Backend) Change(c backend.Config) error {
	o, err := decode(c.Options)
	if err != nil {
		return err
	}
	b.set(c, o)
	return nil
}

// Advertise implements backend.Backend. It creates the private key if there is none, and rejects keys that it cannot
// use.
func (b *Backend) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	if err := b.keys.read(); err != nil {
		return backend.Advertisement{}, err
	}
	return advertise(b.overlay.Config.Pools, b.options, b.keys.private.PublicKey(), u)
}

// Apply implements backend.Backend.
func (b *Backend) Apply(ctx context.Context, s backend.State) (report backend.Report, err error) {
	if err := b.overlay.Open(); err != nil {
		return report, err
	}
	b.tunnel.handle = b.overlay.Handle
	if s.Zero() {
		b.forget()
		// The private key is removed too, unless that is the operator's file.
		err = errors.Join(b.tunnel.remove(&report), b.keys.remove(), b.overlay.Clear(ctx, s, &report))
		return report, err
	}
	if err := b.keys.need(); err != nil {
		return report, err
	}
	if least := backend.MinMTU(netip.IPv4Unspecified()); s.MTU < least {
		return report, fmt.Errorf("overlay MTU of %d is below %d", s.MTU, least)
	}
	own := use{b.keys.private.PublicKey(), s.Precedence}
	p := newPlan(b.overlay.Config.Pools, b.options, own.public, b.keys.psk, s)
	report.Skipped = p.skipped
	report.Endpoints = slices.SortedFunc(maps.Keys(p.endpoints), netip.AddrPort.Compare)
	if p.twin != "" && !b.keys.isInUse(own) && !b.tunnel.hasKey(b.keys.private) {
		err = errors.Join(backend.About(backend.Device, b.keys.renounce(p.twin)), b.overlay.Refuse(ctx, s, &report))
		return report, err
	}
	e, err := b.tunnel.ensure(b.keys.private, b.options.Port, s, &report)
	err = backend.About(backend.Device, err)
	if !e.usable {
		err = errors.Join(err, b.overlay.Refuse(ctx, s, &report))
		return report, err
	}
	b.keys.note(own, e.keyed)
	err = errors.Join(err, b.program(ctx, p, e, &report))
	b.show(p.nodes)
	report.Peers = len(p.peers)
	report.Notes = b.tunnel.notes()
	if b.peers.silent != "" {
		report.Notes = slices.Insert(report.Notes, 1, b.peers.silent)
	}
	return report, err
}

// program makes the device's addresses and peers and the network's routes agree with the plan. A peer is configured
// before there are routes to it, and removed after them.
func (b *Backend) program(ctx context.Context, p plan, e ensured, report *backend.Report) error {
	device, u := b.tunnel.device, p.state.Underlay
	followErr := b.paths.follow(device, p)
	table := &peerTable{device: device, sources: p.sources, want: p.peers, roaming: b.paths.roaming}
	wanted := p.peers
	if p.state.Partial {
		if have, err := table.List(ctx); err == nil { // otherwise nothing is added below either
			wanted = fill(wanted, have)
		}
	}
	last := b.paths.roaming.withoutRoamed(b.peers.last)
	if e.empty || !b.paths.isSame(u) {
		last = nil // endpoints that this host can no longer send to were not changed by another program
	}
	err := b.overlay.Program(ctx, p.state, overlay.Wanted{
		Devices: []overlay.Entries{{Link: b.tunnel.link.Index(), Bare: e.bare,
			Addresses: overlay.HostAddresses(p.state.Subnets)}},
		Steps:  []reconcile.Step{reconcile.Want("peer", table, compareKeys, wanted, &last)},
		Routes: p.routes(b.overlay.Config.Pools, b.tunnel.link.Index()),
	}, report)
	b.peers.last = last
	b.paths.roaming = table.roaming
	unproven := table.unproven(wanted)
	report.Unproven = b.peers.judge(unproven, p, table.have)
	greetErr := b.peers.greet(device, e.empty || e.down, wanted, unproven, p, table.have)
	sourceErr := b.paths.chooseSources(device, b.tunnel.kind != kernelKind, p, u)
	return errors.Join(err, backend.About(backend.Device, followErr), backend.About(backend.Routes, greetErr),
		backend.About(backend.Device, sourceErr))
}

// Close implements backend.Backend. The device stays, with its addresses and routes, for the next process.
func (b *Backend) Close() error {
	b.forget()
	return errors.Join(b.tunnel.forget(), b.overlay.Close())
}

// forget forgets what was wanted of a device that is given up.
func (b *Backend) forget() {
	b.shown.Store(nil)
	b.overlay.Forget()
	b.peers.last = nil
	b.keys.forgetUse()
	b.paths.forget()
}

// shown holds what Counters needs. It is never modified.
type shown struct {
	link, kind string
	device     variant
	nodes      map[wgtypes.Key]string
}

func (b *Backend) show(nodes map[wgtypes.Key]string) {
	before := b.shown.Load()
	if before == nil || before.device != b.tunnel.device || !maps.Equal(before.nodes, nodes) {
		b.shown.Store(&shown{b.overlay.Config.Link, b.tunnel.kind, b.tunnel.device, nodes})
	}
}

// Counters returns, by node name, the bytes exchanged with each peer and the time of the last handshake. The bytes
// include WireGuard's headers, handshakes and keepalives. The device's packets and drops are counted under "", because
// WireGuard does not count them by peer. A peer's bytes start again from zero with a new key or a new device. Counters
// opens sockets of its own in the calling thread's namespace.
func (b *Backend) Counters() map[string]backend.Counters {
	out := map[string]backend.Counters{}
	s := b.shown.Load()
	if s == nil {
		return out
	}
	if state, err := s.device.Inspect(); err == nil {
		for i := range state.Peers {
			if node, ok := s.nodes[state.Peers[i].PublicKey]; ok {
				out[node] = backend.Counters{
					RxBytes: uint64(state.Peers[i].ReceiveBytes),
					TxBytes: uint64(state.Peers[i].TransmitBytes),

					Handshake: state.Peers[i].LastHandshakeTime,
					Endpoint:  endpointOf(&state.Peers[i]),
				}
			}
		}
	}
	if total, err := b.totals(); err == nil {
		out[""] = backend.Counters{RxPackets: total.RxPackets, TxPackets: total.TxPackets, Drops: total.Drops}
	}
	return out
}

// totals returns what passed through the device since it was made, without WireGuard's headers. It opens sockets of its
// own in the calling thread's namespace.
func (b *Backend) totals() (backend.Counters, error) {
	s := b.shown.Load()
	if s == nil {
		return backend.Counters{}, nil
	}
	return kernel.LinkStatistics(s.link, s.kind)
}
