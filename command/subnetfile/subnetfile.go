// Package subnetfile reads the file in which the agent describes a network to container runtimes,
// for every command that needs it. It does not know where the file is or how its content is used.
package subnetfile

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// File is the content of a subnet file.
type File struct {
	// Gateways are this host's subnets with the bridge's address (10.5.34.1/24), IPv4 first, at
	// most one per family.
	Gateways []netip.Prefix
	// Pools are the address ranges of the whole network, in the same order. A family whose line is
	// missing has none; a family in flannel's files may have several.
	Pools  []netip.Prefix
	MTU    int  // bytes
	IPMasq bool // the agent masquerades what leaves the overlay
}

// Parse parses a file of leno or flannel: lines KEY=value that begin with LENO_, or the same with
// FLANNEL_. Lines of other programs are skipped. An invalid line of these is an error, and so is a
// file without a subnet or MTU.
func Parse(text string) (File, error) {
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
	var f File
	for _, family := range []string{"", "IPV6_"} {
		gateway, pool := values[family+"SUBNET"], values[family+"NETWORK"]
		if gateway != "" {
			p, err := netip.ParsePrefix(gateway)
			if a := p.Addr(); err != nil || a.Is6() != (family != "") || a.Is4In6() || a == p.Masked().Addr() {
				return File{}, fmt.Errorf("LENO_%sSUBNET=%q is not the address of a bridge such as 10.5.34.1/24", family, gateway)
			}
			f.Gateways = append(f.Gateways, p)
		}
		if pool == "" {
			continue
		}
		for word := range strings.SplitSeq(pool, ",") { // flannel may write several
			p, err := netip.ParsePrefix(strings.TrimSpace(word))
			if a := p.Addr(); err != nil || a.Is6() != (family != "") || a.Is4In6() {
				return File{}, fmt.Errorf("LENO_%sNETWORK=%q is not a range of addresses such as 10.5.0.0/16", family, pool)
			}
			f.Pools = append(f.Pools, p.Masked())
		}
	}
	if len(f.Gateways) == 0 {
		return File{}, errors.New("no LENO_SUBNET and no LENO_IPV6_SUBNET in it")
	}
	var err error
	if f.MTU, err = strconv.Atoi(values["MTU"]); err != nil || f.MTU < 68 || f.MTU > 65535 {
		return File{}, fmt.Errorf("LENO_MTU=%q is not an MTU", values["MTU"])
	}
	if f.IPMasq, err = strconv.ParseBool(cmp.Or(values["IPMASQ"], "false")); err != nil {
		return File{}, fmt.Errorf("LENO_IPMASQ=%q is neither true nor false", values["IPMASQ"])
	}
	return f, nil
}

// Subnets returns the gateways' subnets.
func (f File) Subnets() []netip.Prefix {
	out := make([]netip.Prefix, len(f.Gateways))
	for i, g := range f.Gateways {
		out[i] = g.Masked()
	}
	return out
}
