package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/state"
	"github.com/lenonet/leno/backend/kernel"
)

// removeStaleAddresses removes addresses of the host's earlier subnets from the gateways' device.
func removeStaleAddresses(d delegation, f facts) error {
	link, addrs, err := gatewayAddresses(d, netlink.FAMILY_ALL)
	if err != nil || link == nil {
		return err
	}
	var have []netip.Prefix
	for _, a := range addrs {
		have = append(have, kernel.ToPrefix(a.IPNet))
	}
	var recorded recordedGateways
	if !d.Own {
		if recorded, err = readGateways(d.gatewayFile()); err != nil {
			return err
		}
	}
	return removeAddresses(link, staleAddresses(d, f, have, recorded.Gateways))
}

// gatewayAddresses returns the gateways' device, nil if there is none, and its addresses of a family.
func gatewayAddresses(d delegation, family int) (netlink.Link, []netlink.Addr, error) {
	link, err := findDevice(d.Gateway)
	if err != nil || link == nil {
		return nil, nil, err
	}
	addrs, err := netlink.AddrList(link, family)
	if err != nil {
		return nil, nil, fmt.Errorf("addresses of %s: %w", d.Gateway, err)
	}
	return link, addrs, nil
}

// findDevice returns the device, or nil if it does not exist.
func findDevice(name string) (netlink.Link, error) {
	if name == "" {
		return nil, nil
	}
	link, err := netlink.LinkByName(name)
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for %s: %w", name, err)
	}
	return link, nil
}

// removeAddresses removes addresses from a device and ignores those that it does not have.
func removeAddresses(link netlink.Link, addrs []netip.Prefix) error {
	for _, p := range addrs {
		if err := netlink.AddrDel(link, netlinkAddr(p, 0)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove %s from %s: %w", p, link.Attrs().Name, err)
		}
	}
	return nil
}

// netlinkAddr returns an address in netlink's terms.
func netlinkAddr(p netip.Prefix, flags int) *netlink.Addr {
	mask := net.CIDRMask(p.Bits(), p.Addr().BitLen())
	return &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: mask}, Flags: flags}
}

// skipDuplicateDetection makes the gateways usable at once. A new IPv6 address on a bridge is tentative for
// a second or two, and packets to it are lost. No other host can have the address, because the
// subnet is this host's, so it is added again without duplicate detection.
func skipDuplicateDetection(d delegation, f facts) error {
	link, addrs, err := gatewayAddresses(d, netlink.FAMILY_V6)
	if err != nil || link == nil {
		return err
	}
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		i := slices.IndexFunc(f.Gateways, func(g netip.Prefix) bool { return g.Addr() == ip })
		if i < 0 || a.Flags&unix.IFA_F_TENTATIVE == 0 {
			continue
		}
		// Another call may do the same at the same time.
		err := netlink.AddrDel(link, netlinkAddr(f.Gateways[i], 0))
		if err == nil || errors.Is(err, unix.EADDRNOTAVAIL) {
			err = netlink.AddrAdd(link, netlinkAddr(f.Gateways[i], unix.IFA_F_NODAD))
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("put %s on %s: %w", f.Gateways[i], d.Gateway, err)
		}
	}
	return nil
}

// readGateways reads what was put on a device. It returns the zero value if there is no file.
func readGateways(path string) (recordedGateways, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return recordedGateways{}, err
	}
	return parseGateways(string(text)), nil
}

// recordGateways records what is about to be put on the gateways' device. Earlier addresses have
// already been removed from it.
func recordGateways(d delegation, f facts) error {
	path, text := d.gatewayFile(), recordedGateways{SubnetFile: f.Path, Gateways: f.Gateways}.String()
	if have, err := os.ReadFile(path); err == nil && string(have) == text {
		return nil
	}
	return state.WriteFile(path, []byte(text), 0o644)
}

// withTidying returns a function that calls do and then restores accept_ra of bridges and removes the
// gateways of the host's earlier subnets from all devices. Without it, if no container is added after a subnet change,
// packets for the next owner of that subnet would stay on this host.
func (p *plugin) withTidying(do func(context.Context, *skel.CmdArgs) error) func(context.Context, *skel.CmdArgs) error {
	return func(ctx context.Context, args *skel.CmdArgs) error {
		if err := do(ctx, args); err != nil {
			return err
		}
		// Ignore errors: containers have to end in any case.
		if c, err := parseForDel(args.StdinData); err == nil {
			restoreAllAcceptRA(c.DataDir)
			p.removeOldGateways(c.DataDir)
		}
		return nil
	}
}

// removeOldGateways removes old gateways from the devices. It uses what was recorded when they were added: a
// configuration need not name its network, only the agent knows a non-default path of a subnet
// file, and DEL does not ask the agent. A file that is gone has been moved; the default place is
// the only other place to look.
func (p *plugin) removeOldGateways(dataDir string) {
	dir := gatewayDir(dataDir)
	networks, _ := entries(dir)
	for _, network := range networks {
		devices, _ := entries(filepath.Join(dir, network.Name()))
		for _, device := range devices {
			recorded, err := readGateways(filepath.Join(dir, network.Name(), device.Name()))
			if err != nil {
				continue
			}
			f, err := p.readFacts(network.Name(), recorded.SubnetFile, "")
			if isNotReady(err) {
				f, err = p.readFacts(network.Name(), p.defaultSubnetFile(network.Name()), "")
			}
			if err != nil {
				continue
			}
			if link, err := findDevice(device.Name()); err == nil && link != nil {
				_ = removeAddresses(link, recorded.oldGateways(f))
			}
		}
	}
}
