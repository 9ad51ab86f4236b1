package udp

import (
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/hashicorp/go-hclog"
	"github.com/vishvananda/netlink"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/overlay"
)

// openSockets opens the sockets that the engine should listen with, if they differ from those it
// has, and closes the old ones. If the new ones cannot be opened after the address or port changed,
// the engine keeps the old ones, so that peers that have not learned of the change can still reach
// it.
func (b *Backend) openSockets(at netip.AddrPort, vrf int, report *backend.Report) ([]Bind, error) {
	alive := b.engine.binds.alive()
	if alive && b.listen == at && b.vrf == vrf {
		return nil, nil
	}
	lost := !alive && b.listen == at
	if b.listen == at {
		// The old sockets, or what remains of them, hold the port.
		if err := b.engine.setBinds(); err != nil {
			return nil, fmt.Errorf("close sockets: %w", err)
		}
	}
	sockets, err := listen(at, vrf, b.queues, b.want)
	if err != nil {
		return nil, err
	}
	if err := b.engine.setBinds(); err != nil {
		return nil, errors.Join(fmt.Errorf("close the sockets before: %w", err), closeAll(sockets))
	}
	if lost {
		report.Repaired = append(report.Repaired, backend.Repair{Part: backend.Routes, Fault: "socket was closed"})
	}
	level := hclog.Info
	if lost || b.listen.IsValid() {
		level = hclog.Debug // reported with the fault, or with the change of the underlay
	}
	b.listen, b.vrf = at, vrf
	b.can.segment, b.can.gro = sockets[0].segment, sockets[0].gro
	report.Writes++
	b.overlay.Config.Logger.Log(level, "listening", "address", at, "sockets", len(sockets), "segmentation",
		sockets[0].segment, "receive_offload", sockets[0].gro)
	return asEnds[Bind](sockets), nil
}

// attach opens the network's device if the engine does not read from it, and creates it if there is
// none.
func (b *Backend) attach(subnets []netip.Prefix, report *backend.Report) (netlink.Link, []Device, error) {
	name, h := b.device.Name, b.overlay.Handle
	link, err := b.device.Find(h, overlay.HasAddress(h, subnets), false, report)
	if err != nil {
		return nil, nil, err
	}
	if link != nil && link.Attrs().Index == b.device.Index() && b.engine.devices.alive() {
		return link, nil, nil
	}
	if err := b.engine.setDevices(); err != nil {
		return nil, nil, fmt.Errorf("close tun device %s: %w", name, err)
	}
	// Look again, because the queues it reported may have been our own.
	if link, err = b.device.Own(h); err != nil {
		return nil, nil, err
	}
	if link != nil {
		// Attaching in order to find out would take packets from another process that is attached.
		if err := onlyOurs(name, link, 0); err != nil {
			return nil, nil, err
		}
	}
	queues, err := openTUN(name, b.queues, b.want)
	if errors.Is(err, kernel.ErrTUNQueues) && link != nil {
		// Created by an earlier version, with a single queue.
		if err := kernel.CheckUnattached(name); err != nil {
			return nil, nil, err
		}
		if err := h.DeleteLink(link); err != nil {
			return nil, nil, err
		}
		report.Writes++
		queues, err = openTUN(name, b.queues, b.want)
	}
	if err != nil {
		return nil, nil, err
	}
	report.Writes++
	made, err := h.Link(name)
	if err == nil {
		err = onlyOurs(name, made, len(queues))
	}
	if err != nil {
		return nil, nil, errors.Join(err, closeAll(queues))
	}
	can := queues[0].can
	b.can.tso, b.can.uso, b.single = can.tso, can.uso, queues[0].unsteered
	fields := []any{"link", name, "queues", len(queues), "tcp_offload", can.tso, "udp_offload", can.uso}
	if b.single != nil {
		fields = append(fields, "one_queue_because", b.single)
	}
	// Later attachments are reported with the fault.
	level := hclog.Debug
	if b.device.Index() == 0 {
		level = hclog.Info
	}
	b.overlay.Config.Logger.Log(level, "device attached", fields...)
	b.device.Use(made, link != nil, "", report)
	return made, asEnds[Device](queues), nil
}

// onlyOurs checks that no other process is attached to a device to which we just attached the given
// number of queues. A multi-queue device admits any process with the privileges, and gives it a
// share of the packets.
func onlyOurs(name string, link netlink.Link, queues int) error {
	if link == nil {
		return fmt.Errorf("tun device %s is gone again", name)
	}
	if tuntap, ok := link.(*netlink.Tuntap); ok && tuntap.Queues > queues {
		return fmt.Errorf("attach to tun device %s: %w", name, kernel.ErrTUNBusy)
	}
	return nil
}

// asEnds converts queues or sockets to ends of the engine.
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
