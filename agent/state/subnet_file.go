package state

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/lenonet/leno/agent/files"
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
	for _, prefix := range subnetFilePrefixes() {
		for _, line := range lines {
			out.WriteString(prefix + line + "\n")
		}
	}
	return out.Bytes()
}

// subnetFilePrefixes returns the prefixes of the lines of a subnet file; the first one takes precedence.
func subnetFilePrefixes() []string { return []string{"LENO_", "FLANNEL_"} }

// WithoutMTU returns the content of a subnet file without its MTU lines.
func WithoutMTU(file []byte) []byte {
	isMTU := func(line []byte) bool { return bytes.Contains(line, []byte("_MTU=")) }
	lines := slices.DeleteFunc(bytes.Split(file, []byte("\n")), isMTU)
	return bytes.Join(lines, []byte("\n"))
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
	ctx, cancel := context.WithTimeout(context.Background(), files.ReadTimeout)
	defer cancel()
	return files.Read(ctx, path)
}

// RemoveSubnetFile removes the file at the path of a subnet file, unless another program has written it.
func RemoveSubnetFile(path string) error {
	data, err := ReadSubnetFile(path)
	if err != nil || !IsSubnetFile(data) {
		return err
	}
	return os.Remove(path)
}

// SubnetInFile returns the first subnet in a subnet file, or the zero value if there is none. It accepts files that
// ParseSubnetFile rejects, for example one without an MTU.
func SubnetInFile(path string) netip.Prefix {
	data, err := ReadSubnetFile(path)
	if err != nil {
		return netip.Prefix{}
	}
	values := subnetFileValues(string(data))
	for _, key := range []string{"SUBNET", "IPV6_SUBNET"} {
		if p, err := netip.ParsePrefix(values[key]); err == nil {
			return p.Masked()
		}
	}
	return netip.Prefix{}
}

// subnetFileValues returns the values of a subnet file by key, for example "10.5.34.1/24" by "SUBNET". Lines of other
// programs are skipped, and LENO_ takes precedence over FLANNEL_.
func subnetFileValues(text string) map[string]string {
	values := map[string]string{}
	prefixes := subnetFilePrefixes()
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			continue
		}
		for i, prefix := range prefixes {
			if name, found := strings.CutPrefix(key, prefix); found && (i == 0 || values[name] == "") {
				values[name] = strings.TrimSpace(value)
			}
		}
	}
	return values
}

// SubnetFile is the content of a subnet file, which describes a network to container runtimes.
type SubnetFile struct {
	// Gateways are this host's subnets with the bridge's address (10.5.34.1/24), IPv4 first, at
	// most one per family.
	Gateways []netip.Prefix
	// Pools are the address ranges of the whole network, in the same order. A family whose line is
	// missing has none; a family in flannel's files may have several.
	Pools  []netip.Prefix
	MTU    int  // bytes
	IPMasq bool // the agent masquerades what leaves the overlay
}

// ParseSubnetFile parses a file of leno or flannel: lines KEY=value that begin with LENO_, or the same with FLANNEL_.
// Lines of other programs are skipped. An invalid line of these is an error, and so is a file without a subnet or MTU.
func ParseSubnetFile(text string) (SubnetFile, error) {
	values := subnetFileValues(text)
	var f SubnetFile
	for _, family := range []string{"", "IPV6_"} {
		gateway, pool := values[family+"SUBNET"], values[family+"NETWORK"]
		if gateway != "" {
			p, err := netip.ParsePrefix(gateway)
			if a := p.Addr(); err != nil || a.Is6() != (family != "") || a.Is4In6() || a == p.Masked().Addr() {
				return SubnetFile{}, fmt.Errorf("LENO_%sSUBNET=%q is not the address of a bridge such as 10.5.34.1/24", family,
					gateway)
			}
			f.Gateways = append(f.Gateways, p)
		}
		if pool == "" {
			continue
		}
		for word := range strings.SplitSeq(pool, ",") { // flannel may write several
			p, err := netip.ParsePrefix(strings.TrimSpace(word))
			if a := p.Addr(); err != nil || a.Is6() != (family != "") || a.Is4In6() {
				return SubnetFile{}, fmt.Errorf("LENO_%sNETWORK=%q is not a range of addresses such as 10.5.0.0/16", family, pool)
			}
			f.Pools = append(f.Pools, p.Masked())
		}
	}
	if len(f.Gateways) == 0 {
		return SubnetFile{}, errors.New("no LENO_SUBNET and no LENO_IPV6_SUBNET in it")
	}
	var err error
	if f.MTU, err = strconv.Atoi(values["MTU"]); err != nil || f.MTU < 68 || f.MTU > 65535 {
		return SubnetFile{}, fmt.Errorf("LENO_MTU=%q is not an MTU", values["MTU"])
	}
	if f.IPMasq, err = strconv.ParseBool(cmp.Or(values["IPMASQ"], "false")); err != nil {
		return SubnetFile{}, fmt.Errorf("LENO_IPMASQ=%q is neither true nor false", values["IPMASQ"])
	}
	return f, nil
}

// Subnets returns the gateways' subnets.
func (f SubnetFile) Subnets() []netip.Prefix {
	out := make([]netip.Prefix, len(f.Gateways))
	for i, g := range f.Gateways {
		out[i] = g.Masked()
	}
	return out
}
