package cni

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// GatewayDir returns the directory of the files NETWORK/DEVICE, one for each device that was given
// gateways of a network.
func GatewayDir(dataDir string) string { return filepath.Join(dataDir, "bridges") }

// Given is what leno put on a device: the gateways of a network, and the subnet file they came
// from. Its file contains the path first, then one address per line:
//
//	/run/leno/default.env
//	10.5.34.1/24
//	fd00:5:0:22::1/64
type Given struct {
	SubnetFile string
	Gateways   []netip.Prefix
}

// String returns the text of the file.
func (g Given) String() string {
	var text strings.Builder
	for _, line := range append([]string{g.SubnetFile}, words(g.Gateways)...) {
		fmt.Fprintln(&text, line)
	}
	return text.String()
}

// ParseGiven parses the text of the file. It ignores unknown lines.
func ParseGiven(text string) Given {
	var g Given
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

// Old returns the gateways that are no longer the host's.
func (g Given) Old(f Facts) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(g.Gateways), func(p netip.Prefix) bool { return slices.Contains(f.Gateways, p) })
}
