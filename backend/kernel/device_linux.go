package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/lenonet/leno/backend"
)

// A TunnelDevice describes a network's device without neighbours, such as a TUN. Any program can copy its alias, so a
// device of another name is leno's only if it is also the one in use, or has one of this host's addresses.
type TunnelDevice struct {
	Name, Alias string
	Index       int                     // ifindex of the one that this process uses, 0 for none
	Addrs       []netip.Prefix          // that it should have
	IsKind      func(netlink.Link) bool // reports whether a device may be leno's
}

// isMade reports whether leno made a device that has the alias.
func (h *Handle) isMade(d TunnelDevice, link netlink.Link) (bool, error) {
	if !d.IsKind(link) || link.Attrs().Index == d.Index {
		return d.IsKind(link), nil
	}
	for _, addr := range d.Addrs {
		if has, err := h.HasAddr(link.Attrs().Index, addr.Addr()); has || err != nil {
			return has, err
		}
	}
	return false, nil
}

// FindDevice returns the device with the name, or nil when there is none. A device that was renamed gets its name back.
// If another device already has the name, the renamed one is deleted, because it would keep this host's addresses.
func (h *Handle) FindDevice(d TunnelDevice, report *backend.Report) (netlink.Link, error) {
	link, err := h.Link(d.Name)
	made := func(l netlink.Link) (bool, error) { return h.isMade(d, l) }
	switch {
	case err != nil:
		return nil, err
	case link == nil:
		link, was, err := h.Reclaim(d.Name, d.Alias, made)
		if link != nil {
			report.Writes++
			report.Healed = append(report.Healed, backend.Repair{Part: backend.Device, Fault: "device was renamed",
				Detail: "to " + was})
		}
		return link, err
	case link.Attrs().Index == d.Index || !d.IsKind(link):
		return link, nil
	}
	renamed, err := h.Renamed(d.Name, d.Alias, made)
	for _, stray := range renamed {
		err = errors.Join(err, h.DeleteLink(stray))
		report.Writes++
	}
	return link, err
}

// AcceptElsewhere calls AcceptAsymmetric for a device if the routes to some of its peers lead elsewhere. Their packets
// may still arrive on it, because no two hosts change their routes at the same moment. The device keeps the setting
// afterwards: when the last packet has arrived is unknown.
func AcceptElsewhere(link string, elsewhere []netip.Prefix, report *backend.Report) error {
	if len(elsewhere) == 0 {
		return nil
	}
	changed, err := AcceptAsymmetric(link)
	if changed {
		report.Writes++
	}
	return err
}

// SetUpDevice sets the MTU and the alias of a device and brings it up, where it differs. It comes before addresses and
// routes, which a device that is down does not have. It reports the differences as repairs if known is set: the device
// has had these settings before.
func (h *Handle) SetUpDevice(link netlink.Link, mtu int, alias string, known bool, report *backend.Report) error {
	var errs []error
	fix := func(wrong bool, mend func() error, fault, detail string) {
		if !wrong {
			return
		}
		if err := mend(); err != nil {
			errs = append(errs, err)
			return
		}
		report.Writes++
		if known {
			report.Healed = append(report.Healed, backend.Repair{Part: backend.Device, Fault: fault, Detail: detail})
		}
	}
	have := link.Attrs()
	fix(have.MTU != mtu, func() error { return h.SetMTU(link, mtu) },
		"device had another MTU", fmt.Sprintf("%d instead of %d", have.MTU, mtu))
	fix(have.Flags&net.FlagUp == 0, func() error { return h.SetUp(link) }, "device was down", "")
	fix(have.Alias != alias, func() error { return h.SetAlias(link, alias) },
		"device had another alias", fmt.Sprintf("%q", have.Alias))
	return errors.Join(errs...)
}
