package flannel

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
)

var subnetKey = regexp.MustCompile(`^([0-9.]+)-([0-9]{1,2})(?:&([0-9a-f:.]+)-([0-9]{1,3}))?$`)

// firstSubnet is the part of a key's pattern that has the first subnet.
var firstSubnet = regexp.MustCompile(`^(?:0\.0\.0\.0-0&[0-9a-f:.]+|[0-9.]+)-[0-9]+`)

// noIPv4 stands for the IPv4 subnet in the key of a host that has only an IPv6 subnet.
const noIPv4 = "0.0.0.0-0"

// SubnetKey returns the last element of a lease's key: 10.5.52.0-24, for both families 10.5.52.0-24&fd00:5:0:34::-64,
// for IPv6 alone 0.0.0.0-0&fd00:5:0:34::-64. subnets has at most one subnet of each family, in any order.
func SubnetKey(subnets []netip.Prefix) string {
	v4, v6 := noIPv4, ""
	for _, p := range subnets {
		key := fmt.Sprintf("%s-%d", p.Addr(), p.Bits())
		if p.Addr().Is4() {
			v4 = key
		} else {
			v6 = "&" + key
		}
	}
	return v4 + v6
}

// ParseSubnetKey is the inverse of SubnetKey, and accepts no other spelling. IPv4 comes first.
func ParseSubnetKey(name string) ([]netip.Prefix, error) {
	m := subnetKey.FindStringSubmatch(name)
	if m == nil {
		return nil, fmt.Errorf("%.80q is not a subnet such as 10.5.52.0-24", name)
	}
	var subnets []netip.Prefix
	if m[1]+"-"+m[2] != noIPv4 || m[3] == "" {
		v4, err := parseSubnet(m[1], m[2], netip.Addr.Is4)
		if err != nil {
			return nil, err
		}
		subnets = append(subnets, v4)
	}
	if m[3] != "" {
		v6, err := parseSubnet(m[3], m[4], netip.Addr.Is6)
		if err != nil {
			return nil, err
		}
		subnets = append(subnets, v6)
	}
	if key := SubnetKey(subnets); key != name { // else one subnet could have two keys
		return nil, fmt.Errorf("%.80q is not how flannel writes %s", name, key)
	}
	return subnets, nil
}

// SubnetsIn returns the subnets in the name of any record: if it is no lease's, the one that it begins with, if any.
func SubnetsIn(name string) []netip.Prefix {
	subnets, err := ParseSubnetKey(name)
	if err != nil {
		subnets, _ = ParseSubnetKey(firstSubnet.FindString(name))
	}
	return subnets
}

func parseSubnet(addr, bits string, isFamily func(netip.Addr) bool) (netip.Prefix, error) {
	a, err := netip.ParseAddr(addr)
	n, _ := strconv.Atoi(bits) // the pattern has only digits
	p := netip.PrefixFrom(a, n)
	switch {
	case err != nil || !isFamily(a) || !p.IsValid():
		return netip.Prefix{}, fmt.Errorf("%s-%s is not a subnet", addr, bits)
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("%s-%s has host bits set, did you mean %s?", addr, bits, p.Masked())
	}
	return p, nil
}
