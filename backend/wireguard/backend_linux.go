package wireguard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
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
			return &Backend{config: c, options: o, process: process, socketDir: socketDir}, nil
		},
	}
}

// Backend is the wireguard backend of one network.
type Backend struct {
	config    backend.Config
	options   options
	process   bool   // ignore the kernel's WireGuard
	socketDir string // of the control sockets of devices in processes

	key, psk wgtypes.Key    // zero before they are read; psk also without one
	used     wgtypes.Key    // that the device has
	noted    use            // what noteUse has written
	handle   *kernel.Handle // opened by the first Apply
	kind     string         // of the device: kernelKind or "tun"; "" before it is chosen
	device   device         // nil while there is none
	control  *controlSocket // of a device in this process; nil if it could not be opened
	unserved error          // why control is nil
	index    int            // ifindex of the device, or 0
	logged   bool           // that the device is used
	greeted  time.Time      // when it last started without sessions
	retried  time.Time      // when idle last returned all unproven peers
	silent   string         // which peers have not had a handshake

	paths   map[wgtypes.Key]*path // of peers with several ways, or behind NAT
	roaming roaming

	// What was wanted before, to tell repairs from changes; nil or zero if unknown.
	partial  bool // whether the previous state was partial
	underlay backend.Underlay
	mtu      int
	port     int
	private  wgtypes.Key
	addrs    map[netip.Prefix]kernel.Address
	peers    map[wgtypes.Key]peer
	routes   map[kernel.RouteKey]kernel.Route

	shown atomic.Pointer[shown]
}

var (
	_ backend.Backend = (*Backend)(nil)
	_ backend.Counter = (*Backend)(nil)
	_ backend.Changer = (*Backend)(nil)
	_ backend.Rekeyer = (*Backend)(nil)
)

// Change implements backend.Changer. The device keeps running, and the next Apply changes what differs.
func (b *Backend) Change(c backend.Config) error {
	o, err := decode(c.Options)
	if err != nil {
		return err
	}
	if o.KeyFile != b.options.KeyFile {
		b.key = wgtypes.Key{}
	}
	b.config, b.options = c, o
	return nil
}

// Advertise implements backend.Backend. It creates the private key if there is none, and rejects keys that it cannot
// use.
func (b *Backend) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	if err := b.readKeys(); err != nil {
		return backend.Advertisement{}, err
	}
	return advertise(b.config.Pools, b.options, b.key.PublicKey(), u)
}

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
	if b.key == (wgtypes.Key{}) {
		if err := b.readKeys(); err != nil {
			return backend.Report{}, err
		}
	}
	if least := backend.MinMTU(netip.IPv4Unspecified()); s.MTU < least {
		return backend.Report{}, fmt.Errorf("overlay MTU of %d is below %d", s.MTU, least)
	}
	own := use{b.key.PublicKey(), s.Precedence}
	p := newPlan(b.config.Pools, b.options, own.public, b.psk, s)
	report := backend.Report{Skipped: p.skipped}
	if !s.Partial && b.partial {
		// Entries that a partial state left alone were not changed by another program.
		b.addrs, b.peers, b.routes, b.private, b.port = nil, nil, nil, wgtypes.Key{}, 0
	}
	b.partial = s.Partial
	if p.twin != "" && !b.isInUse(own) {
		return report, errors.Join(backend.About(backend.Device, b.renounce(p.twin)), b.refuse(ctx, p, &report))
	}
	e, err := b.ensure(p.addrs, s, &report)
	err = backend.About(backend.Device, err)
	if !e.usable {
		// Without the device, packets to the overlay must not leave in the clear by another route.
		return report, errors.Join(err, b.refuse(ctx, p, &report))
	}
	b.noteUse(own)
	err = errors.Join(err, b.program(ctx, p, e, s.Underlay, &report), b.chooseSources(p, s.Underlay))
	b.show(p.nodes)
	report.Notes = b.notes()
	report.Peers = len(p.peers)
	return report, err
}

// refuse adds the routes that make the kernel refuse packets to the network, and changes nothing else.
func (b *Backend) refuse(ctx context.Context, p plan, report *backend.Report) error {
	routes := kernel.FindIPv6(b.config.Link).Routes(kernel.Unreachable(b.config.Pools))
	kernel.RemoveRoutes(routes, p.elsewhere)
	table := b.handle.Routes(kernel.Owner{Pools: b.config.Pools, Elsewhere: p.elsewhere})
	result, err := reconcile.Fill(ctx, reconcile.Want("route", table, kernel.CompareRoutes, routes, nil))
	report.Writes += result.Writes()
	return err
}

// program makes the device's addresses and peers and the network's routes agree with the plan. A peer is configured
// before there are routes to it, and removed after them.
func (b *Backend) program(ctx context.Context, p plan, e ensured, u backend.Underlay, report *backend.Report) error {
	ipv6 := kernel.FindIPv6(b.config.Link)
	addrs, peers, routes := ipv6.Addresses(p.addrs), p.peers, ipv6.Routes(p.routes(b.config.Pools, b.index))
	report.Uncarried = ipv6.Uncarried(b.config.Pools)
	followErr := b.follow(p)
	table := &peerTable{device: b.device, sources: p.sources, want: p.peers, roaming: b.roaming}
	apply := reconcile.Apply
	if b.partial {
		apply = reconcile.Fill
		if have, err := table.List(ctx); err == nil { // otherwise nothing is added below either
			peers = fill(peers, have)
		}
	}
	lastPeers := b.peers
	if !reflect.DeepEqual(b.underlay, u) {
		lastPeers = nil // endpoints that this host can no longer send to were not changed by another program
	}
	owner := kernel.Owner{
		Link: b.index, Pools: b.config.Pools, Elsewhere: p.elsewhere,
		Stood: b.routes, Wanted: routes,
	}
	lastPeers = b.roaming.withoutRoamed(lastPeers)
	result, err := apply(ctx,
		reconcile.OfDevice(reconcile.Want("address", b.handle.Addresses(b.index), kernel.CompareAddresses, addrs, b.addrs)),
		reconcile.Want("peer", table, compareKeys, peers, lastPeers),
		reconcile.Want("route", b.handle.Routes(owner), kernel.CompareRoutes, routes, b.routes))
	if b.addrs, b.peers, b.routes = addrs, peers, kernel.PreviousRoutes(routes, p.elsewhere); err != nil {
		b.addrs, b.peers, b.routes = nil, nil, nil // entries that could not be added were not removed by another program
	}
	b.roaming = table.roaming
	report.Writes += result.Writes()
	unproven := table.unproven(peers)
	report.Unproven = b.name(unproven, p, table)
	if e.bare {
		result = result.Explain("address", "route")
	} else if result.Lost("address") {
		result = result.Explain("route")
	}
	if e.empty {
		result = result.Explain("peer")
	}
	report.Healed = append(report.Healed, result.Healed()...)
	if e.empty || e.down {
		b.greeted = time.Now()
	} else {
		peers = b.idle(p, table, unproven)
	}
	return errors.Join(err, backend.About(backend.Device, followErr), backend.About(backend.Routes, greet(b.device, peers)))
}

// chooseSources makes a device in this process send from the addresses that the kernel chooses, after the underlay has
// changed. It would otherwise keep sending to each peer from the address at which the peer's last packet arrived, until
// it has heard nothing for 15 seconds.
func (b *Backend) chooseSources(p plan, u backend.Underlay) error {
	before := b.underlay
	b.underlay = u
	if _, ok := b.device.(*processDevice); !ok || reflect.DeepEqual(before, u) {
		return nil
	}
	state, err := b.device.State()
	if err != nil {
		return backend.About(backend.Device, err)
	}
	var config wgtypes.Config
	for i := range state.Peers {
		key, endpoint := state.Peers[i].PublicKey, endpointOf(&state.Peers[i])
		peer, ok := p.peers[key]
		if !ok {
			continue
		}
		if !p.sources[key].has(endpoint) { // otherwise a NAT may have chosen it
			endpoint = peer.endpoint
		}
		config.Peers = append(config.Peers, wgtypes.PeerConfig{PublicKey: key, UpdateOnly: true, Endpoint: net.UDPAddrFromAddrPort(endpoint)})
	}
	return backend.About(backend.Device, b.device.Configure(config))
}

// name returns the sorted nodes of the unproven peers. It records those that have had enough time to answer, for a note
// to users.
func (b *Backend) name(unproven map[wgtypes.Key]peer, p plan, table *peerTable) (nodes []string) {
	var late []string
	for key := range unproven {
		nodes = append(nodes, p.nodes[key])
		if _, had := table.have[key]; had && time.Since(b.greeted) > greetTime {
			late = append(late, p.nodes[key])
		}
	}
	slices.Sort(nodes)
	b.silent = silent(late)
	return nodes
}

// idle returns the unproven peers with which this host must start a handshake. Each peer needs one when it is added: it
// may have started a handshake before this host knew it, and would wait 5 seconds before the next attempt. Peers whose
// routes belong to another backend need one every retryTime, because no traffic starts it.
func (b *Backend) idle(p plan, table *peerTable, unproven map[wgtypes.Key]peer) map[wgtypes.Key]peer {
	again := time.Since(b.retried) >= retryTime
	due := map[wgtypes.Key]peer{}
	for key, peer := range unproven {
		_, had := table.have[key]
		if !had || again && p.elsewhere.HasAny(p.subnets[key]) {
			due[key] = peer
		}
	}
	if again {
		b.retried = time.Now()
	}
	return due
}

// notes tells users what the backend chose.
func (b *Backend) notes() []string {
	notes := []string{b.variant()}
	if b.silent != "" {
		notes = append(notes, b.silent)
	}
	if b.kind != kernelKind && b.control == nil {
		notes = append(notes, fmt.Sprintf("wg(8) cannot show the device: %v", b.unserved))
	}
	return notes
}

// variant says where WireGuard runs.
func (b *Backend) variant() string {
	switch {
	case b.kind == kernelKind:
		return "WireGuard of the kernel"
	case b.process:
		return "WireGuard in the agent's process"
	}
	return "WireGuard in the agent's process: the kernel has none"
}

// greetTime is how long peers may take to answer the handshakes that a device starts when it is opened. The device
// repeats a handshake after 5 seconds.
const greetTime = 10 * time.Second

// retryTime is the time between two handshakes with a peer that does not answer. WireGuard itself uses the same
// interval, but gives up after 90 seconds.
const retryTime = 5 * time.Second

// Close implements backend.Backend. The device stays, with its addresses and routes, for the next process.
func (b *Backend) Close() error {
	err := b.detach()
	if b.handle != nil {
		err = errors.Join(err, b.handle.Close())
		b.handle = nil
	}
	return err
}

// detach releases the device and forgets what was wanted.
func (b *Backend) detach() error {
	b.shown.Store(nil)
	b.index, b.mtu, b.port, b.private, b.used, b.noted = 0, 0, 0, wgtypes.Key{}, wgtypes.Key{}, use{}
	b.addrs, b.peers, b.routes, b.paths, b.roaming = nil, nil, nil, nil, nil
	return b.release()
}

// release closes the device and its control socket in this process.
func (b *Backend) release() error {
	var errs []error
	if b.control != nil {
		errs = append(errs, b.control.Close())
		b.control = nil
	}
	if b.device != nil {
		errs = append(errs, b.device.Close())
		b.device = nil
	}
	return errors.Join(errs...)
}

// remove applies the zero State. It also removes the private key, unless that is the operator's file.
func (b *Backend) remove(ctx context.Context, elsewhere backend.Elsewhere) (backend.Report, error) {
	var report backend.Report
	errs := []error{b.detach(), b.removeKey()}
	link, err := b.handle.Link(b.config.Link)
	if err == nil && link != nil && (isKernel(link) || isTUN(link)) {
		// Addresses, peers and routes over the device disappear with it.
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

// shown holds what Counters needs. It is never modified.
type shown struct {
	link, kind string
	device     *processDevice // nil for a device of the kernel
	nodes      map[wgtypes.Key]string
}

func (b *Backend) show(nodes map[wgtypes.Key]string) {
	if before := b.shown.Load(); before == nil || before.kind != b.kind || !maps.Equal(before.nodes, nodes) ||
		b.kind != kernelKind && before.device != b.device {
		inProcess, _ := b.device.(*processDevice)
		b.shown.Store(&shown{b.config.Link, b.kind, inProcess, nodes})
	}
}

// state returns the device's state.
func (s *shown) state() (*wgtypes.Device, error) {
	if s.device != nil {
		return s.device.State()
	}
	return kernelState(s.link)
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
	if state, err := s.state(); err == nil {
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
	if total, err := kernel.LinkStatistics(s.link, s.kind); err == nil {
		out[""] = backend.Counters{RxPackets: total.RxPackets, TxPackets: total.TxPackets, Drops: total.Drops}
	}
	return out
}
