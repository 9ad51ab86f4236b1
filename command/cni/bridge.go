package cni

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// prepareBridge brings an existing bridge into the state that the bridge plugin would give it for
// the current network. The plugin itself would leave the remains of an earlier subnet on it, or
// reject the new gateway next to them.
func prepareBridge(d delegation, f facts) error {
	link, err := findDevice(d.Bridge)
	if err != nil {
		return err
	}
	if link != nil {
		if err := ensureHardwareAddr(link); err != nil {
			return err
		}
		// Otherwise it would forever keep the smallest MTU of its ports when it was made.
		if d.Own && link.Attrs().MTU != d.MTU {
			if err := netlink.LinkSetMTU(link, d.MTU); err != nil {
				return fmt.Errorf("give %s the MTU %d: %w", d.Bridge, d.MTU, err)
			}
		}
	}
	if d.Gateway == "" {
		return nil
	}
	if err := removeStaleAddresses(d, f); err != nil {
		return err
	}
	return recordGateways(d, f)
}

// ensureHardwareAddr sets a hardware address on a bridge that has none. A bridge has none if its last port
// was removed before the bridge plugin had fixed the address, which is its last step. After that
// the plugin (1.9.0) would fail, because the kernel rejects an all-zero address.
func ensureHardwareAddr(link netlink.Link) error {
	if slices.ContainsFunc(link.Attrs().HardwareAddr, func(b byte) bool { return b != 0 }) {
		return nil
	}
	mac := make(net.HardwareAddr, 6)
	rand.Read(mac)         // never fails
	mac[0] = mac[0]&^1 | 2 // unicast, locally administered
	if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
		return fmt.Errorf("give %s the hardware address %s: %w", link.Attrs().Name, mac, err)
	}
	return nil
}

// findHostLink returns the host's end of a container's interface, or nil if there is none or it is not the recorded
// one any more.
func findHostLink(r record) (netlink.Link, error) {
	link, err := findDevice(r.Link)
	mac, _ := net.ParseMAC(r.MAC) // nil if it is not known
	if err != nil || link == nil || link.Type() != "veth" || !slices.Equal(link.Attrs().HardwareAddr, mac) {
		return nil, err
	}
	return link, nil
}

// removeHostLink removes the host's end of a container's interface, and the other end with it.
func removeHostLink(r record) error {
	link, err := findHostLink(r)
	if err != nil || link == nil {
		return err
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove %s: %w", r.Link, err)
	}
	return nil
}
