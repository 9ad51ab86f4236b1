package cni

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

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

const (
	bridgePlugin = "bridge"
	ptpPlugin    = "ptp"
	ipamPlugin   = "host-local"
)

// bridgeName returns a network's default bridge name: at most 15 bytes, and different for each
// network.
func bridgeName(network string) string {
	return "cni-" + strings.TrimPrefix(backend.LinkName(network), backend.LinkPrefix)
}

// bridgeKeys returns the settings of the bridge plugin that are allowed in `delegate`.
func bridgeKeys() []string {
	return []string{"bridge", "enabledad", "forceAddress", "hairpinMode", "ipMasq", "ipMasqBackend", "isDefaultGateway",
		"isGateway", "macspoofchk", "mtu", "portIsolation", "preserveDefaultVlan", "promiscMode", "type", "vlan",
		"vlanTrunk"}
}

// takenKeys returns leno's own keys, which `delegate` must not contain.
func takenKeys() []string {
	return []string{"args", "cniVersion", "dns", "ipam", "name", "prevResult", "runtimeConfig"}
}

// delegateSettings are the settings of `delegate` that leno reads.
type delegateSettings struct {
	Type             string `json:"type"`
	Bridge           string `json:"bridge"`
	HairpinMode      bool   `json:"hairpinMode"`
	PromiscMode      bool   `json:"promiscMode"`
	IsGateway        *bool  `json:"isGateway"`
	IsDefaultGateway *bool  `json:"isDefaultGateway"`
	IPMasq           bool   `json:"ipMasq"`
	MTU              int    `json:"mtu"`
	VLAN             int    `json:"vlan"`
}

// settings parses `delegate`.
func (c networkConf) settings() (delegateSettings, error) {
	d := delegateSettings{Type: bridgePlugin}
	text, err := json.Marshal(c.Delegate)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		return d, errorf(types.ErrDecodingFailure, "delegate: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return d, nil
}

func (c networkConf) checkDelegate() error {
	for _, key := range sorted(c.Delegate) {
		if slices.Contains(takenKeys(), key) {
			return errorf(types.ErrInvalidNetworkConfig,
				"delegate.%s: leno-cni sets it itself; leave it out, or put it at the top where it is known there", key)
		}
	}
	d, err := c.settings()
	if err != nil {
		return err
	}
	invalid := func(format string, args ...any) error {
		return errorf(types.ErrInvalidNetworkConfig, format, args...)
	}
	switch {
	case d.Type == "" || strings.ContainsAny(d.Type, "/\x00") || d.Type == "leno" || d.Type == "leno-cni":
		return invalid("delegate.type: %q is not the name of a plugin that makes interfaces", d.Type)
	case d.MTU < 0:
		return invalid("delegate.mtu: %d is not an MTU", d.MTU)
	case d.Type != bridgePlugin:
		return nil // the plugin's settings are not known here
	case d.HairpinMode && d.PromiscMode:
		return invalid("delegate.hairpinMode and delegate.promiscMode exclude each other")
	case d.Bridge != "" && !isDeviceName(d.Bridge):
		return invalid("delegate.bridge: %q is not the name of a device", d.Bridge)
	case d.IsDefaultGateway != nil && *d.IsDefaultGateway && d.IsGateway != nil && !*d.IsGateway:
		return invalid("delegate.isDefaultGateway is true, so delegate.isGateway cannot be false")
	}
	for _, key := range sorted(c.Delegate) {
		if !slices.Contains(bridgeKeys(), key) {
			return unsupported("delegate."+key, c.Delegate[key], bridgeKeys())
		}
	}
	return nil
}

// isDeviceName reports whether the kernel accepts the name.
func isDeviceName(name string) bool {
	return len(name) <= 15 && name != "." && name != ".." && !strings.ContainsAny(name, "/: \t\n\x00")
}

// checkIPAM returns an error for ipam settings that are not allowed: the addresses come from leno.
func (c networkConf) checkIPAM() error {
	var routes []*types.Route
	var text string
	for _, key := range sorted(c.IPAM) {
		var err error
		switch value := c.IPAM[key]; key {
		case "type":
			if err = json.Unmarshal(value, &text); err == nil && text != ipamPlugin {
				return errorf(types.ErrInvalidNetworkConfig, "ipam.type: %q; addresses are given out by %s alone", text, ipamPlugin)
			}
		case "routes":
			err = json.Unmarshal(value, &routes)
		case "resolvConf":
			err = json.Unmarshal(value, &text)
		case "subnet", "ranges", "rangeStart", "rangeEnd", "gateway":
			return errorf(types.ErrInvalidNetworkConfig, "ipam.%s: subnet and gateway are what this host leased; leave it out",
				key)
		case "dataDir":
			return errorf(types.ErrInvalidNetworkConfig, "ipam.dataDir: set dataDir at the top level instead")
		default:
			return unsupported("ipam."+key, value, []string{"resolvConf", "routes", "type"})
		}
		if err != nil {
			return errorf(types.ErrDecodingFailure, "ipam.%s: %s is not what it takes: %s", key, short(c.IPAM[key]), err)
		}
	}
	var runtime struct {
		Ranges json.RawMessage `json:"ipRanges"`
	}
	if len(c.RuntimeConfig) > 0 {
		if err := json.Unmarshal(c.RuntimeConfig, &runtime); err != nil {
			return errorf(types.ErrDecodingFailure, "runtimeConfig: %s", err)
		}
	}
	if len(runtime.Ranges) > 0 {
		return errorf(types.ErrUnsupportedField,
			"runtimeConfig.ipRanges: %s is not supported here: the subnet is what this host leased; "+
				"leave the capability ipRanges out", short(runtime.Ranges))
	}
	return nil
}

// newDelegation returns the work for a plugin that the configuration and the facts require.
func newDelegation(c networkConf, f facts) (delegation, error) {
	set, err := c.settings()
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
		d.Bridge = bridgeName(f.Network)
		d.Own = set.Bridge == "" || set.Bridge == d.Bridge
		conf["bridge"] = d.Bridge
		conf["isGateway"] = true
		conf["isDefaultGateway"] = set.IsGateway == nil || *set.IsGateway
		// A bridge with a configured name may belong to another program, with its addresses.
		conf["forceAddress"] = d.Own
		conf["ipMasq"] = false
		if set.Bridge != "" {
			d.Bridge = set.Bridge
		}
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

// with returns the delegation's configuration with some keys replaced.
func (d delegation) with(values map[string]any) (json.RawMessage, error) {
	all, err := object("", d.Config)
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
