package wireguard

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
)

// tunKind is the kind of the device that WireGuard in this process has, as the netlink library names it.
const tunKind = "tuntap"

// ensured describes the device that ensure found or made.
type ensured struct {
	usable bool // there is a device
	empty  bool // it had no peers
	down   bool // it was down, which ends sessions
	bare   bool // it had lost its addresses and routes, or this process did not know them
}

// ensure makes sure that the network's device exists, listens and is up. After an error, the device may still be
// usable. addrs are the addresses that it should have.
func (b *Backend) ensure(addrs map[netip.Prefix]kernel.Address, s backend.State, report *backend.Report) (ensured, error) {
	link, err := b.handle.FindDevice(kernel.TunnelDevice{
		Name:   b.config.Link,
		Alias:  b.config.DeviceAlias(),
		Index:  b.index,
		Addrs:  slices.Collect(maps.Keys(addrs)),
		IsKind: func(l netlink.Link) bool { return isTUN(l) || isKernel(l) },
	}, report)
	if err != nil {
		return ensured{}, err
	}
	if err := b.choose(link); err != nil {
		return ensured{}, err
	}
	before := b.index
	link, empty, err := b.open(link, s.MTU, report)
	if err != nil {
		return ensured{}, err
	}
	made := b.index != before
	down := link.Attrs().Flags&net.FlagUp == 0
	e := ensured{usable: true, empty: empty, down: down, bare: made || down}
	listenErr := b.configure(s.Partial && !empty, empty, report)
	return e, errors.Join(listenErr, b.setUp(link, s, made, report))
}

// choose chooses between the kernel's WireGuard and that of this process, once for the process.
func (b *Backend) choose(link netlink.Link) error {
	if b.kind != "" {
		return nil
	}
	has := link != nil && isKernel(link)
	if !has && !b.process {
		var err error
		if has, err = kernel.HasFamily(kernelKind); err != nil {
			return err
		}
	}
	b.kind = tunKind
	if has && !b.process {
		b.kind = kernelKind
	}
	return nil
}

// open opens the network's device, and makes it if there is none. empty reports whether it has neither peers nor
// sessions yet.
func (b *Backend) open(link netlink.Link, mtu int, report *backend.Report) (_ netlink.Link, empty bool, err error) {
	if link != nil && !isKernel(link) && !isTUN(link) {
		return nil, false, fmt.Errorf("link %s, of kind %q: %w", b.config.Link, link.Type(), backend.ErrForeignDevice)
	}
	if b.opened(link) {
		return link, false, nil
	}
	if err := b.release(); err != nil {
		return nil, false, err
	}
	replaced := link != nil
	if link, err = b.makeRoom(link, report); err != nil {
		return nil, false, err
	}
	empty = b.kind == tunKind || link == nil
	if empty {
		report.Writes++
	}
	if b.kind == kernelKind {
		link, err = b.openKernel(link)
	} else {
		link, err = b.openProcess(mtu)
	}
	if err != nil {
		return nil, false, err
	}
	switch index := link.Attrs().Index; {
	case b.index == 0: // the first time in this process
	case index == b.index:
		report.Healed = append(report.Healed, backend.Repair{Part: backend.Device, Fault: "device was detached"})
	case replaced:
		report.Healed = append(report.Healed, backend.Repair{Part: backend.Device, Fault: "device was replaced"})
	default:
		report.Healed = append(report.Healed, backend.Repair{Part: backend.Device, Fault: "device was deleted"})
	}
	b.index = link.Attrs().Index
	if !b.logged {
		b.config.Logger.Info("device opened", "link", b.config.Link, "wireguard", b.variant())
		b.logged = true
	}
	return link, empty, nil
}

// opened reports whether the device is the one that this process has open.
func (b *Backend) opened(link netlink.Link) bool {
	if b.device == nil || link == nil || link.Attrs().Index != b.index {
		return false
	}
	inProcess, ok := b.device.(*processDevice)
	if !ok {
		return isKernel(link)
	}
	if !inProcess.alive() {
		return false
	}
	b.serve(inProcess) // again if another program has removed the socket
	return true
}

// makeRoom deletes leno's device if it is of the wrong kind: that of another backend, or of the other kind of
// WireGuard. It returns the device if it stays.
func (b *Backend) makeRoom(link netlink.Link, report *backend.Report) (netlink.Link, error) {
	if link == nil || isKernel(link) && b.kind == kernelKind {
		return link, nil
	}
	if tuntap, ok := link.(*netlink.Tuntap); ok {
		multi := tuntap.Flags&netlink.TUNTAP_MULTI_QUEUE != 0
		if !multi && b.kind == tunKind {
			return link, nil
		}
		if err := unusedTUN(tuntap, multi); err != nil {
			return nil, err
		}
	}
	if err := b.handle.DeleteLink(link); err != nil {
		return nil, err
	}
	report.Writes++
	return nil, nil
}

// unusedTUN returns kernel.ErrTUNBusy if another process is attached to a TUN device.
func unusedTUN(link *netlink.Tuntap, multi bool) error {
	var err error
	if multi && link.Queues > 0 {
		err = kernel.ErrTUNBusy
	}
	if !multi {
		var fd int
		if fd, err = attachTUN(link.Name); err == nil {
			err = unix.Close(fd)
		}
	}
	if err != nil {
		return fmt.Errorf("attach to tun device %s: %w", link.Name, err)
	}
	return nil
}

func (b *Backend) openKernel(link netlink.Link) (netlink.Link, error) {
	if link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Alias = b.config.Link, b.config.DeviceAlias()
		var err error
		link, err = b.handle.AddLink(&netlink.Wireguard{LinkAttrs: attrs})
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = fmt.Errorf("%w: %w", err, backend.ErrNoSuchKind)
		}
		if err != nil {
			return nil, err
		}
	}
	opened, err := openKernel(b.config.Link)
	if err != nil {
		return nil, err
	}
	b.device = opened
	return link, nil
}

func (b *Backend) openProcess(mtu int) (netlink.Link, error) {
	opened, err := openProcess(b.config.Link, mtu, b.config.Logger)
	if err != nil {
		return nil, err
	}
	link, err := b.handle.Link(b.config.Link)
	if err == nil && link == nil {
		err = fmt.Errorf("tun device %s is gone again", b.config.Link)
	}
	if err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	b.device = opened
	b.serve(opened)
	return link, nil
}

func (b *Backend) socketPath() string { return filepath.Join(b.socketDir, b.config.Link+".sock") }

// serve opens the socket by which wg(8) finds the device, unless it is open. The device works without it.
func (b *Backend) serve(d *processDevice) {
	if b.control != nil && b.control.reachable() {
		return
	}
	if b.control != nil {
		_ = b.control.Close() // its path leads elsewhere
	}
	control, err := serve(b.socketPath(), d.engine.IpcHandle)
	b.control, b.unserved = control, err
}

// configure sets the device's key and port. It leaves both as they are if keep is set, because they may be newer.
func (b *Backend) configure(keep, empty bool, report *backend.Report) error {
	var errs []error
	state, err := b.device.State()
	if err != nil {
		return err
	}
	fix := func(wrong bool, c wgtypes.Config, known bool, fault, detail string) bool {
		if !wrong || keep {
			return true
		}
		if err := b.device.Configure(c); err != nil {
			errs = append(errs, b.explain(err))
			return false
		}
		report.Writes++
		if known && !empty {
			report.Healed = append(report.Healed, backend.Repair{Part: backend.Device, Fault: fault, Detail: detail})
		}
		return true
	}
	key, port := b.key, b.options.Port
	if fix(state.PrivateKey != key, wgtypes.Config{PrivateKey: &key}, b.private == key,
		"device had another private key", "that of public key "+state.PublicKey.String()) {
		b.private = key
		if !keep {
			b.used = key
		}
	}
	listened := b.port == port
	b.port = 0
	if fix(state.ListenPort != port, wgtypes.Config{ListenPort: &port}, listened,
		"device had another listen port", fmt.Sprintf("%d instead of %d", state.ListenPort, port)) {
		b.port = port
	}
	if inProcess, ok := b.device.(*processDevice); ok {
		errs = append(errs, b.explain(inProcess.Up()))
	}
	return errors.Join(errs...)
}

// explain adds the meaning to an error of the sockets.
func (b *Backend) explain(err error) error {
	if errors.Is(err, unix.EADDRINUSE) {
		return kernel.PortInUse(b.options.Port, b.config.Link)
	}
	return err
}

// setUp sets the MTU and brings the device up. Settings that a newly opened device lacks are not reported as repairs.
func (b *Backend) setUp(link netlink.Link, s backend.State, made bool, report *backend.Report) error {
	known := b.mtu == s.MTU && !made
	b.mtu = s.MTU
	var errs []error
	if err := b.handle.SetUpDevice(link, s.MTU, b.config.DeviceAlias(), known, report); err != nil {
		for _, single := range backend.Apart(err) {
			errs = append(errs, b.explain(single))
		}
	}
	if inProcess, ok := b.device.(*processDevice); ok {
		inProcess.tun.setMTU(s.MTU)
	}
	return errors.Join(append(errs, kernel.AcceptElsewhere(b.config.Link, s.Elsewhere, report))...)
}

func isKernel(link netlink.Link) bool { return link.Type() == kernelKind }

// isTUN reports whether a device may be one of ours.
func isTUN(link netlink.Link) bool {
	tuntap, ok := link.(*netlink.Tuntap)
	return ok && tuntap.Mode == netlink.TUNTAP_MODE_TUN
}
