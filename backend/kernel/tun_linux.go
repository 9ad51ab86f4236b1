package kernel

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// ErrTUNBusy means that another process is attached to a TUN device.
var ErrTUNBusy = errors.New("another process is attached to the device")

// OpenTUN opens the file through which processes attach to TUN devices. An error is an *fs.PathError.
func OpenTUN() (fd int, err error) {
	const path = "/dev/net/tun"
	fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// AttachTUN attaches a descriptor of OpenTUN to the TUN device with a name in the calling thread's network namespace,
// and creates the device if there is none. flags are added to IFF_TUN and IFF_NO_PI. The error is ErrTUNBusy if another
// process is attached, and EINVAL if the device was created with another IFF_MULTI_QUEUE.
func AttachTUN(fd int, name string, flags uint16) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | flags)
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	if errors.Is(err, unix.EBUSY) {
		return ErrTUNBusy
	}
	return err
}
