package dockeropts

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/state"
)

// Network describes one of leno's networks on this host, as far as Docker needs it.
type Network struct {
	Name string
	// Gateways are this host's subnets with the bridge's address (10.5.34.1/24), IPv4 first, at
	// most one per family.
	Gateways []netip.Prefix
	// Pools are the ranges of all hosts' subnets.
	Pools  []netip.Prefix
	MTU    int  // bytes
	IPMasq bool // leno masquerades what leaves the overlay
	// Interfaces are the devices on which packets of other hosts arrive.
	Interfaces []string
}

// gateway returns the gateway of a family, or the zero Prefix.
func (n Network) gateway(v6 bool) netip.Prefix {
	for _, g := range n.Gateways {
		if g.Addr().Is6() == v6 {
			return g
		}
	}
	return netip.Prefix{}
}

// ParseSubnetFile parses the file that leno, or flannel, wrote for container runtimes.
func ParseSubnetFile(name, text string) (Network, error) {
	f, err := state.ParseSubnetFile(text)
	if err != nil {
		return Network{}, err
	}
	return Network{Name: name, Gateways: f.Gateways, Pools: f.Pools, MTU: f.MTU, IPMasq: f.IPMasq}, nil
}

// maxInterface is IFNAMSIZ without the terminating zero.
const maxInterface = 15

// bridge returns the name of a network's bridge; "" leaves the choice to Docker.
func (n Network) bridge() string {
	if name := "br-" + n.Name; len(name) <= maxInterface {
		return name
	}
	return ""
}

// dockerName returns the network's name in Docker, where "default", "bridge", "host" and "none"
// are reserved.
func (n Network) dockerName() string { return "leno-" + n.Name }

// trustedInterfaces returns the devices in the syntax of the network option. It leaves out names that
// contain its separator.
func (n Network) trustedInterfaces() string {
	return strings.Join(slices.DeleteFunc(slices.Clone(n.Interfaces),
		func(s string) bool { return strings.Contains(s, ":") }), ":")
}
