package state

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/registry"
)

// FormatSubnetFile returns the content of a subnet file: lines that begin with LENO_, and the same lines with FLANNEL_
// for programs made for flannel.
func FormatSubnetFile(plan registry.Plan, subnets []netip.Prefix, mtu int, masq bool) []byte {
	var lines []string
	for i, s := range subnets {
		family := ""
		if s.Addr().Is6() {
			family = "IPV6_"
		}
		lines = append(lines,
			fmt.Sprintf("%sNETWORK=%s", family, plan[i].Prefix),
			fmt.Sprintf("%sSUBNET=%s", family, Gateway(s)))
	}
	lines = append(lines, fmt.Sprintf("MTU=%d", mtu), fmt.Sprintf("IPMASQ=%t", masq))
	var out bytes.Buffer
	for _, prefix := range []string{"LENO_", "FLANNEL_"} {
		for _, line := range lines {
			out.WriteString(prefix + line + "\n")
		}
	}
	return out.Bytes()
}

// WithoutMTU returns the content of a subnet file without its MTU lines.
func WithoutMTU(file []byte) []byte {
	return bytes.Join(slices.DeleteFunc(bytes.Split(file, []byte("\n")), func(line []byte) bool { return bytes.Contains(line, []byte("_MTU=")) }), []byte("\n"))
}

// IsSubnetFile reports whether data is a subnet file of any version of leno. It is not if another program has written
// its own file there, or if the file contains LENO_ lines that are settings, such as LENO_TOKEN=secret alone.
func IsSubnetFile(data []byte) bool {
	hasSubnet := false
	for line := range bytes.Lines(data) {
		key, _, ok := strings.Cut(strings.TrimSpace(string(line)), "=")
		switch {
		case !ok && key == "":
		case key == "LENO_SUBNET" || key == "LENO_IPV6_SUBNET":
			hasSubnet = true
		case !strings.HasPrefix(key, "LENO_") && !strings.HasPrefix(key, "FLANNEL_"):
			return false
		}
	}
	return hasSubnet
}

// Gateway returns the address of a subnet's bridge: the first host address, with the subnet's prefix length.
func Gateway(subnet netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits())
}

// ReadSubnetFile reads the file at the path of a subnet file. A FIFO there is an error, because reading it would wait
// for another process.
func ReadSubnetFile(path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), config.ReadTimeout)
	defer cancel()
	return config.ReadFile(ctx, path)
}

// SubnetInFile returns the first subnet in a subnet file, or the zero value if there is none.
func SubnetInFile(path string) netip.Prefix {
	data, err := ReadSubnetFile(path)
	if err != nil {
		return netip.Prefix{}
	}
	found := map[string]netip.Prefix{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), "=")
		if p, err := netip.ParsePrefix(strings.TrimSpace(value)); err == nil {
			found[key] = p.Masked()
		}
	}
	for _, key := range []string{"LENO_SUBNET", "LENO_IPV6_SUBNET", "FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"} {
		if p, ok := found[key]; ok {
			return p
		}
	}
	return netip.Prefix{}
}
