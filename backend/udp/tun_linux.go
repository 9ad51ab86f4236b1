package udp

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// tun is one queue of a persistent TUN device, one packet a call.
//
// It is opened here rather than with wireguard-go's tun package: that one
// never sets persistence, always asks for the vnet header, and switches
// segmentation offloads on, which outlive the process. This one needs eleven
// lines of ioctl and has the runtime's poller under it just the same.
type tun struct {
	file *os.File
}

var _ Device = (*tun)(nil)

// errBusy says that another process holds the device's only queue.
var errBusy = errors.New("another process is attached to the device")

// errQueues says that the device was made for several queues, which is decided
// at its creation.
var errQueues = errors.New("the device is not a single-queue TUN")

// openTUN attaches to the TUN device of that name in the calling thread's
// network namespace, or creates it. The device stays when its descriptor is
// closed or the process dies; addresses and routes stay with it as long as it
// is not set down.
func openTUN(name string) (*tun, error) {
	// It must not reach the poller before it is attached: until then the
	// kernel reports an error for it.
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	if err := attachTUN(fd, name); err != nil {
		return nil, errors.Join(fmt.Errorf("attach to tun device %s: %w", name, err), unix.Close(fd))
	}
	return &tun{file: os.NewFile(uintptr(fd), "/dev/net/tun")}, nil
}

func attachTUN(fd int, name string) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	switch err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); {
	case errors.Is(err, unix.EBUSY):
		return errBusy
	case errors.Is(err, unix.EINVAL):
		return errQueues
	case err != nil:
		return err
	}
	// Offloads are the device's and survive whoever set them. Left on, without
	// a vnet header to tell of them, UDP arrives with partial checksums.
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, 0); err != nil {
		return fmt.Errorf("switch offloads off: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("make persistent: %w", err)
	}
	return nil
}

// Read is Device's. When the link is deleted it fails with EBADFD.
func (t *tun) Read(bufs [][]byte, sizes []int) (int, error) {
	n, err := t.file.Read(bufs[0])
	if err != nil {
		return 0, err
	}
	sizes[0] = n
	return 1, nil
}

// Write is Device's. While the link is down it fails with EIO.
func (t *tun) Write(pkts [][]byte) (int, error) {
	for i, pkt := range pkts {
		if _, err := t.file.Write(pkt); err != nil {
			return i, err
		}
	}
	return len(pkts), nil
}

// BatchSize is Device's.
func (t *tun) BatchSize() int { return 1 }

// Close is Device's.
func (t *tun) Close() error {
	if err := t.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
