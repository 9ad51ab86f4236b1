package lab

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// SubnetFile holds what an agent has told the container runtime.
type SubnetFile struct {
	Network, IPv6Network netip.Prefix // the whole pool; invalid if the network lacks the family
	Subnet, IPv6Subnet   netip.Prefix // with the gateway's address, "10.5.34.1/24"
	MTU                  int          // bytes
	IPMasq               bool
}

// Subnets returns the subnets of the families that the network has.
func (f SubnetFile) Subnets() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range []netip.Prefix{f.Subnet, f.IPv6Subnet} {
		if p.IsValid() {
			out = append(out, p)
		}
	}
	return out
}

// ReadSubnetFile reads the LENO_ lines of a subnet file. Every known line must be valid, and a
// subnet and an MTU are required.
func ReadSubnetFile(path string) (SubnetFile, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return SubnetFile{}, err
	}
	var f SubnetFile
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "LENO_NETWORK":
			f.Network, err = netip.ParsePrefix(value)
		case "LENO_IPV6_NETWORK":
			f.IPv6Network, err = netip.ParsePrefix(value)
		case "LENO_SUBNET":
			f.Subnet, err = netip.ParsePrefix(value)
		case "LENO_IPV6_SUBNET":
			f.IPv6Subnet, err = netip.ParsePrefix(value)
		case "LENO_MTU":
			f.MTU, err = strconv.Atoi(value)
		case "LENO_IPMASQ":
			f.IPMasq, err = strconv.ParseBool(value)
		}
		if err != nil {
			return SubnetFile{}, fmt.Errorf("%s: %s: %w", path, key, err)
		}
	}
	if len(f.Subnets()) == 0 || f.MTU == 0 {
		return SubnetFile{}, fmt.Errorf("%s: no subnet or no MTU in it:\n%s", path, text)
	}
	return f, nil
}
