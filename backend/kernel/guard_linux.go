package kernel

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/backend/reconcile"
)

// Guard makes the kernel refuse packets to the owner's pools that no other route leads to, or ends that if wanted is
// false.
// Backends leave the routes of a guard alone, so it also stands while the network has no datapath, or another backend
// takes the network over. It acts in the network namespace of the calling thread.
func Guard(ctx context.Context, owner Owner, wanted bool) (err error) {
	handle, err := Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, handle.Close()) }()
	var want map[RouteKey]Route
	if wanted {
		want = unreachable(owner.Parts(), GuardMetric)
	}
	owner.Guards = true
	_, err = reconcile.Apply(ctx, reconcile.Want("route", handle.Routes(owner), CompareRoutes, want, nil))
	return err
}

// ReplacePools removes the routes and routing rules of the owner that a network was before, except those for its
// present pools. The routes of a guard stay unless guards is true. First, it makes the routes that refuse packets to
// the present pools, so that no packet leaves by another route in between. The other routes for the present pools stay
// as they are. It acts in the network namespace of the calling thread.
func ReplacePools(ctx context.Context, before Owner, present []netip.Prefix, guards bool) (err error) {
	handle, err := Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, handle.Close()) }()
	_, err = reconcile.Fill(ctx, reconcile.Want("route", handle.Routes(Owner{Pools: present}), CompareRoutes,
		unreachable(present, UnreachableMetric), nil))
	if err != nil {
		return err
	}
	owner := before
	owner.Except = slices.Concat(before.Except, present)
	steps := []reconcile.Step{
		reconcile.Want("rule", &rules{handle, owner}, ComparePoolRules, nil, nil),
		reconcile.Want("route", handle.Routes(owner), CompareRoutes, nil, nil),
	}
	if guards {
		owner.Guards = true
		steps = append(steps, reconcile.Want("route", handle.Routes(owner), CompareRoutes, nil, nil))
	}
	_, err = reconcile.Apply(ctx, steps...)
	return err
}

// unreachable returns an unreachable route with a metric for each pool of a family that the kernel has.
func unreachable(pools []netip.Prefix, metric uint32) map[RouteKey]Route {
	routes := map[RouteKey]Route{}
	for _, p := range pools {
		if p.Addr().Is4() || kernelHasIPv6() {
			routes[RouteKey{Dst: p, Metric: metric}] = Route{Unreachable: true}
		}
	}
	return routes
}
