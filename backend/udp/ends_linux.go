package udp

import (
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/hashicorp/go-hclog"
	"github.com/vishvananda/netlink"

	"github.com/lenonet/leno/backend"
)

// openSockets opens what the engine shall listen with when that is not what it
// has, and closes what it has. When the new ones cannot be had after address or
// port changed, the engine stays on the old ones: peers that have not heard of
// the change can still be reached.
func (b *Backend) openSockets(at netip.AddrPort, report *backend.Report) ([]Bind, error) {
	alive := b.engine.binds.alive()
	if alive && b.listen == at {
		return nil, nil
	}
	lost := !alive && b.listen == at
	if lost {
		// What is left of them holds the port.
		if err := b.engine.setBinds(); err != nil {
			return nil, fmt.Errorf("close sockets: %w", err)
		}
	}
	sockets, err := listen(at, b.queues, b.want)
	if err != nil {
		return nil, err
	}
	if err := b.engine.setBinds(); err != nil {
		return nil, errors.Join(fmt.Errorf("close the sockets before: %w", err), closeAll(sockets))
	}
	if lost {
		report.Healed = append(report.Healed, backend.Repair{Part: backend.Routes, Fault: "socket was closed"})
	}
	b.listen = at
	report.Writes++
	level := hclog.Info
	if lost || b.listen.IsValid() {
		level = hclog.Debug // it is told with what was wrong, or with the change of the underlay
	}
	b.config.Logger.Log(level, "listening", "address", at, "sockets", len(sockets), "segmentation", sockets[0].segment, "receive_offload", sockets[0].gro)
	return asEnds[Bind](sockets), nil
}

// attach opens the network's device when the engine does not read from it, and
// creates it when there is none. A device of our name that is no TUN is
// somebody else's. addrs are those that the device is to have.
func (b *Backend) attach(addrs []netip.Prefix, report *backend.Report) (netlink.Link, []Device, error) {
	name := b.config.Link
	link, err := b.named(addrs, report)
	if err != nil {
		return nil, nil, err
	}
	if link != nil && link.Attrs().Index == b.index && b.engine.devices.alive() {
		return link, nil, nil
	}
	if err := b.engine.setDevices(); err != nil {
		return nil, nil, fmt.Errorf("close tun device %s: %w", name, err)
	}
	// Once more, since the queues it showed may have been our own.
	if link, err = b.handle.Link(name); err != nil {
		return nil, nil, err
	}
	if link != nil && !isTUN(link) {
		return nil, nil, fmt.Errorf("link %s, of kind %q: %w", name, link.Type(), backend.ErrForeignDevice)
	}
	if link != nil {
		// Attaching to see would take packets from whoever is there.
		if err := onlyOurs(name, link, 0); err != nil {
			return nil, nil, err
		}
	}
	queues, err := openTUN(name, b.queues, b.want)
	if errors.Is(err, errQueues) && link != nil {
		// Made by an earlier version, for one queue.
		if err := unusedTUN(name); err != nil {
			return nil, nil, err
		}
		if err := b.handle.DeleteLink(link); err != nil {
			return nil, nil, err
		}
		report.Writes++
		queues, err = openTUN(name, b.queues, b.want)
	}
	if err != nil {
		return nil, nil, err
	}
	report.Writes++
	made, err := b.handle.Link(name)
	if err == nil {
		err = onlyOurs(name, made, len(queues))
	}
	if err != nil {
		return nil, nil, errors.Join(err, closeAll(queues))
	}
	can := queues[0].can
	fields := []any{"link", name, "queues", len(queues), "tcp_offload", can.tso, "udp_offload", can.uso}
	if queues[0].unsteered != nil {
		fields = append(fields, "one_queue_because", queues[0].unsteered)
	}
	// Again, it is told with what was wrong.
	level := hclog.Debug
	if b.index == 0 {
		level = hclog.Info
	}
	b.config.Logger.Log(level, "device attached", fields...)
	switch {
	case b.index == 0: // the first time in this process
	case made.Attrs().Index == b.index:
		report.Healed = append(report.Healed, backend.Repair{Part: backend.Device, Fault: "device was detached"})
	case link != nil:
		report.Healed = append(report.Healed, backend.Repair{Part: backend.Device, Fault: "device was replaced"})
	default:
		report.Healed = append(report.Healed, backend.Repair{Part: backend.Device, Fault: "device was deleted"})
	}
	b.index = made.Attrs().Index
	return made, asEnds[Device](queues), nil
}

func (b *Backend) alias() string { return backend.LinkAlias(b.config.Network) }

// named is the device of the network's name, nil when there is none. One that was
// renamed gets its name back, unless another has it by now: then it is deleted,
// for it would keep this host's addresses.
func (b *Backend) named(addrs []netip.Prefix, report *backend.Report) (netlink.Link, error) {
	name := b.config.Link
	link, err := b.handle.Link(name)
	made := func(l netlink.Link) (bool, error) { return b.made(l, addrs) }
	switch {
	case err != nil:
		return nil, err
	case link == nil:
		link, was, err := b.handle.Reclaim(name, b.alias(), made)
		if link != nil {
			report.Writes++
			report.Healed = append(report.Healed, backend.Repair{Part: backend.Device, Fault: "device was renamed", Detail: "to " + was})
		}
		return link, err
	case link.Attrs().Index == b.index || !isTUN(link):
		return link, nil
	}
	renamed, err := b.handle.Renamed(name, b.alias(), made)
	for _, stray := range renamed {
		err = errors.Join(err, b.handle.DeleteLink(stray))
		report.Writes++
	}
	return link, err
}

// made says of a device with our alias, which anybody can copy, whether leno made
// it: it is the one that the engine was attached to, or has one of this host's
// addresses.
func (b *Backend) made(link netlink.Link, addrs []netip.Prefix) (bool, error) {
	if !isTUN(link) || link.Attrs().Index == b.index {
		return isTUN(link), nil
	}
	for _, addr := range addrs {
		if has, err := b.handle.HasAddr(link.Attrs().Index, addr.Addr()); has || err != nil {
			return has, err
		}
	}
	return false, nil
}

// onlyOurs checks that nobody else is attached to a device to which we just
// attached so many queues. A multi-queue device lets in anybody who may, and
// gives him his part of the packets.
func onlyOurs(name string, link netlink.Link, queues int) error {
	if link == nil {
		return fmt.Errorf("tun device %s is gone again", name)
	}
	if tuntap, ok := link.(*netlink.Tuntap); ok && tuntap.Queues > queues {
		return fmt.Errorf("attach to tun device %s: %w", name, errBusy)
	}
	return nil
}

// isTUN says whether a device may be one of ours.
func isTUN(link netlink.Link) bool {
	tuntap, ok := link.(*netlink.Tuntap)
	return ok && tuntap.Mode == netlink.TUNTAP_MODE_TUN
}

// asEnds makes ends of the engine of queues or sockets.
func asEnds[T any, S any](opened []S) []T {
	out := make([]T, len(opened))
	for i, end := range opened {
		out[i] = any(end).(T)
	}
	return out
}

func closeAll[T io.Closer](all []T) error {
	var errs []error
	for _, end := range all {
		errs = append(errs, end.Close())
	}
	return errors.Join(errs...)
}
