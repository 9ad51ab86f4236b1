package dockeropts

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
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

// ParseSubnetFile reads what leno, or flannel, wrote for container runtimes:
// lines KEY=value, of which LENO_SUBNET, LENO_IPV6_SUBNET, LENO_MTU and LENO_IPMASQ
// count, or the same that begin with FLANNEL_. Lines of other programs are passed
// over; one of these that cannot be read is an error, and so is a file without a
// subnet or MTU.
func ParseSubnetFile(name, text string) (Network, error) {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			continue
		}
		for _, prefix := range []string{"LENO_", "FLANNEL_"} {
			if rest, ours := strings.CutPrefix(key, prefix); ours && (prefix == "LENO_" || values[rest] == "") {
				values[rest] = value
			}
		}
	}
	n := Network{Name: name}
	for _, key := range []string{"SUBNET", "IPV6_SUBNET"} {
		if values[key] == "" {
			continue
		}
		p, err := netip.ParsePrefix(values[key])
		if a := p.Addr(); err != nil || a.Is6() != (key == "IPV6_SUBNET") || a.Is4In6() || a == p.Masked().Addr() {
			return Network{}, fmt.Errorf("LENO_%s=%q is not the address of a bridge such as 10.5.34.1/24", key, values[key])
		}
		n.Gateways = append(n.Gateways, p)
	}
	if len(n.Gateways) == 0 {
		return Network{}, fmt.Errorf("no LENO_SUBNET and no LENO_IPV6_SUBNET in it")
	}
	var err error
	if n.MTU, err = strconv.Atoi(values["MTU"]); err != nil || n.MTU < 68 || n.MTU > 65535 {
		return Network{}, fmt.Errorf("LENO_MTU=%q is not an MTU", values["MTU"])
	}
	if n.IPMasq, err = strconv.ParseBool(cmp.Or(values["IPMASQ"], "false")); err != nil {
		return Network{}, fmt.Errorf("LENO_IPMASQ=%q is neither true nor false", values["IPMASQ"])
	}
	return n, nil
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
