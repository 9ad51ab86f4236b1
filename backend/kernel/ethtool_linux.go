package kernel

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TxChecksum says whether the kernel leaves checksums of packets sent into a
// device to the device (ethtool -k: tx-checksumming).
func TxChecksum(link string) (bool, error) {
	value := ethtoolValue{cmd: unix.ETHTOOL_GTXCSUM}
	err := ethtool(link, &value)
	return value.data != 0, err
}

// SetTxChecksum switches it. Off has the kernel compute them before the packet
// reaches the device, and with them segmentation.
func SetTxChecksum(link string, on bool) error {
	value := ethtoolValue{cmd: unix.ETHTOOL_STXCSUM}
	if on {
		value.data = 1
	}
	return ethtool(link, &value)
}

// ethtoolValue is struct ethtool_value.
type ethtoolValue struct{ cmd, data uint32 }

// ethtool runs one request in the namespace of the calling thread.
func ethtool(link string, value *ethtoolValue) error {
	if len(link) >= unix.IFNAMSIZ {
		return fmt.Errorf("ethtool %s: name is too long", link)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("ethtool %s: %w", link, os.NewSyscallError("socket", err))
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written to it
	request := struct {                   // struct ifreq
		name [unix.IFNAMSIZ]byte
		data *ethtoolValue
		_    [16]byte
	}{data: value}
	copy(request.name[:], link)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return fmt.Errorf("ethtool %s: %w", link, errno)
	}
	return nil
}
