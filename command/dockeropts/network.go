package dockeropts

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/command/subnetfile"
)

// Network is what Docker has to know of one of leno's networks on this host.
type Network struct {
	Name string
	// Gateways are this host's subnets in the form their bridge has them
	// (10.5.34.1/24), IPv4 first, at most one a family.
	Gateways []netip.Prefix
	MTU      int  // bytes
	IPMasq   bool // leno masquerades what leaves the overlay
	// Interfaces are the devices by which packets of other hosts arrive.
	Interfaces []string
}

// gateway is the one of a family; none has no Addr.
func (n Network) gateway(v6 bool) netip.Prefix {
	for _, g := range n.Gateways {
		if g.Addr().Is6() == v6 {
			return g
		}
	}
	return netip.Prefix{}
}

// ParseSubnetFile reads what leno, or flannel, wrote for container runtimes.
func ParseSubnetFile(name, text string) (Network, error) {
	f, err := subnetfile.Parse(text)
	if err != nil {
		return Network{}, err
	}
	return Network{Name: name, Gateways: f.Gateways, MTU: f.MTU, IPMasq: f.IPMasq}, nil
}

// maxInterface is IFNAMSIZ less the terminating zero.
const maxInterface = 15

// bridge is the name of a network's bridge; "" leaves it to Docker.
func (n Network) bridge() string {
	if name := "br-" + n.Name; len(name) <= maxInterface {
		return name
	}
	return ""
}

// dockerName is the network's name in Docker, where "default", "bridge", "host"
// and "none" are taken.
func (n Network) dockerName() string { return "leno-" + n.Name }

// trusted is the devices in the form the network option takes. A name with its
// separator in it cannot be given.
func (n Network) trusted() string {
	return strings.Join(slices.DeleteFunc(slices.Clone(n.Interfaces), func(s string) bool { return strings.Contains(s, ":") }), ":")
}
