package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// LinksInto returns the sorted names of the devices that have an address in a subnet and lead to others in it, such as
// the bridge of its containers, in the network namespace of the calling thread. A network's own device has a single
// address.
func LinksInto(subnet netip.Prefix) (names []string, err error) {
	h, err := newHandle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	found, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range found {
		bits, of := a.Mask.Size()
		if bits == of || !subnet.Contains(ToAddr(a.IP)) {
			continue
		}
		if link, err := net.InterfaceByIndex(a.LinkIndex); err == nil { // otherwise it is gone again
			names = append(names, link.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
