package kernel

import (
	"context"
	"errors"
	"net/netip"

	"github.com/lenonet/leno/backend/reconcile"
)

// Guard makes the kernel refuse packets to pools that no other route leads to, or ends that if wanted is false.
// Backends leave the routes of a guard alone, so it also stands while the network has no datapath, or another backend
// takes the network over. It acts in the network namespace of the calling thread.
func Guard(ctx context.Context, pools []netip.Prefix, wanted bool) (err error) {
	handle, err := Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, handle.Close()) }()
	want := map[RouteKey]Route{}
	for _, p := range pools {
		if wanted && (p.Addr().Is4() || kernelHasIPv6()) {
			want[RouteKey{Dst: p, Metric: GuardMetric}] = Route{Unreachable: true}
		}
	}
	_, err = reconcile.Apply(ctx, reconcile.Want("route", handle.Routes(Owner{Pools: pools, Guards: true}), CompareRoutes,
		want, nil))
	return err
}
