package kernel

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Errors of OpenTUN.
var (
	ErrTUNBusy   = errors.New("another process is attached to the device")
	ErrTUNQueues = errors.New("the device was created as a TUN with one queue instead of several, or the other way around")
)

// vnetHeader is the length of the header before each packet: struct virtio_net_hdr.
const vnetHeader = 10

// OpenTUN attaches to a queue of the TUN device with a name in the calling thread's network namespace, and creates the
// device if there is none. The device stays when its descriptors are closed or the process ends. flags are added to
// IFF_TUN, IFF_NO_PI and IFF_VNET_HDR. The error is ErrTUNBusy if another process is attached, ErrTUNQueues if the
// device was created with another IFF_MULTI_QUEUE, and an *fs.PathError if this host has no TUN devices.
func OpenTUN(name string, flags uint16) (fd int, err error) {
	const path = "/dev/net/tun"
	fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("attach to tun device %s: %w", name, &fs.PathError{Op: "open", Path: path, Err: err})
	}
	if err := attachTUN(fd, name, flags); err != nil {
		return -1, errors.Join(fmt.Errorf("attach to tun device %s: %w", name, err), unix.Close(fd))
	}
	return fd, nil
}

func attachTUN(fd int, name string, flags uint16) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR | flags)
	switch err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); {
	case errors.Is(err, unix.EBUSY):
		return ErrTUNBusy
	case errors.Is(err, unix.EINVAL):
		return ErrTUNQueues
	case err != nil:
		return err
	}
	// Both settings belong to the device and outlive the process that made them.
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetHeader); err != nil {
		return fmt.Errorf("set length of vnet header: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("make persistent: %w", err)
	}
	return nil
}

// CheckUnattached returns ErrTUNBusy if a process is attached to a single-queue TUN device.
func CheckUnattached(name string) error {
	fd, err := OpenTUN(name, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
