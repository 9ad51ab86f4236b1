package vxlan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/overlay"
)

// vtep is one of the network's devices.
type vtep struct {
	overlay.Device
	mac  kernel.MAC
	last device // wanted before; used to name repairs, and to know the VRF of its socket
}

func isVXLAN(link netlink.Link) bool { return link.Type() == "vxlan" }

// isSecond reports whether a device may be the second one. While the network has two backends, one with another VNI
// or port is not, because their second devices have the same name.
func (b *vxlan) isSecond(link netlink.Link) bool {
	d := shown(link)
	return isVXLAN(link) && (!b.beside || d.vni == b.options.VNI && d.port == b.options.Port)
}

// isMade reports whether leno made a device, which has another name, as the wanted one.
func (want device) isMade(l netlink.Link) (bool, error) { return shown(l).made(want), nil }

// existing returns the MAC address of a wanted device that exists, maybe under another name. While another program's
// device excludes the wanted one, as flannel's does, other hosts send to that device's address, and the wanted one
// takes it over when the other is gone.
func (d *vtep) existing(h *kernel.Handle, want device) (mac kernel.MAC, ok bool) {
	link, err := d.Own(h)
	if link == nil && err == nil {
		if renamed, _ := d.Renamed(h, want.isMade); len(renamed) > 0 {
			link = renamed[0]
		} else if others := d.excluding(h, want); len(others) > 0 {
			link = others[0]
		}
	}
	if link != nil {
		mac = shown(link).mac
	}
	return mac, mac.Unicast()
}

// ensure makes one of the devices agree with want. With a partial state, it leaves a device that would have to be
// replaced as it is, because the device may be newer than want. After an error the device may still be usable. It
// reports as repairs what had changed although the wanted device is the same.
func (b *vxlan) ensure(
	ctx context.Context, d *vtep, want device, s backend.State, report *backend.Report,
) (t tunnel, err error) {
	var found backend.Report
	isSame := d.last == want
	defer func() {
		report.Writes, report.Notes = report.Writes+found.Writes, append(report.Notes, found.Notes...)
		if isSame && t.link != 0 {
			report.Repaired = append(report.Repaired, found.Repaired...)
		}
	}()
	h := b.overlay.Handle
	link, err := d.Find(h, want.isMade, s.Partial, &found)
	if err != nil {
		return t, err
	}
	replaced, why := link != nil, ""
	if link != nil {
		have := shown(link)
		have.vrf = d.vrf(link, want)
		if reason := have.needsNew(want); reason != "" {
			if s.Partial {
				return t, fmt.Errorf("link %s has another %s than it had; it is left alone until the store was read",
					d.Name, reason)
			}
			if err := h.DeleteLink(link); err != nil {
				return t, err
			}
			link, why = nil, "it had another "+reason
		}
	}
	made := link == nil
	if made {
		if link, err = d.make(h, want); err != nil {
			return t, err
		}
		found.Writes++
	}
	if link.Attrs().Index != d.Index() {
		d.Use(link, replaced, why, &found)
	}
	d.last = want
	t = tunnel{device: want, link: link.Attrs().Index}
	err = b.fix(ctx, d, link, &t, s, &found)
	return t, err
}

// vrf returns the VRF of the socket that a device receives by. The kernel binds the socket when the
// device comes up, and leaves it there when the underlay moves to another VRF: the device then
// receives nothing. It reports only which sockets exist, and networks may share them. So what this
// process has seen before decides, and in doubt another VRF.
func (d *vtep) vrf(link netlink.Link, want device) int {
	if link.Attrs().Index == d.Index() {
		return d.last.vrf
	}
	found, _ := kernel.SocketDevices(want.port, want.local) // a kernel that cannot tell is taken to have it right
	for _, vrf := range found {
		if vrf != want.vrf {
			return vrf
		}
	}
	return want.vrf
}

// fix corrects what can be changed in place. A device that is new differs only where the kernel overrode the request.
func (b *vxlan) fix(
	ctx context.Context, d *vtep, link netlink.Link, t *tunnel, s backend.State, report *backend.Report,
) error {
	h, have, want := b.overlay.Handle, shown(link), t.device
	otherUnderlay, otherMAC := have.otherUnderlay(want), have.mac != want.mac
	underlayErr := d.Fix(otherUnderlay != "", func() error { return h.ChangeVXLAN(ctx, link, want.parent, want.local) },
		"device had another underlay", otherUnderlay, report)
	macErr := d.Fix(otherMAC, func() error { return h.SetMAC(link, want.mac) },
		"device had another MAC address", fmt.Sprintf("%s instead of %s", have.mac, want.mac), report)
	isNew := d.IsNew()
	s.MTU = want.mtu
	bare, err := d.SetUp(h, link, s, want.port, report)
	t.bare = bare || otherMAC // the kernel drops neighbours with the address
	note, checksumErr := b.checksum.ensure(h, d, s.Underlay, isNew, report)
	if d == &b.devices[0] {
		report.Notes = []string{note}
	}
	return errors.Join(underlayErr, macErr, err, checksumErr)
}

func (d *vtep) make(h *kernel.Handle, want device) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Alias, attrs.MTU, attrs.HardwareAddr = d.Name, d.Alias, want.mtu, net.HardwareAddr(want.mac[:])
	link, err := h.AddLink(&netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: want.vni, Port: want.port, GBP: want.gbp,
		VtepDevIndex: want.parent, SrcAddr: want.local.AsSlice(),
	})
	if !errors.Is(err, unix.EEXIST) {
		return link, err
	}
	if others := d.excluding(h, want); len(others) > 0 {
		return nil, fmt.Errorf("%w: %s uses vni %d on port %d", err, others[0].Attrs().Name, want.vni, want.port)
	}
	return nil, fmt.Errorf("%w: another device may use vni %d on port %d", err, want.vni, want.port)
}

// excluding returns the devices beside which the wanted one cannot exist, none if they cannot be listed.
func (d *vtep) excluding(h *kernel.Handle, want device) []netlink.Link {
	others, _ := h.Links(context.Background(), func(l netlink.Link) bool {
		return l.Attrs().Name != d.Name && shown(l).excludes(want)
	})
	return others
}

// shown converts the device as the kernel reports it.
func shown(link netlink.Link) device {
	v, ok := link.(*netlink.Vxlan)
	if !ok {
		return device{other: link.Type()}
	}
	d := device{
		vni: v.VxlanId, port: v.Port, gbp: v.GBP, parent: v.VtepDevIndex, learning: v.Learning, mtu: v.MTU,
		ttl: v.TTL, tos: v.TOS,
	}
	local, _ := netip.AddrFromSlice(v.SrcAddr)
	d.local = local.Unmap()
	if len(v.HardwareAddr) == len(d.mac) {
		d.mac = kernel.MAC(v.HardwareAddr)
	}
	switch {
	case v.FlowBased:
		d.other = "external control"
	case v.Group != nil:
		d.other = "default destination"
	case v.Proxy || v.RSC || v.L2miss || v.L3miss:
		d.other = "proxy or miss flags"
	case v.UDP6ZeroCSumTx:
		d.other = "zero checksums"
	}
	return d
}

// checksum owns the checksum offload of the devices.
type checksum struct {
	option  string
	release string   // of the kernel, "" before it is known
	below   []string // the devices whose drivers are known
	drivers []string // their drivers

	// The kernel's functions, replaced in tests.
	read func(link string) (bool, error)
	set  func(link string, on bool) error
}

// ensure switches a device's checksum offload as chosen, and returns a note for users.
func (c *checksum) ensure(
	h *kernel.Handle, d *vtep, u backend.Underlay, isNew bool, report *backend.Report,
) (note string, err error) {
	c.release = cmp.Or(c.release, kernel.Release())
	below := append(slices.Clone(u.Devices), u.Interface)
	if c.option == checksumAuto && (isNew || !slices.Equal(c.below, below)) {
		if found, err := h.Drivers(below); err == nil { // otherwise the next call asks again
			c.below, c.drivers = below, found
		}
	}
	on, reason := chooseChecksum(c.option, c.release, c.drivers)
	have, err := c.read(d.Name)
	if err == nil {
		fault := "device had another checksum offload"
		if isNew {
			fault = ""
		}
		err = d.Fix(have != on, func() error { return c.set(d.Name, on) }, fault, "", report)
	}
	return checksumOutcome(c.option, on, reason, err)
}
