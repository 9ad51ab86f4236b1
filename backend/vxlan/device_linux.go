package vxlan

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
)

// ensured describes what ensure found and did.
type ensured struct {
	index  int
	writes int
	faults []backend.Repair // how the device differed from the wanted one
	bare   bool             // whether the device's entries were lost with it
	note   string           // about checksum offload
}

func (e *ensured) found(fault, detail string) {
	e.writes++
	e.faults = append(e.faults, backend.Repair{Part: backend.Device, Fault: fault, Detail: detail})
}

// ensure makes the device agree with want. With partial set, it leaves a device that would have to
// be replaced as it is, because the device may be newer than want. After an error the device may
// still be usable; index is 0 when there is none.
func (b *vxlan) ensure(ctx context.Context, want device, partial bool) (ensured, error) {
	link, err := b.own(want.name)
	if err != nil {
		return ensured{}, err
	}
	var e ensured
	if link == nil {
		var was string
		if link, was, err = b.kernel.Reclaim(want.name, want.alias, want.isMade); err != nil {
			return e, err
		}
		if link != nil {
			e.found("device was renamed", "to "+was)
		}
	}
	var have device
	if link != nil {
		have = shown(link)
		have.vrf = b.vrf(link, want)
		if reason := have.needsNew(want); reason != "" {
			if partial {
				return e, fmt.Errorf("link %s has another %s than it had; it is left alone until the store was read",
					want.name, reason)
			}
			if err := b.kernel.DeleteLink(link); err != nil {
				return e, err
			}
			e.found("device was replaced", "it had another "+reason)
			link = nil
		}
	} else {
		e.faults = append(e.faults, backend.Repair{Part: backend.Device, Fault: "device was deleted"})
	}
	if link == nil {
		if link, err = b.make(ctx, want); err != nil {
			return e, err
		}
		e.writes++
		e.bare = true
		have = shown(link)
	}
	b.bound[link.Attrs().Index] = want.vrf
	e.index = link.Attrs().Index
	return e, b.fixAll(ctx, link, have, want, &e)
}

// vrf returns the VRF of the socket that a device receives by. The kernel binds the socket when the
// device comes up, and leaves it there when the underlay moves to another VRF: the device then
// receives nothing. It reports only which sockets exist, and networks may share them. So what this
// process has seen before decides, and in doubt another VRF.
func (b *vxlan) vrf(link netlink.Link, want device) int {
	if known, ok := b.bound[link.Attrs().Index]; ok {
		return known
	}
	found, _ := kernel.SocketDevices(want.port, want.local) // a kernel that cannot tell is taken to have it right
	for _, vrf := range found {
		if vrf != want.vrf {
			return vrf
		}
	}
	return want.vrf
}

// isMade reports whether leno made a device, which has another name, as the wanted one.
func (want device) isMade(l netlink.Link) (bool, error) { return shown(l).made(want), nil }

// fixAll corrects what can be changed in place. A device that was just created differs only where
// the kernel overrode the request, and that is not reported.
func (b *vxlan) fixAll(ctx context.Context, link netlink.Link, have, want device, e *ensured) error {
	made := e.bare
	var errs []error
	for _, what := range have.fixes(want) {
		if err := b.fix(ctx, link, what, want); err != nil {
			errs = append(errs, err)
			continue
		}
		e.writes++
		if !made {
			e.faults = append(e.faults, have.fault(what, want))
			e.bare = e.bare || what == fixState || what == fixAddress
		}
	}
	on, reason := chooseChecksum(b.options.Checksum, b.release(), b.drivers(want.below, made))
	changed, err := b.checksum(want.name, on)
	e.note, err = checksumOutcome(b.options.Checksum, on, reason, err)
	if changed {
		e.writes++
		if !made {
			e.faults = append(e.faults, backend.Repair{Part: backend.Device, Fault: "device had another checksum offload"})
		}
	}
	return errors.Join(append(errs, err)...)
}

func (b *vxlan) fix(ctx context.Context, link netlink.Link, what string, want device) error {
	switch what {
	case fixUnderlay:
		return b.kernel.ChangeVXLAN(ctx, link, want.parent, want.local)
	case fixAddress:
		return b.kernel.SetMAC(link, want.mac)
	case fixMTU:
		return b.kernel.SetMTU(link, want.mtu)
	case fixAlias:
		return b.kernel.SetAlias(link, want.alias)
	}
	err := b.kernel.SetUp(link)
	if errors.Is(err, unix.EADDRINUSE) {
		return kernel.PortInUse(want.port, want.name)
	}
	return err
}

// own returns the device with one of our names, nil when there is none. A device of another kind
// belongs to another program and is an error. So is a second device with another VNI or port while the network has two
// backends, because their second devices have the same name.
func (b *vxlan) own(name string) (netlink.Link, error) {
	link, err := b.kernel.Link(name)
	if err != nil || link == nil {
		return nil, err
	}
	v, ok := link.(*netlink.Vxlan)
	if !ok {
		return nil, fmt.Errorf("link %s, of kind %q: %w", name, link.Type(), backend.ErrForeignDevice)
	}
	if b.beside && name == b.secondName() && (v.VxlanId != b.options.VNI || v.Port != b.options.Port) {
		return nil, fmt.Errorf("link %s, of vni %d on port %d: %w", name, v.VxlanId, v.Port, backend.ErrForeignDevice)
	}
	return link, nil
}

func (b *vxlan) make(ctx context.Context, want device) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = want.name
	attrs.Alias = want.alias
	attrs.MTU = want.mtu
	attrs.HardwareAddr = net.HardwareAddr(want.mac[:])
	link, err := b.kernel.AddLink(&netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: want.vni, Port: want.port, GBP: want.gbp,
		VtepDevIndex: want.parent, SrcAddr: want.local.AsSlice(),
	})
	if errors.Is(err, unix.EEXIST) {
		others, _ := b.excluding(ctx, want) // without a list of the devices, none is named
		return nil, explain(err, want, others)
	}
	return link, explain(err, want, nil)
}

// excluding returns the devices beside which the wanted one cannot exist.
func (b *vxlan) excluding(ctx context.Context, want device) ([]netlink.Link, error) {
	return b.kernel.Links(ctx, func(l netlink.Link) bool { return shown(l).excludes(want) })
}

// explain adds to the kernel's error for a new device what it means. others are the devices that
// exclude it.
func explain(err error, want device, others []netlink.Link) error {
	switch {
	case errors.Is(err, unix.EEXIST) && len(others) > 0:
		return fmt.Errorf("%w: %s uses vni %d on port %d", err, others[0].Attrs().Name, want.vni, want.port)
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: another device may use vni %d on port %d", err, want.vni, want.port)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %w", err, backend.ErrNoSuchKind)
	}
	return err
}

// shown converts the device as the kernel reports it.
func shown(link netlink.Link) device {
	v, ok := link.(*netlink.Vxlan)
	if !ok {
		return device{other: link.Type()}
	}
	d := device{
		name: v.Name,
		vni:  v.VxlanId, port: v.Port, gbp: v.GBP, parent: v.VtepDevIndex, learning: v.Learning,
		alias: v.Alias, mtu: v.MTU, up: v.Flags&net.FlagUp != 0,
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

// release returns the kernel's release, which is read once.
func (b *vxlan) release() string {
	if b.kernelRelease == "" {
		b.kernelRelease = kernel.Release()
	}
	return b.kernelRelease
}

// drivers returns the drivers of the devices below ours, and reads them again when those devices
// change.
func (b *vxlan) drivers(below string, again bool) []string {
	if b.options.Checksum == checksumAuto && (again || b.below != below) {
		found, err := b.kernel.Drivers(strings.Fields(below))
		if err != nil {
			return b.driversBelow // the next call asks again
		}
		b.below, b.driversBelow = below, found
	}
	return b.driversBelow
}

// checksum switches a device's checksum offload.
func (b *vxlan) checksum(link string, want bool) (changed bool, err error) {
	have, err := b.txChecksum(link)
	if err != nil || have == want {
		return false, err
	}
	if err := b.setTxChecksum(link, want); err != nil {
		return false, err
	}
	return true, nil
}
