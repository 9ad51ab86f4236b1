package hostgw

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/reconcile"
)

// Type describes the backend. The overlay's MTU is the underlay's, or the option mtu if that is less.
func Type() backend.Type {
	return backend.Type{Name: Name, Normalize: normalize, OwnFamily: true,
		New: func(c backend.Config) (backend.Backend, error) {
			o, err := decode(c.Options)
			return &hostgw{config: c, options: o}, err
		}}
}

type hostgw struct {
	config  backend.Config
	options options
	kernel  *kernel.Handle                   // nil before the first call
	last    map[kernel.RouteKey]kernel.Route // the routes wanted before; used only to name repairs
	stood   backend.Underlay                 // the underlay before; routes lost to a move are not repairs

	partial bool // whether the previous state was partial

	// The most recent plan, and the input it was made from.
	planned  plan
	state    backend.State
	indirect map[netip.Addr]string
	ipv6     kernel.IPv6
}

var _ backend.Backend = (*hostgw)(nil)

func (b *hostgw) open() (err error) {
	if b.kernel == nil {
		b.kernel, err = kernel.Open()
	}
	return err
}

// Advertise rejects an underlay whose public addresses are not the interface's own (peers could not
// route to them), that lacks an address of a family the network has a pool of, or that is in a VRF:
// what arrives there is routed by the VRF's table, which has no routes to containers.
func (b *hostgw) Advertise(u backend.Underlay) (backend.Advertisement, error) {
	if err := b.open(); err != nil {
		return backend.Advertisement{}, err
	}
	if u.VRF != 0 {
		return backend.Advertisement{},
			fmt.Errorf("interface %s is in a VRF, and host-gw routes packets of containers by the main table: "+
				"take the interface out of the VRF, or use the backend vxlan or udp", u.Interface)
	}
	var errs []error
	for _, addr := range u.Addrs {
		has, err := b.kernel.HasAddr(u.Index, addr)
		if err == nil && !has {
			err = fmt.Errorf("public address %s is not an address of interface %s: host-gw routes through it", addr, u.Interface)
		}
		errs = append(errs, err)
	}
	self := backend.Peer{PublicIPs: u.Addrs}
	ipv6 := kernel.FindIPv6(u.Interface)
	for _, pool := range b.config.Pools {
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
	mtu, because, err := backend.Encapsulation{}.MTU(u, b.config.Pools, b.options.MTU)
	return backend.Advertisement{MTU: mtu, Overhead: because, Attributes: json.RawMessage(`{}`)}, err
}

// Apply makes the host's routes agree with the state.
func (b *hostgw) Apply(ctx context.Context, s backend.State) (backend.Report, error) {
	if err := b.open(); err != nil {
		return backend.Report{}, backend.About(backend.Routes, err)
	}
	// A query that the kernel could not answer ends the Apply: it is no reason to delete a route.
	indirect, err := b.kernel.Direct(ctx, backend.PublicIPs(s.Peers), s.Underlay.Index)
	if err != nil {
		return backend.Report{}, backend.About(backend.Routes, err)
	}
	ipv6 := kernel.FindIPv6(s.Underlay.Interface)
	p := b.plan(s, indirect, ipv6)
	apply := reconcile.Apply
	if s.Partial {
		apply = reconcile.Fill
	} else if b.partial {
		b.last = nil // routes left alone by a partial state are not another program's
	}
	b.partial = s.Partial
	elsewhere := backend.NewElsewhere(s.Elsewhere)
	table := b.kernel.Routes(kernel.Owner{Pools: b.config.Pools, Elsewhere: elsewhere, Stood: b.last, Wanted: p.routes})
	result, err := apply(ctx, reconcile.Want("route", table, kernel.CompareRoutes, p.routes, b.last))
	if !reflect.DeepEqual(b.stood, s.Underlay) {
		result = result.Explain("route")
	}
	b.stood = s.Underlay
	if b.last = kernel.PreviousRoutes(p.routes, elsewhere); err != nil {
		b.last = nil // routes that could not be added were not removed by another program
	}
	return backend.Report{
		Writes: result.Writes(), Healed: result.Healed(), Skipped: p.skipped, Peers: p.peers,
		Uncarried: ipv6.Uncarried(b.config.Pools),
	}, err
}

// plan returns newPlan's result, computed again only when its input has changed.
func (b *hostgw) plan(s backend.State, indirect map[netip.Addr]string, ipv6 kernel.IPv6) plan {
	if b.planned.routes == nil || b.ipv6 != ipv6 || !b.state.Equal(s) || !maps.Equal(b.indirect, indirect) {
		s.Peers, s.Elsewhere = slices.Clone(s.Peers), slices.Clone(s.Elsewhere)
		b.planned, b.state, b.indirect, b.ipv6 = newPlan(b.config.Pools, b.options, s, indirect,
			ipv6.OnDevice()), s, indirect, ipv6
		b.planned.routes = ipv6.Routes(b.planned.routes)
	}
	return b.planned
}

// Close closes the sockets and leaves the routes in place.
func (b *hostgw) Close() error {
	if b.kernel == nil {
		return nil
	}
	err := b.kernel.Close()
	b.kernel = nil
	return err
}
