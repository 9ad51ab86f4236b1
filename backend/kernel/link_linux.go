package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
)

// Link returns the device with the given name, or nil when there is none.
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

// Rename renames a device, and returns it. Before Linux 6.2 a device must be down for that, so Rename takes it down if
// necessary.
func (h *Handle) Rename(link netlink.Link, name string) (netlink.Link, error) {
	err := h.nl.LinkSetName(link, name)
	if errors.Is(err, unix.EBUSY) {
		if err = h.nl.LinkSetDown(link); err == nil {
			err = h.nl.LinkSetName(link, name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("rename link %s to %s: %w", link.Attrs().Name, name, err)
	}
	return existing(h, name)
}

// existing returns a device that has just been made or renamed.
func existing(h *Handle, name string) (netlink.Link, error) {
	link, err := h.Link(name)
	if err == nil && link == nil {
		err = fmt.Errorf("link %s was made, and is gone again", name)
	}
	return link, err
}

// SetAlias sets a device's alias.
func (h *Handle) SetAlias(link netlink.Link, alias string) error {
	if err := h.nl.LinkSetAlias(link, alias); err != nil {
		return fmt.Errorf("set alias of link %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// AddLink creates a device and returns it as the kernel reports it. The error wraps backend.ErrNoSuchKind if the kernel
// has no devices of that kind.
func (h *Handle) AddLink(link netlink.Link) (netlink.Link, error) {
	name := link.Attrs().Name
	err := h.nl.LinkAdd(link)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = fmt.Errorf("%w: %w", err, backend.ErrNoSuchKind)
	}
	if err != nil {
		return nil, fmt.Errorf("create link %s: %w", name, err)
	}
	return existing(h, name)
}

// RemoveMaster removes a device from the bridge or VRF that it belongs to.
func RemoveMaster(h *Handle, link netlink.Link) error {
	if err := h.nl.LinkSetNoMaster(link); err != nil {
		return fmt.Errorf("remove the master of link %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// ChangeVXLAN switches learning off and changes the underlay device and the local address of a
// VXLAN device, and resets the TTL and the TOS of its packets to the default. The address must be of the same family as
// the old one; another family needs a new device. The library's own LinkModify sends flags that the kernel refuses to
// change, even to the same value.
func (h *Handle) ChangeVXLAN(ctx context.Context, link netlink.Link, parent int, local netip.Addr) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(link.Attrs().Index)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_VXLAN_LINK, nl.Uint32Attr(uint32(parent)))
	for _, kind := range []int{nl.IFLA_VXLAN_LEARNING, nl.IFLA_VXLAN_TTL, nl.IFLA_VXLAN_TOS} {
		data.AddRtAttr(kind, nl.Uint8Attr(0))
	}
	if local.Is4() {
		data.AddRtAttr(nl.IFLA_VXLAN_LOCAL, local.AsSlice())
	} else {
		data.AddRtAttr(nl.IFLA_VXLAN_LOCAL6, local.AsSlice())
	}
	req.AddData(info)
	if errs := h.batch.write(ctx, []*nl.NetlinkRequest{req}); errs != nil {
		return fmt.Errorf("change link %s: %w", link.Attrs().Name, errs[0])
	}
	return nil
}

// DeleteLink removes a device. It is no error if the device is already gone.
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

// SetMAC sets a device's MAC address. The kernel then drops the link's permanent IPv4 neighbours.
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

// HasAddr reports whether a link carries an address.
func (h *Handle) HasAddr(link int, addr netip.Addr) (bool, error) {
	found, err := listing(context.Background(),
		func() ([]netlink.Addr, error) { return h.nl.AddrList(indexed(link), netlink.FAMILY_ALL) })
	if err != nil {
		return false, fmt.Errorf("list addresses: %w", err)
	}
	return slices.ContainsFunc(found, func(a netlink.Addr) bool { return ToAddr(a.IP) == addr }), nil
}

// indexed returns a link of which only the index is known.
func indexed(link int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: link}}
}

// Links returns the devices for which ours returns true.
func (h *Handle) Links(ctx context.Context, ours func(netlink.Link) bool) ([]netlink.Link, error) {
	return listing(ctx, func() ([]netlink.Link, error) {
		all, err := h.nl.LinkList()
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("list links: %w", err)
		}
		return slices.DeleteFunc(all, func(link netlink.Link) bool { return !ours(link) }), err
	})
}
