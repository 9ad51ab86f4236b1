package wireguard

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/lenonet/leno/backend"
	"github.com/lenonet/leno/backend/kernel"
	"github.com/lenonet/leno/backend/overlay"
)

// tunKind is the kind of the device that WireGuard in this process has, as the netlink library names it.
const tunKind = "tuntap"

// variant is WireGuard behind a link: of the kernel, or in this process. No method but Inspect may run concurrently
// with Close.
type variant interface {
	device

	// Inspect returns the same as State, from any thread in the link's namespace, and concurrently with all methods.
	Inspect() (*wgtypes.Device, error)

	// Alive reports whether the device still carries the packets of a link with the index that it had when it was opened.
	Alive(netlink.Link) bool

	// Up takes the link's MTU and opens the sockets, in the calling thread's network namespace. It may be repeated.
	Up(mtu int) error

	// Note returns what users should know of the device, "" for nothing.
	Note() string

	// Close releases what this process holds, and leaves the link in place. It may be called more than once.
	Close() error
}

// tunnel owns the network's device: the link, WireGuard behind it, its key and its port. It knows neither peers nor
// routes.
type tunnel struct {
	config    backend.Config
	process   bool   // ignore the kernel's WireGuard
	socketDir string // of the control sockets of devices in processes

	handle *kernel.Handle // that of the overlay
	link   overlay.Device
	kind   string  // of the link: kernelKind or tunKind; "" before it is chosen
	device variant // nil while there is none
	logged bool    // that the device is used

	// What was wanted before, to tell repairs from changes; zero if unknown.
	port    int
	private wgtypes.Key
}

// ensured describes the device that ensure found or made.
type ensured struct {
	usable bool // there is a device
	empty  bool // it had no peers
	down   bool // it was down, which ends sessions
	bare   bool // see overlay.Entries
	keyed  bool // it has the private key that was wanted, and no other was allowed
}

// set takes a definition.
func (t *tunnel) set(c backend.Config) {
	t.config = c
	t.link.Name, t.link.Alias, t.link.IsKind = c.Link, c.DeviceAlias(), isEither
}

// ensure makes sure that the network's device exists, listens and is up. After an error, the device may still be
// usable.
func (t *tunnel) ensure(key wgtypes.Key, port int, s backend.State, report *backend.Report) (e ensured, err error) {
	link, err := t.link.Find(t.handle, overlay.HasAddress(t.handle, s.Subnets), false, report)
	if err != nil {
		return e, err
	}
	if err := t.choose(link); err != nil {
		return e, err
	}
	link, e.empty, err = t.open(link, s.MTU, report)
	if err != nil {
		return e, err
	}
	e.usable, e.down = true, link.Attrs().Flags&net.FlagUp == 0
	var listenErr error
	e.keyed, listenErr = t.configure(key, port, s, e.empty, report)
	e.bare, err = t.link.SetUp(t.handle, link, s, port, report)
	return e, errors.Join(listenErr, err)
}

// choose chooses between the kernel's WireGuard and that of this process, once for the process.
func (t *tunnel) choose(link netlink.Link) error {
	if t.kind != "" {
		return nil
	}
	has := link != nil && isKernel(link)
	if !has && !t.process {
		var err error
		if has, err = kernel.HasFamily(kernelKind); err != nil {
			return err
		}
	}
	t.kind = tunKind
	if has && !t.process {
		t.kind = kernelKind
	}
	return nil
}

// open opens the network's device, and makes it if there is none. empty reports whether it has neither peers nor
// sessions yet.
func (t *tunnel) open(link netlink.Link, mtu int, report *backend.Report) (_ netlink.Link, empty bool, err error) {
	if t.device != nil && link != nil && link.Attrs().Index == t.link.Index() && t.device.Alive(link) {
		return link, false, nil
	}
	if err := t.release(); err != nil {
		return nil, false, err
	}
	replaced := link != nil
	if link, err = t.makeRoom(link, report); err != nil {
		return nil, false, err
	}
	empty = t.kind == tunKind || link == nil
	if empty {
		report.Writes++
	}
	if t.kind == kernelKind {
		link, err = t.openKernel(link)
	} else {
		link, err = t.openProcess(mtu)
	}
	if err != nil {
		return nil, false, err
	}
	t.link.Use(link, replaced, "", report)
	if !t.logged {
		t.config.Logger.Info("device opened", "link", t.config.Link, "wireguard", t.place())
		t.logged = true
	}
	return link, empty, nil
}

// makeRoom deletes leno's device if it is of the wrong kind: that of another backend, or of the other kind of
// WireGuard. It returns the device if it stays.
func (t *tunnel) makeRoom(link netlink.Link, report *backend.Report) (netlink.Link, error) {
	if link == nil || isKernel(link) && t.kind == kernelKind {
		return link, nil
	}
	if tuntap, ok := link.(*netlink.Tuntap); ok {
		multi := tuntap.Flags&netlink.TUNTAP_MULTI_QUEUE != 0
		if !multi && t.kind == tunKind {
			return link, nil
		}
		switch {
		case !multi:
			if err := kernel.CheckUnattached(link.Attrs().Name); err != nil {
				return nil, err
			}
		case tuntap.Queues > 0:
			return nil, fmt.Errorf("attach to tun device %s: %w", tuntap.Name, kernel.ErrTUNBusy)
		}
	}
	if err := t.handle.DeleteLink(link); err != nil {
		return nil, err
	}
	report.Writes++
	return nil, nil
}

func (t *tunnel) openKernel(link netlink.Link) (_ netlink.Link, err error) {
	if link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Alias = t.config.Link, t.config.DeviceAlias()
		if link, err = t.handle.AddLink(&netlink.Wireguard{LinkAttrs: attrs}); err != nil {
			return nil, err
		}
	}
	opened, err := openKernel(t.config.Link)
	if err != nil {
		return nil, err
	}
	t.device = opened
	return link, nil
}

func (t *tunnel) openProcess(mtu int) (netlink.Link, error) {
	socket := filepath.Join(t.socketDir, t.config.Link+".sock")
	opened, err := openProcess(t.config.Link, mtu, socket, t.config.Logger)
	if err != nil {
		return nil, err
	}
	link, err := t.handle.Link(t.config.Link)
	if err == nil && link == nil {
		err = fmt.Errorf("tun device %s is gone again", t.config.Link)
	}
	if err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	t.device = opened
	return link, nil
}

// configure sets the device's key and port. With a partial state it leaves those of a device with peers, because they
// may be newer.
func (t *tunnel) configure(
	key wgtypes.Key, port int, s backend.State, empty bool, report *backend.Report,
) (keyed bool, err error) {
	state, err := t.device.State()
	if err != nil {
		return false, err
	}
	keep := s.Partial && !empty
	var errs []error
	fix := func(wrong bool, c wgtypes.Config, known bool, fault, detail string) bool {
		if !wrong || keep {
			return !wrong
		}
		if err := t.device.Configure(c); err != nil {
			errs = append(errs, t.explain(err, port))
			return false
		}
		report.Writes++
		if known && !empty {
			report.Repaired = append(report.Repaired, backend.Repair{Part: backend.Device, Fault: fault, Detail: detail})
		}
		return true
	}
	if fix(state.PrivateKey != key, wgtypes.Config{PrivateKey: &key}, t.private == key,
		"device had another private key", "that of public key "+state.PublicKey.String()) {
		t.private, keyed = key, !keep
	}
	listened := t.port == port
	t.port = 0
	if fix(state.ListenPort != port, wgtypes.Config{ListenPort: &port}, listened,
		"device had another listen port", fmt.Sprintf("%d instead of %d", state.ListenPort, port)) {
		t.port = port
	}
	return keyed, errors.Join(append(errs, t.explain(t.device.Up(s.MTU), port))...)
}

// explain adds the meaning to an error of the sockets.
func (t *tunnel) explain(err error, port int) error {
	if errors.Is(err, unix.EADDRINUSE) {
		return kernel.PortInUse(port, t.config.Link)
	}
	return err
}

// hasKey reports whether the kernel has the network's device, with this private key.
func (t *tunnel) hasKey(private wgtypes.Key) bool {
	link, err := t.handle.Link(t.config.Link)
	if err != nil || link == nil || !isKernel(link) {
		return false
	}
	state, err := kernelState(t.config.Link)
	return err == nil && state.PrivateKey == private
}

// notes tells users what the backend chose.
func (t *tunnel) notes() []string {
	notes := []string{t.place()}
	if note := t.device.Note(); note != "" {
		notes = append(notes, note)
	}
	return notes
}

// place says where WireGuard runs.
func (t *tunnel) place() string {
	switch {
	case t.kind == kernelKind:
		return "WireGuard of the kernel"
	case t.process:
		return "WireGuard in the agent's process"
	}
	return "WireGuard in the agent's process: the kernel has none"
}

// remove deletes the network's link. Addresses, peers and routes over it disappear with it.
func (t *tunnel) remove(report *backend.Report) error {
	return errors.Join(t.forget(), t.link.Remove(t.handle, report))
}

// forget releases the device and forgets what was wanted. The link stays.
func (t *tunnel) forget() error {
	t.link.Forget()
	t.private, t.port = wgtypes.Key{}, 0
	return t.release()
}

// release closes the device in this process.
func (t *tunnel) release() error {
	if t.device == nil {
		return nil
	}
	err := t.device.Close()
	t.device = nil
	return err
}

func isEither(link netlink.Link) bool { return isKernel(link) || overlay.IsTUN(link) }

func isKernel(link netlink.Link) bool { return link.Type() == kernelKind }
