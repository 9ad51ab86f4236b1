package flannel

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/registry"
)

// config is flannel's network configuration. Keys match in any case, as in flannel.
type config struct {
	EnableIPv4, EnableIPv6       *bool
	Network, IPv6Network         netip.Prefix
	SubnetLen, IPv6SubnetLen     int
	SubnetMin, SubnetMax         netip.Addr
	IPv6SubnetMin, IPv6SubnetMax netip.Addr
	EnableNFTables               bool
	Backend                      map[string]json.RawMessage
}

// isConfig distinguishes a configuration from an object of keys.
func isConfig(members map[string]json.RawMessage) bool {
	for name := range members {
		if strings.EqualFold(name, "Network") || strings.EqualFold(name, "IPv6Network") {
			return true
		}
	}
	return false
}

func parseConfig(text string) (c config, notes []string, err error) {
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return c, nil, fmt.Errorf("not a network configuration: %w", err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &members); err != nil {
		return c, nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if !slices.ContainsFunc(configMembers(), func(m string) bool { return strings.EqualFold(m, name) }) {
			notes = append(notes, fmt.Sprintf("%s is no setting of flannel's that leno knows, and is left out", name))
		}
	}
	if c.EnableNFTables {
		notes = append(notes,
			"EnableNFTables is not carried over: each agent takes the kind of firewall its host has, see `leno status`")
	}
	return c, notes, nil
}

func configMembers() []string {
	return []string{"EnableIPv4", "EnableIPv6", "EnableNFTables", "Network", "IPv6Network", "SubnetLen", "SubnetMin",
		"SubnetMax", "IPv6SubnetLen", "IPv6SubnetMin", "IPv6SubnetMax", "Backend"}
}

// plan returns the configuration's address plan, with the defaults that flannel and leno share.
func (c config) plan() (registry.Plan, error) {
	var p registry.Plan
	if c.EnableIPv4 == nil || *c.EnableIPv4 {
		if !c.Network.IsValid() {
			return nil, errors.New("no Network is set")
		}
		p = append(p, registry.Pool{Prefix: c.Network.Masked(), SubnetLen: c.SubnetLen, Min: specifiedAddr(c.SubnetMin),
			Max: specifiedAddr(c.SubnetMax)})
	}
	if c.EnableIPv6 != nil && *c.EnableIPv6 {
		if !c.IPv6Network.IsValid() {
			return nil, errors.New("no IPv6Network is set, though EnableIPv6 is")
		}
		p = append(p, registry.Pool{Prefix: c.IPv6Network.Masked(), SubnetLen: c.IPv6SubnetLen,
			Min: specifiedAddr(c.IPv6SubnetMin), Max: specifiedAddr(c.IPv6SubnetMax)})
	}
	if len(p) == 0 {
		return nil, errors.New("neither IPv4 nor IPv6 is enabled: there is no network")
	}
	return p.Normalize()
}

// specifiedAddr returns the address if flannel treats it as set: for 0.0.0.0 and :: flannel uses the
// default.
func specifiedAddr(a netip.Addr) netip.Addr {
	if a.IsValid() && a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}
