package command

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/command/cni"
)

// prepareBridge takes off a bridge what a subnet that this host had left there: the
// bridge plugin would leave it, or refuse the new gateway beside it.
func prepareBridge(d cni.Delegation, f cni.Facts) error {
	if d.Bridge == "" {
		return nil
	}
	link, err := netlink.LinkByName(d.Bridge)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for %s: %w", d.Bridge, err)
	}
	if err := nameBridge(link); err != nil {
		return err
	}
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
	for _, p := range cni.Stale(d, f, have) {
		old := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		if err := netlink.AddrDel(link, old); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("take %s off %s: %w", p, d.Bridge, err)
		}
	}
	return nil
}

// nameBridge gives a bridge a hardware address that has none: one whose last port
// went before the bridge plugin had fixed the address, which it does last. From then
// on that plugin (1.9.0) would fail, because the kernel refuses an address of zeros.
func nameBridge(link netlink.Link) error {
	if slices.ContainsFunc(link.Attrs().HardwareAddr, func(b byte) bool { return b != 0 }) {
		return nil
	}
	mac := make(net.HardwareAddr, 6)
	rand.Read(mac)         // never fails
	mac[0] = mac[0]&^1 | 2 // of one device, and made here
	if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
		return fmt.Errorf("give %s the hardware address %s: %w", link.Attrs().Name, mac, err)
	}
	return nil
}

// cutOff removes the host's end of a container's interface, and with it the other
// one, if it is still the one that was remembered.
func cutOff(r cni.Record) error {
	if r.Link == "" {
		return nil
	}
	link, err := netlink.LinkByName(r.Link)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) || err == nil && (link.Type() != "veth" || !slices.Equal(link.Attrs().HardwareAddr, parseMAC(r.MAC))) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove %s: %w", r.Link, err)
	}
	return nil
}

func parseMAC(text string) net.HardwareAddr {
	mac, err := net.ParseMAC(text)
	if err != nil {
		return nil
	}
	return mac
}
