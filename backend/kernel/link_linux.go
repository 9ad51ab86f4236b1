package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link finds a device by name; nil when there is none.
func (h *Handle) Link(name string) (netlink.Link, error) {
	link, err := h.nl.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find link %s: %w", name, err)
	}
	return link, nil
}

// AddLink creates a device and returns it as the kernel shows it.
func (h *Handle) AddLink(link netlink.Link) (netlink.Link, error) {
	name := link.Attrs().Name
	if err := h.nl.LinkAdd(link); err != nil {
		return nil, fmt.Errorf("create link %s: %w", name, err)
	}
	made, err := h.Link(name)
	if err == nil && made == nil {
		err = fmt.Errorf("create link %s: gone again", name)
	}
	return made, err
}

// ModifyLink changes what is set in link of the device with its index.
func (h *Handle) ModifyLink(link netlink.Link) error {
	if err := h.nl.LinkModify(link); err != nil {
		return fmt.Errorf("change link %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// DeleteLink removes a device; one that is gone already is no error.
func (h *Handle) DeleteLink(link netlink.Link) error {
	if err := h.nl.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// SetMTU sets a device's MTU in bytes.
func (h *Handle) SetMTU(link netlink.Link, mtu int) error {
	if err := h.nl.LinkSetMTU(link, mtu); err != nil {
		return fmt.Errorf("set mtu %d of link %s: %w", mtu, link.Attrs().Name, err)
	}
	return nil
}

// SetMAC sets a device's address. The kernel drops the link's permanent IPv4
// neighbours with it.
func (h *Handle) SetMAC(link netlink.Link, mac MAC) error {
	if err := h.nl.LinkSetHardwareAddr(link, net.HardwareAddr(mac[:])); err != nil {
		return fmt.Errorf("set address %s of link %s: %w", mac, link.Attrs().Name, err)
	}
	return nil
}

// SetUp brings a device up.
func (h *Handle) SetUp(link netlink.Link) error {
	if err := h.nl.LinkSetUp(link); err != nil {
		return fmt.Errorf("set link %s up: %w", link.Attrs().Name, err)
	}
	return nil
}

// HasAddr says whether a link carries an address.
func (h *Handle) HasAddr(link int, addr netip.Addr) (bool, error) {
	found, err := h.nl.AddrList(indexed(link), netlink.FAMILY_ALL)
	if err != nil {
		return false, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range found {
		if toAddr(a.IP) == addr {
			return true, nil
		}
	}
	return false, nil
}

// indexed is a link known by its index alone.
func indexed(link int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: link}}
}
