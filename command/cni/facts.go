package cni

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lenonet/leno/agent/state"
)

// facts are what is known about this host's part in a network.
type facts struct {
	Network string
	Path    string // of the subnet file
	state.SubnetFile
}

// checkRanges returns an error unless the gateways are in the ranges that the same file names:
// another address would take packets from the host that do not belong to the network.
func (f facts) checkRanges() error {
	for _, g := range f.Gateways {
		inside := false
		for _, pool := range f.Pools {
			inside = inside || pool.Bits() > 0 && pool.Bits() <= g.Bits() && pool.Contains(g.Addr())
		}
		if !inside {
			return fmt.Errorf("%s is in no range that the file has as LENO_NETWORK or LENO_IPV6_NETWORK", g)
		}
	}
	return nil
}

// addressesOutside returns the addresses of a container that are not in this host's subnets.
func addressesOutside(f facts, addrs []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool {
		return slices.ContainsFunc(f.Gateways, func(g netip.Prefix) bool { return g.Contains(a) })
	})
}
