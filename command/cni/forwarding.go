package cni

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/lenonet/leno/agent/forwarding"
	"github.com/lenonet/leno/agent/state"
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
// calls from reading the plugin's 0 as the original value, and a file has that value, in case this
// call is killed.
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
	path := filepath.Join(acceptRADir(d.DataDir), d.Bridge)
	if err := restoreAcceptRA(path); err != nil {
		unlock()
		return nil, err
	}
	before, err := kernel.Sysctl(acceptRA(d.Bridge)...)
	if err != nil || before == "0" { // the bridge does not exist yet, or there is no IPv6
		unlock()
		return nothing, nil
	}
	if err := state.WriteFile(path, []byte(before), 0o644); err != nil {
		unlock()
		return nil, err
	}
	return func() error {
		defer unlock()
		return restoreAcceptRA(path)
	}, nil
}

// acceptRA returns the name of a bridge's setting.
func acceptRA(bridge string) []string { return []string{"ipv6", "conf", bridge, "accept_ra"} }

// restoreAcceptRA gives a bridge the value in a file instead of the plugin's 0, and removes the
// file, if it exists. The caller has the lock.
func restoreAcceptRA(path string) error {
	before, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	parts := acceptRA(filepath.Base(path))
	if now, unknown := kernel.Sysctl(parts...); err == nil && unknown == nil && now == "0" {
		_, err = kernel.SetSysctl(string(before), parts...)
	}
	return errors.Join(err, os.Remove(path))
}

// restoreAllAcceptRA restores accept_ra of the bridges on which a call was killed. It does nothing while another call
// has the lock, which restores it itself.
func restoreAllAcceptRA(dataDir string) {
	files, err := entries(acceptRADir(dataDir))
	if err != nil || len(files) == 0 {
		return
	}
	once, cancel := context.WithCancel(context.Background())
	cancel()
	unlock, err := lockPath(once, gatewayDir(dataDir))
	if err != nil {
		return
	}
	defer unlock()
	for _, file := range files {
		_ = restoreAcceptRA(filepath.Join(acceptRADir(dataDir), file.Name()))
	}
}
