package hostgw

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
	"github.com/lenonet/leno/backend/overlay"
)

// Type describes the backend. The overlay's MTU is the underlay's, or the option mtu if that is less.
func Type() backend.Type {
	return backend.Type{Name: Name, Normalize: normalize, OwnFamily: true,
		New: func(c backend.Config) (backend.Backend, error) {
			o, err := decode(c.Options)
			return &hostgw{overlay: overlay.Overlay{Config: c}, options: o}, err
		}}
}

type hostgw struct {
	overlay overlay.Overlay
	options options

	// The most recent plan, and the input it was made from.
	planned  plan
	state    backend.State
	indirect map[netip.Addr]string
	ipv6     bool
}

var _ backend.Backend = (*hostgw)(nil)

// Advertise rejects an underlay whose public addresses are not the interface's own (peers could not
// route to them), that lacks an address of a family the network has a pool of, or that is in a VRF:
// what arrives there is routed by the VRF's table, which has no routes to containers.
func (b *hostgw) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	if err := b.overlay.Open(); err != nil {
		return backend.Advertisement{}, err
	}
	if u.VRF != 0 {
		return backend.Advertisement{},
			fmt.Errorf("interface %s is in a VRF, and host-gw routes packets of containers by the main table: "+
				"take the interface out of the VRF, or use the backend vxlan or udp", u.Interface)
	}
	var errs []error
	for _, addr := range u.Addrs {
		has, err := b.overlay.HasAddr(u.Index, addr)
		if err == nil && !has {
			err = fmt.Errorf("public address %s is not an address of interface %s: host-gw routes through it", addr, u.Interface)
		}
		errs = append(errs, err)
	}
	self := backend.Peer{PublicIPs: u.Addrs}
	ipv6 := kernel.FindIPv6(u.Interface)
	for _, pool := range b.overlay.Config.Pools {
		if pool.Addr().Is6() && !ipv6.OnDevice() {
			continue // Apply says so; IPv4 works
		}
		if _, ok := self.PublicIP(pool.Addr()); !ok {
			errs = append(errs, fmt.Errorf("pool %s needs an %s public address on interface %s", pool,
				backend.Family(pool.Addr()), u.Interface))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return backend.Advertisement{}, err
	}
	mtu, because, err := backend.Encapsulation{}.MTU(u, b.overlay.Config.Pools, b.options.MTU)
	return backend.Advertisement{MTU: mtu, Overhead: because, Attributes: json.RawMessage(`{}`)}, err
}

// Abilities implements backend.Backend: it has none.
func (*hostgw) Abilities() backend.Abilities { return backend.Abilities{} }

// Apply makes the host's routes agree with the state.
func (b *hostgw) Apply(ctx context.Context, s backend.State) (report backend.Report, err error) {
	if err := b.overlay.Open(); err != nil {
		return report, backend.About(backend.Routes, err)
	}
	if s.Zero() {
		err = b.overlay.Clear(ctx, s, &report)
		return report, err
	}
	// A query that the kernel could not answer ends the Apply: it is no reason to delete a route.
	indirect, err := b.overlay.Direct(ctx, backend.PublicIPs(s.Peers), s.Underlay.Index)
	if err != nil {
		return report, backend.About(backend.Routes, err)
	}
	p := b.plan(s, indirect, kernel.FindIPv6(s.Underlay.Interface).OnDevice())
	report.Skipped, report.Peers = p.skipped, p.peers
	err = b.overlay.Program(ctx, s, overlay.Wanted{Routes: p.routes}, &report)
	return report, err
}

// plan returns newPlan's result, computed again only when its input has changed.
func (b *hostgw) plan(s backend.State, indirect map[netip.Addr]string, ipv6 bool) plan {
	if b.planned.routes == nil || b.ipv6 != ipv6 || !b.state.Equal(s) || !maps.Equal(b.indirect, indirect) {
		s.Peers, s.Elsewhere = slices.Clone(s.Peers), slices.Clone(s.Elsewhere)
		b.planned = newPlan(b.overlay.Config.Pools, b.options, s, indirect, ipv6)
		b.state, b.indirect, b.ipv6 = s, indirect, ipv6
	}
	return b.planned
}

// Close closes the sockets and leaves the routes in place.
func (b *hostgw) Close() error { return b.overlay.Close() }
