package cleanup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
)

// findBridges adds the bridges that leno-cni made: those with the name of a network's bridge, and a record in
// CNIDir/bridges/NETWORK of the gateways on them. Otherwise the route of a host that gets the subnet later would be
// refused here. The gateways on another bridge are reported: only the program that made it knows what it is for.
func (f *kernelFinder) findBridges(ctx context.Context) {
	records, err := filepath.Glob(filepath.Join(f.host.o.CNIDir, "bridges", "*", "*"))
	if err != nil || len(records) == 0 {
		return
	}
	links, err := f.handle.Links(ctx, func(netlink.Link) bool { return true })
	if err != nil {
		f.list.addLeft(Leftover{Kind: Bridge, Name: "any"}, err)
		return
	}
	for _, record := range records {
		network, name := filepath.Base(filepath.Dir(record)), filepath.Base(record)
		i := slices.IndexFunc(links, func(link netlink.Link) bool { return link.Attrs().Name == name })
		if !f.host.isWanted(network) || i < 0 {
			continue // leno-cni in another network namespace may have the same directory
		}
		gateways := gatewaysOn(links[i], record)
		l := Leftover{Kind: Bridge, Name: name, Network: network, Detail: strings.Join(gateways, ", ")}
		switch {
		case links[i].Type() == "bridge" && name == backend.BridgeName(network):
			if err := checkUnused(links, links[i]); err != nil {
				f.list.addLeft(l, err)
				continue
			}
			f.list.add(l, func(ctx context.Context) error {
				err := deleteUnused(ctx, f.handle, links[i])
				if err == nil {
					_ = os.Remove(record) // it is gone at the next boot in any case
					_ = os.Remove(filepath.Dir(record))
				}
				return err
			})
		case len(gateways) > 0:
			f.list.addLeft(l, fmt.Errorf("leno-cni did not make it, but gave it an address of the network: "+
				"`ip address del %s dev %s`", gateways[0], name))
		}
	}
}

// gatewaysOn returns the addresses of a device that a record of leno-cni lists, one a line.
func gatewaysOn(link netlink.Link, record string) (out []string) {
	text, err := os.ReadFile(record)
	if err != nil {
		return nil
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil // it has just gone
	}
	for _, a := range addrs {
		if p := kernel.ToPrefix(a.IPNet).String(); slices.Contains(strings.Fields(string(text)), p) {
			out = append(out, p)
		}
	}
	return out
}

// checkUnused returns an error if a bridge has ports.
func checkUnused(links []netlink.Link, bridge netlink.Link) error {
	for _, link := range links {
		if link.Attrs().MasterIndex == bridge.Attrs().Index {
			return fmt.Errorf("a container uses it by %s: end the container first", link.Attrs().Name)
		}
	}
	return nil
}

// deleteUnused deletes a bridge, unless a container has started since it was found.
func deleteUnused(ctx context.Context, handle *kernel.Handle, bridge netlink.Link) error {
	links, err := handle.Links(ctx, func(netlink.Link) bool { return true })
	if err == nil {
		err = checkUnused(links, bridge)
	}
	if err != nil {
		return err
	}
	return handle.DeleteLink(bridge)
}
