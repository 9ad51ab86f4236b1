package command

import (
	"context"
	"net/netip"
	"os"
	"slices"

	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/command/cni"
)

// checkForwarding refuses what would cost the host routes: plugins that make gateways
// switch IPv6 forwarding on, and then the kernel drops the routes that routers advertised
// to it, the default route for one. set switches it on where that costs nothing, so that
// the plugin finds it on.
func checkForwarding(d cni.Delegation, f cni.Facts, set bool) error {
	i := slices.IndexFunc(f.Gateways, func(g netip.Prefix) bool { return g.Addr().Is6() })
	if i < 0 || !d.Forwards {
		return nil
	}
	found, err := new(forwarding.Switch).Ensure(f.Gateways[i].Addr(), nil, set)
	if err != nil {
		return internal(err)
	}
	if found.CostsRoutes() {
		return cni.CostsRoutes(d.Network, found.Reason(true))
	}
	return nil
}

// keepAcceptRA has a bridge that may be somebody else's accept router advertisements as
// before: the bridge plugin sets its accept_ra to 0, and the host would lose what it has
// from routers there when the lifetime ends. restore is to be called when the plugin has
// ended. Until then no other call takes the plugin's 0 for the value of before.
func keepAcceptRA(ctx context.Context, d cni.Delegation) (restore func() error, err error) {
	nothing := func() error { return nil }
	if d.Own || d.Bridge == "" {
		return nothing, nil
	}
	dir := cni.GatewayDir(d.DataDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lockPath(ctx, dir)
	if err != nil {
		return nil, err
	}
	parts := []string{"ipv6", "conf", d.Bridge, "accept_ra"}
	before, err := kernel.Sysctl(parts...)
	if err != nil { // no such bridge yet, or no IPv6
		unlock()
		return nothing, nil
	}
	return func() error {
		defer unlock()
		_, err := kernel.SetSysctl(before, parts...)
		return err
	}, nil
}
