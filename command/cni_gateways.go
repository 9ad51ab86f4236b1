package command

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
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/command/cni"
)

// takeOldOff takes off a bridge what a subnet that this host had left there.
func takeOldOff(link netlink.Link, d cni.Delegation, f cni.Facts) error {
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", d.Bridge, err)
	}
	var have []netip.Prefix
	for _, a := range addrs {
		ones, _ := a.Mask.Size()
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			have = append(have, netip.PrefixFrom(ip.Unmap(), ones))
		}
	}
	given, err := givenGateways(d)
	if err != nil {
		return err
	}
	for _, p := range cni.Stale(d, f, have, given) {
		if err := netlink.AddrDel(link, &netlink.Addr{IPNet: ipNet(p)}); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("take %s off %s: %w", p, d.Bridge, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// settleBridge has the gateways answer at once: an IPv6 address that has just been put
// on a bridge is tentative for a second or two, and packets to it are lost. Nobody else
// can have it, for the subnet is this host's, so it is put there again without asking
// for duplicates.
func settleBridge(d cni.Delegation, f cni.Facts) error {
	link, err := findBridge(d.Bridge)
	if err != nil || link == nil {
		return err
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", d.Bridge, err)
	}
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		i := slices.IndexFunc(f.Gateways, func(g netip.Prefix) bool { return g.Addr() == ip })
		if i < 0 || a.Flags&unix.IFA_F_TENTATIVE == 0 {
			continue
		}
		// Another call may be doing the same.
		err := netlink.AddrDel(link, &netlink.Addr{IPNet: ipNet(f.Gateways[i])})
		if err == nil || errors.Is(err, unix.EADDRNOTAVAIL) {
			err = netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(f.Gateways[i]), Flags: unix.IFA_F_NODAD})
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("put %s on %s: %w", f.Gateways[i], d.Bridge, err)
		}
	}
	return nil
}

// givenGateways are those that leno has put on a bridge that may be somebody else's.
func givenGateways(d cni.Delegation) ([]netip.Prefix, error) {
	if d.Own {
		return nil, nil
	}
	text, err := os.ReadFile(d.GatewayFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []netip.Prefix
	for word := range strings.FieldsSeq(string(text)) {
		if p, err := netip.ParsePrefix(word); err == nil {
			out = append(out, p)
		}
	}
	return out, nil
}

// rememberGateways writes down what is about to be put on a bridge that may be
// somebody else's. What was there before has been taken off it.
func rememberGateways(d cni.Delegation, f cni.Facts) error {
	if d.Own || d.Bridge == "" {
		return nil
	}
	var text strings.Builder
	for _, g := range f.Gateways {
		fmt.Fprintln(&text, g)
	}
	path := d.GatewayFile()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return replaceFile(path, []byte(text.String()))
}

// tidied does something and then takes off the network's bridge what a subnet that
// this host had left there: when no container comes after the change, ADD is not
// there to do it, and packets for the next owner of that subnet would stay here.
func (p *cniPlugin) tidied(do func(context.Context, *skel.CmdArgs) error) func(context.Context, *skel.CmdArgs) error {
	return func(ctx context.Context, args *skel.CmdArgs) error {
		if err := do(ctx, args); err != nil {
			return err
		}
		c, err := cni.Parse(args.StdinData)
		if err != nil {
			return nil // which did not keep it from being done
		}
		network, path := c.NetworkOfFile(), c.SubnetFile
		if path == "" {
			path = p.usualFile(network)
		}
		// Nobody is asked, and nothing is said: containers have to end whatever is wrong.
		f, err := p.readFacts(network, path, "")
		if err != nil {
			return nil
		}
		d, err := cni.Delegate(c, f)
		if err != nil {
			return nil
		}
		if link, err := findBridge(d.Bridge); err == nil && link != nil {
			_ = takeOldOff(link, d, f)
		}
		return nil
	}
}
