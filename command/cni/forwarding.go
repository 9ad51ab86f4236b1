package cni

import (
	"context"
	"net/netip"
	"os"
	"slices"

	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/backend/kernel"
)

// checkForwarding refuses what would cost the host routes. Plugins that make gateways turn on IPv6
// forwarding, and the kernel then drops routes learned from router advertisements, such as the
// default route. If set is true and no routes would be lost, checkForwarding turns forwarding on
// before the plugin runs.
func checkForwarding(d delegation, f facts, set bool) error {
	i := slices.IndexFunc(f.Gateways, func(g netip.Prefix) bool { return g.Addr().Is6() })
	if i < 0 || !d.Forwards {
		return nil
	}
	found, err := new(forwarding.Switch).Ensure(f.Gateways[i], nil, set)
	if err != nil {
		return internalError(err)
	}
	if found.CostsRoutes() {
		return errorf(codeCostsRoutes, "network %s: %s", d.Network, found.Reason(true))
	}
	return nil
}

// keepAcceptRA preserves accept_ra of a bridge that may belong to another program. The bridge
// plugin sets it to 0, and the host would lose what it learned from routers when the lifetime
// ends. The caller must call restore after the plugin has ended. Until then a lock keeps other
// calls from reading the plugin's 0 as the original value.
func keepAcceptRA(ctx context.Context, d delegation) (restore func() error, err error) {
	nothing := func() error { return nil }
	if d.Own || d.Bridge == "" {
		return nothing, nil
	}
	dir := gatewayDir(d.DataDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lockPath(ctx, dir)
	if err != nil {
		return nil, err
	}
	parts := []string{"ipv6", "conf", d.Bridge, "accept_ra"}
	before, err := kernel.Sysctl(parts...)
	if err != nil { // the bridge does not exist yet, or there is no IPv6
		unlock()
		return nothing, nil
	}
	return func() error {
		defer unlock()
		_, err := kernel.SetSysctl(before, parts...)
		return err
	}, nil
}
