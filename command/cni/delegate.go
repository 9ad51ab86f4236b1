package cni

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/lenonet/leno/backend"
)

// delegation is work for another plugin.
type delegation struct {
	Plugin  string // "bridge"
	Network string
	Config  json.RawMessage

	// Bridge is the device that the plugin makes or finds, "" for a plugin that makes no bridges.
	// Own is set if no other program puts addresses on it.
	Bridge string
	Own    bool
	MTU    int

	// Forwards reports whether the plugin makes the kernel forward packets of each family that has
	// a gateway.
	Forwards bool

	// Gateway is the device that gets the gateways' addresses: the bridge, or the bridge's
	// interface in a VLAN. It is "" if the plugin puts them on no lasting device.
	Gateway string

	DataDir string
	subnets []netip.Prefix
}

// newDelegation returns the work for a plugin that the configuration and the facts require.
func newDelegation(c networkConf, f facts) (delegation, error) {
	set, err := parseDelegate(c.Delegate)
	if err != nil {
		return delegation{}, err
	}
	if set.MTU > f.MTU {
		return delegation{}, errorf(types.ErrInvalidNetworkConfig,
			"delegate.mtu: %d is more than network %s carries, %d: leave it out, or take %d at most", set.MTU, f.Network, f.MTU,
			f.MTU)
	}
	d := delegation{Plugin: set.Type, Network: f.Network, MTU: cmp.Or(set.MTU, f.MTU), Forwards: set.Type == ptpPlugin,
		DataDir: c.DataDir, subnets: f.Subnets()}
	conf := map[string]any{"mtu": f.MTU}
	defaultRoute := true
	if d.Plugin == bridgePlugin {
		d.Bridge = cmp.Or(set.Bridge, backend.BridgeName(f.Network))
		d.Own = d.Bridge == backend.BridgeName(f.Network)
		conf["bridge"] = d.Bridge
		conf["isGateway"] = true
		conf["isDefaultGateway"] = set.IsGateway == nil || *set.IsGateway
		// A bridge with a configured name may belong to another program, with its addresses.
		conf["forceAddress"] = d.Own
		conf["ipMasq"] = false
		if set.IsGateway == nil || *set.IsGateway {
			d.Gateway, d.Forwards = d.Bridge, true
			if set.VLAN != 0 {
				d.Gateway = fmt.Sprintf("%s.%d", d.Bridge, set.VLAN) // the bridge plugin's naming
			}
		}
		defaultRoute = conf["isDefaultGateway"].(bool)
		if set.IsDefaultGateway != nil {
			defaultRoute = *set.IsDefaultGateway
		}
	}
	for key, value := range c.Delegate {
		conf[key] = value
	}
	// Do not masquerade what the agent masquerades: of two rules, the one that hides containers
	// from each other would win.
	if f.IPMasq && set.IPMasq {
		conf["ipMasq"] = false
	}
	conf["cniVersion"], conf["type"] = c.CNIVersion, d.Plugin
	// host-local keeps one store per name. Using the name of leno's network prevents two
	// configurations of the same network from giving out the same address.
	conf["name"] = f.Network
	if conf["ipam"], err = c.ipam(f, d.Plugin == bridgePlugin, defaultRoute); err != nil {
		return delegation{}, err
	}
	for key, value := range map[string]json.RawMessage{"args": c.Args, "dns": c.DNS, "runtimeConfig": c.RuntimeConfig} {
		if len(value) > 0 {
			conf[key] = value
		}
	}
	d.Config, err = json.Marshal(conf)
	return d, err
}

// ipam returns host-local's configuration: one range set per family, each of which gives an
// address. If the container's default route goes elsewhere, it gets a route to the whole network.
func (c networkConf) ipam(f facts, bridge, defaultRoute bool) (map[string]any, error) {
	var ranges [][]map[string]string
	for _, g := range f.Gateways {
		ranges = append(ranges, []map[string]string{{"subnet": g.Masked().String(), "gateway": g.Addr().String()}})
	}
	var routes []any
	if extra := c.IPAM["routes"]; !bridge && len(extra) == 0 { // the plugin makes no default routes itself
		for _, g := range f.Gateways {
			routes = append(routes, map[string]string{"dst": netip.PrefixFrom(g.Addr(), 0).Masked().String()})
		}
	}
	if !defaultRoute {
		for _, pool := range f.Pools {
			routes = append(routes, map[string]string{"dst": pool.String()})
		}
	}
	if extra := c.IPAM["routes"]; len(extra) > 0 {
		var more []json.RawMessage
		if err := json.Unmarshal(extra, &more); err != nil {
			return nil, errorf(types.ErrDecodingFailure, "ipam.routes: %s", err)
		}
		for _, r := range more {
			routes = append(routes, r)
		}
	}
	out := map[string]any{"type": ipamPlugin, "dataDir": addressDir(c.DataDir), "ranges": ranges}
	if len(routes) > 0 {
		out["routes"] = routes
	}
	if text := c.IPAM["resolvConf"]; len(text) > 0 {
		out["resolvConf"] = text
	}
	return out, nil
}

// withValues returns the delegation's configuration with some keys replaced.
func (d delegation) withValues(values map[string]any) (json.RawMessage, error) {
	all, err := parseObject(d.Config)
	if err != nil {
		return nil, err
	}
	for key, value := range values {
		if all[key], err = json.Marshal(value); err != nil {
			return nil, err
		}
	}
	return json.Marshal(all)
}

// gatewayFile returns the path of the record of what is put on the gateways' device.
func (d delegation) gatewayFile() string {
	return filepath.Join(gatewayDir(d.DataDir), d.Network, d.Gateway)
}

// staleAddresses returns the addresses of a device that belong to the host's earlier subnets in the network
// and would keep packets for their next owner on this host. On the network's own device these are
// all addresses that are not gateways now, on other devices only those that leno gave.
func staleAddresses(d delegation, f facts, onBridge, given []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(onBridge), func(p netip.Prefix) bool {
		return slices.Contains(f.Gateways, p) || p.Addr().IsLinkLocalUnicast() || !d.Own && !slices.Contains(given, p)
	})
}
