package overlay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
)

// A Device is a device of a network, which its backend makes and attaches to. It owns the device's name, alias, MTU
// and state, and knows which device the backend uses. It tells leno's device from others: one with the name is
// leno's if it is of the right kind. Any program can copy the alias, so a device of another name is leno's only if
// it is also the one in use, or if the backend can prove that leno made it.
//
// In each Apply, a backend calls Find, then Use if it makes a device or attaches to one, and then SetUp.
type Device struct {
	Name, Alias string
	IsKind      func(netlink.Link) bool // reports whether a device may be the network's

	index int // ifindex of the one in use, 0 for none
	mtu   int // that it was given; 0 for one that is new
}

// Index returns the ifindex of the device in use, 0 if there is none.
func (d *Device) Index() int { return d.index }

// Forget ends the use of the device.
func (d *Device) Forget() { d.index, d.mtu = 0, 0 }

// Own returns the device with the name, or nil if there is none. The error wraps backend.ErrForeignDevice if it is
// not leno's.
func (d *Device) Own(h *kernel.Handle) (netlink.Link, error) {
	link, err := h.Link(d.Name)
	if err != nil || link == nil || d.IsKind(link) {
		return link, err
	}
	return nil, fmt.Errorf("link %s, of kind %q: %w", d.Name, link.Type(), backend.ErrForeignDevice)
}

// Find is like Own, and gives a device that was renamed its name back. If another device already has the name, the
// renamed one is deleted, because it would keep this host's addresses, unless partial says that the wanted state is not
// fully known. isMade reports whether leno made a device of the right kind.
func (d *Device) Find(
	h *kernel.Handle, isMade func(netlink.Link) (bool, error), partial bool, report *backend.Report,
) (netlink.Link, error) {
	link, err := d.Own(h)
	if err != nil || link != nil && link.Attrs().Index == d.index {
		return link, err
	}
	renamed, err := d.Renamed(h, isMade)
	if link != nil {
		err = nil // the device is there, whatever cannot be listed
	}
	if link == nil && len(renamed) > 0 {
		was := renamed[0].Attrs().Name
		if link, err = h.Rename(renamed[0], d.Name); err != nil {
			return nil, err
		}
		report.Writes++
		addRepair(report, "device was renamed", "to "+was)
		return link, nil
	}
	if partial {
		return link, err
	}
	for _, stray := range renamed {
		err = errors.Join(err, h.DeleteLink(stray))
		report.Writes++
	}
	return link, err
}

// Renamed returns leno's devices that have the alias but not the name that goes with it.
func (d *Device) Renamed(h *kernel.Handle, isMade func(netlink.Link) (bool, error)) ([]netlink.Link, error) {
	var errs []error
	out, err := h.Links(context.Background(), func(l netlink.Link) bool {
		if l.Attrs().Alias != d.Alias || l.Attrs().Name == d.Name || !d.IsKind(l) {
			return false
		}
		made, err := isMade(l)
		errs = append(errs, err)
		return made || l.Attrs().Index == d.index
	})
	return out, errors.Join(append(errs, err)...)
}

// Use records which device the backend has made or attached to. Unless that is the first, it reports why another one
// was needed: another had the name, for which why is a reason or "", or none had it.
func (d *Device) Use(link netlink.Link, replaced bool, why string, report *backend.Report) {
	index, fault := link.Attrs().Index, "device was deleted"
	if index == d.index {
		fault = "device was detached"
	} else if replaced {
		fault = "device was replaced"
	}
	if d.index != 0 {
		addRepair(report, fault, why)
	}
	if index != d.index {
		d.index, d.mtu = index, 0
	}
}

// addRepair reports a repair of the device.
func addRepair(report *backend.Report, fault, detail string) {
	report.Repaired = append(report.Repaired, backend.Repair{Part: backend.Device, Fault: fault, Detail: detail})
}

// IsNew reports whether the device in use was not set up yet.
func (d *Device) IsNew() bool { return d.mtu == 0 }

// Fix corrects a setting of the device if it is wrong. If the device is not new, that is the repair of a fault,
// unless the fault is "".
func (d *Device) Fix(isWrong bool, set func() error, fault, detail string, report *backend.Report) error {
	if !isWrong {
		return nil
	}
	if err := set(); err != nil {
		return err
	}
	report.Writes++
	if fault != "" && !d.IsNew() {
		addRepair(report, fault, detail)
	}
	return nil
}

// SetUp sets the MTU and the alias of the device in use, removes it from a bridge or VRF and brings it up, where
// necessary, and makes it accept packets whose replies leave by another device of the network. port is the UDP port
// that the kernel opens for the device, 0 for none. bare is true for a device that is new or was down: it has no
// routes, and no IPv6 addresses.
func (d *Device) SetUp(
	h *kernel.Handle, link netlink.Link, s backend.State, port int, report *backend.Report,
) (bare bool, err error) {
	have := link.Attrs()
	isDown := have.Flags&net.FlagUp == 0
	fault := "device had another MTU"
	if d.mtu != s.MTU {
		fault = "" // another one is wanted now
	}
	mtuErr := d.Fix(have.MTU != s.MTU, func() error { return h.SetMTU(link, s.MTU) },
		fault, fmt.Sprintf("%d instead of %d", have.MTU, s.MTU), report)
	master := ""
	if m, err := net.InterfaceByIndex(have.MasterIndex); err == nil {
		master = m.Name
	}
	masterErr := d.Fix(have.MasterIndex != 0, func() error { return kernel.RemoveMaster(h, link) },
		"device had a master", master, report)
	upErr := d.Fix(isDown, func() error { return h.SetUp(link) }, "device was down", "", report)
	if errors.Is(upErr, unix.EADDRINUSE) {
		upErr = kernel.PortInUse(port, d.Name)
	}
	aliasErr := d.Fix(have.Alias != d.Alias, func() error { return h.SetAlias(link, d.Alias) },
		"device had another alias", fmt.Sprintf("%q", have.Alias), report)
	bare = isDown || d.IsNew()
	d.mtu = s.MTU
	if len(s.Elsewhere) > 0 {
		// Packets may still arrive from peers whose routes lead elsewhere, because no two hosts change their routes
		// at the same moment. The device keeps the setting afterwards: when the last packet has arrived is unknown.
		var changed bool
		if changed, err = kernel.AcceptAsymmetric(d.Name); changed {
			report.Writes++
		}
	}
	return bare, errors.Join(mtuErr, masterErr, upErr, aliasErr, err)
}

// Remove deletes the device, and with it everything attached to it. Another program's device of that name stays.
func (d *Device) Remove(h *kernel.Handle, report *backend.Report) error {
	d.Forget()
	link, err := d.Own(h)
	if errors.Is(err, backend.ErrForeignDevice) {
		return nil
	}
	if err != nil || link == nil {
		return err
	}
	if err := h.DeleteLink(link); err != nil {
		return err
	}
	report.Writes++
	return nil
}

// IsTUN reports whether a device is a TUN device.
func IsTUN(link netlink.Link) bool {
	tuntap, ok := link.(*netlink.Tuntap)
	return ok && tuntap.Mode == netlink.TUNTAP_MODE_TUN
}

// HasAddress returns a function that reports whether a device has an address that the network's device should have.
// It is what proves that leno made a device without neighbours.
func HasAddress(h *kernel.Handle, subnets []netip.Prefix) func(netlink.Link) (bool, error) {
	return func(link netlink.Link) (bool, error) {
		for addr := range HostAddresses(subnets) {
			if has, err := h.HasAddr(link.Attrs().Index, addr.Addr()); has || err != nil {
				return has, err
			}
		}
		return false, nil
	}
}
