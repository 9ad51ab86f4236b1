package kernel

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/lenonet/leno/backend"
)

// PortInUse returns the error for a UDP port that something else uses, which it names if it is a device. own is the
// device that wants the port, "" for none. The error wraps EADDRINUSE, and backend.ErrPortOfDevice for a device. It
// searches in the calling thread's namespace.
func PortInUse(port int, own string) error {
	links, _ := netlink.LinkList() // without a list, no device is named
	for _, link := range links {
		if a := link.Attrs(); a.Name != own && a.Flags&unix.IFF_UP != 0 && devicePort(link) == port {
			return fmt.Errorf("udp port %d %w %s, of kind %s: %w", port, backend.ErrPortOfDevice, a.Name, link.Type(),
				unix.EADDRINUSE)
		}
	}
	return fmt.Errorf("udp port %d is used by another program: %w", port, unix.EADDRINUSE)
}

// devicePort returns the UDP port that the kernel opens for a device, 0 for none.
func devicePort(link netlink.Link) int {
	switch l := link.(type) {
	case *netlink.Vxlan:
		return l.Port
	case *netlink.Wireguard:
		return wireguardPort(l.Name)
	}
	return 0
}

// wireguardPort returns the listen port of a device of WireGuard, 0 if it cannot be read.
func wireguardPort(name string) int {
	client, err := wgctrl.New()
	if err != nil {
		return 0
	}
	defer func() { _ = client.Close() }()
	device, err := client.Device(name)
	if err != nil || device.Type != wgtypes.LinuxKernel {
		return 0
	}
	return device.ListenPort
}
