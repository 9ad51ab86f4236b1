// Package flannel translates between the records of flannel and those of leno: the configuration of a network, the keys
// of subnets, and the attributes of leases, as flannel's local subnet manager writes them to etcd. A value that leno
// writes has flannel's members and one more, "leno", with leno's own record; flannel ignores it. It contains no I/O.
package flannel

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/lenonet/leno/registry"
)

// Names of the keys below a network's prefix.
const (
	ConfigKey  = "config"
	SubnetsDir = "subnets"
)

// lenoMember is the member of a value that contains leno's own record.
const lenoMember = "leno"

// Config is the configuration of a network, the value of ConfigKey. Names of members match in any case, as in flannel.
type Config struct {
	EnableIPv4     *bool        `json:",omitempty"` // nil for true
	EnableIPv6     *bool        `json:",omitempty"` // nil for false
	EnableNFTables bool         `json:",omitempty"`
	Network        netip.Prefix `json:",omitzero"`
	SubnetLen      int          `json:",omitempty"`
	SubnetMin      netip.Addr   `json:",omitzero"`
	SubnetMax      netip.Addr   `json:",omitzero"`
	IPv6Network    netip.Prefix `json:",omitzero"`
	IPv6SubnetLen  int          `json:",omitempty"`
	IPv6SubnetMin  netip.Addr   `json:",omitzero"`
	IPv6SubnetMax  netip.Addr   `json:",omitzero"`

	// Backend has the member "Type", and options whose names depend on the type.
	Backend map[string]json.RawMessage `json:",omitempty"`
}

// IsConfig reports whether a JSON object is a configuration, given its members.
func IsConfig(members map[string]json.RawMessage) bool {
	for name := range members {
		if strings.EqualFold(name, "Network") || strings.EqualFold(name, "IPv6Network") {
			return true
		}
	}
	return false
}

// ParseConfig parses a configuration. A member that is there twice, in whatever case, is an error: which of them counts
// differs between readers.
func ParseConfig(value []byte) (c Config, err error) {
	if err := json.Unmarshal(value, &c); err != nil {
		return c, fmt.Errorf("not a network configuration: %w", cmp.Or(FindComment(value), err))
	}
	if err := registry.CheckStructure(value); err != nil {
		return c, fmt.Errorf("not a network configuration: %w", err)
	}
	return c, nil
}

// Plan returns the address plan, with the defaults that flannel and leno share.
func (c Config) Plan() (registry.Plan, error) {
	var p registry.Plan
	if c.EnableIPv4 == nil || *c.EnableIPv4 {
		switch {
		case !c.Network.IsValid():
			return nil, errors.New("no Network is set")
		case c.Network.Addr().Is6():
			return nil, fmt.Errorf("pool %s in Network is not IPv4", c.Network)
		}
		p = append(p, registry.Pool{Prefix: c.Network.Masked(), SubnetLen: c.SubnetLen, Min: specified(c.SubnetMin),
			Max: specified(c.SubnetMax)})
	}
	if c.EnableIPv6 != nil && *c.EnableIPv6 {
		switch {
		case !c.IPv6Network.IsValid():
			return nil, errors.New("no IPv6Network is set, though EnableIPv6 is")
		case c.IPv6Network.Addr().Is4():
			return nil, fmt.Errorf("pool %s in IPv6Network is not IPv6", c.IPv6Network)
		}
		p = append(p, registry.Pool{Prefix: c.IPv6Network.Masked(), SubnetLen: c.IPv6SubnetLen,
			Min: specified(c.IPv6SubnetMin), Max: specified(c.IPv6SubnetMax)})
	}
	if len(p) == 0 {
		return nil, errors.New("neither IPv4 nor IPv6 is enabled: there is no network")
	}
	return p.Normalize()
}

// specified returns the address if flannel treats it as set: for 0.0.0.0 and :: it uses the default.
func specified(a netip.Addr) netip.Addr {
	if a.IsValid() && a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}
