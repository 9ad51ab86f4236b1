package foreign

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/firewall/netfilter"
)

// readBaseChains returns every base chain of this host that packets between hosts pass. list is netfilter.List, or
// netfilter.ListCounted for counters.
func readBaseChains(
	ctx context.Context, list func(context.Context, string) (map[string]netfilter.Table, error),
) (out []baseChain, err error) {
	var errs []error
	// nf_tables also has what iptables-nft wrote.
	read := map[string]bool{}
	for _, of := range []struct{ family, command string }{{"ip", "iptables"}, {"ip6", "ip6tables"}} {
		for variant, path := range netfilter.Programs(ctx, of.command) {
			tables, err := list(ctx, path)
			switch {
			case errors.As(err, new(*netfilter.UnreadableError)): // the listing of nf_tables has the other tables
			case err != nil && !netfilter.IsUnsupported(err) && !isUnneededRight(variant, err):
				errs = append(errs, err)
			}
			bases := iptablesBases(filepath.Base(path), of.family == "ip6", tables)
			if out = append(out, bases...); variant == netfilter.VariantLegacy {
				continue
			}
			for name := range tables {
				read[of.family+" "+name] = true
			}
		}
	}
	listing, err := listNFTables(ctx)
	if err != nil && !netfilter.IsUnsupported(err) {
		errs = append(errs, err)
	}
	bases := listing.bases(func(family, table string) bool { return read[family+" "+table] })
	return append(out, bases...), errors.Join(errs...)
}

// listNFTables lists the tables of nf_tables with the program nft, which understands more rules than this package does
// by itself, or without it where it is not installed.
func listNFTables(ctx context.Context) (nftListing, error) {
	path, err := exec.LookPath("nft")
	if err != nil {
		return listKernel(ctx)
	}
	text, err := netfilter.Run(ctx, "", path, "-j", "list", "ruleset")
	if err != nil {
		return nftListing{}, err
	}
	return parseListing([]byte(text))
}

// isUnneededRight reports whether a listing failed for lack of a right that the agent does not need: only root and its
// group can read the list of legacy tables, and an agent that writes no such rules runs without that right. An agent
// that writes them gets the same error in its own check.
func isUnneededRight(variant string, err error) bool {
	return variant == netfilter.VariantLegacy && errors.Is(err, unix.EPERM)
}

// readBridges returns the devices that have addresses of the host's subnets: those that containers are connected to.
func readBridges(paths []OverlayPath) (map[netip.Prefix]string, error) {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	out := map[netip.Prefix]string{}
	for _, p := range paths {
		for _, subnet := range p.Network.Subnets {
			for _, a := range addrs {
				ip, ok := netip.AddrFromSlice(a.IP)
				// The network's own device may have the subnet's first address without a prefix.
				if ones, _ := a.Mask.Size(); !ok || ones != subnet.Bits() || !subnet.Contains(ip.Unmap()) {
					continue
				}
				link, err := netlink.LinkByIndex(a.LinkIndex)
				if err == nil && !slices.Contains(p.Links, link.Attrs().Name) {
					out[subnet] = link.Attrs().Name
				}
			}
		}
	}
	return out, nil
}
