package cni

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// recordedGateways is what leno put on a device: the gateways of a network, and the subnet file they came
// from. Its file contains the path first, then one address per line:
//
//	/run/leno/default.env
//	10.5.34.1/24
//	fd00:5:0:22::1/64
type recordedGateways struct {
	SubnetFile string
	Gateways   []netip.Prefix
}

// String returns the text of the file.
func (g recordedGateways) String() string {
	var text strings.Builder
	fmt.Fprintln(&text, g.SubnetFile)
	for _, gateway := range g.Gateways {
		fmt.Fprintln(&text, gateway)
	}
	return text.String()
}

// parseGateways parses the text of the file. It ignores unknown lines.
func parseGateways(text string) recordedGateways {
	var g recordedGateways
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if p, err := netip.ParsePrefix(line); err == nil {
			g.Gateways = append(g.Gateways, p)
		} else if filepath.IsAbs(line) {
			g.SubnetFile = line
		}
	}
	return g
}

// oldGateways returns the gateways that are no longer the host's.
func (g recordedGateways) oldGateways(f facts) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(g.Gateways), func(p netip.Prefix) bool { return slices.Contains(f.Gateways, p) })
}
