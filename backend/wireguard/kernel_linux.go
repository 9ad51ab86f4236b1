package wireguard

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// kernelKind is the kind of the kernel's devices.
const kernelKind = "wireguard"

// kernelDevice is a device of the kernel. Closing it leaves everything in place.
type kernelDevice struct {
	link   string
	client *wgctrl.Client
}

var _ variant = (*kernelDevice)(nil)

// openKernel opens the kernel's device with a name in the calling thread's network namespace.
func openKernel(link string) (*kernelDevice, error) {
	client, err := wgctrl.New()
	if err != nil {
		return nil, fmt.Errorf("open the kernel's wireguard interface: %w", err)
	}
	return &kernelDevice{link, client}, nil
}

// State implements device. wgctrl also finds devices in processes, which may be those of another network namespace.
func (d *kernelDevice) State() (*wgtypes.Device, error) {
	state, err := d.client.Device(d.link)
	if err == nil && state.Type != wgtypes.LinuxKernel {
		err = os.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("read wireguard device %s: %w", d.link, err)
	}
	return state, nil
}

// Configure implements device.
func (d *kernelDevice) Configure(c wgtypes.Config) error {
	if err := d.client.ConfigureDevice(d.link, c); err != nil {
		return fmt.Errorf("configure wireguard device %s: %w", d.link, err)
	}
	return nil
}

// Inspect implements variant.
func (d *kernelDevice) Inspect() (*wgtypes.Device, error) { return kernelState(d.link) }

// Alive implements variant.
func (d *kernelDevice) Alive(link netlink.Link) bool { return isKernel(link) }

// Up implements variant. The kernel does it with the link.
func (d *kernelDevice) Up(int) error { return nil }

// Note implements variant.
func (d *kernelDevice) Note() string { return "" }

// Close implements variant.
func (d *kernelDevice) Close() error {
	if d.client == nil {
		return nil
	}
	err := d.client.Close()
	d.client = nil
	return err
}

// kernelState reads the kernel's device in the calling thread's namespace, with a socket of its own.
func kernelState(link string) (*wgtypes.Device, error) {
	d, err := openKernel(link)
	if err != nil {
		return nil, err
	}
	state, err := d.State()
	return state, errors.Join(err, d.Close())
}
