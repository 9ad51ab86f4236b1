package kernel

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TxChecksum reports whether the kernel leaves the checksums of packets sent into a device to the
// device (ethtool -k: tx-checksumming).
func TxChecksum(link string) (bool, error) {
	value := ethtoolValue{cmd: unix.ETHTOOL_GTXCSUM}
	err := ethtool(link, unsafe.Pointer(&value))
	return value.data != 0, err
}

// SetTxChecksum switches TX checksum offload. When it is off, the kernel computes checksums, and
// segments packets, before they reach the device.
func SetTxChecksum(link string, on bool) error {
	value := ethtoolValue{cmd: unix.ETHTOOL_STXCSUM}
	if on {
		value.data = 1
	}
	return ethtool(link, unsafe.Pointer(&value))
}

// Release returns the kernel's release, such as "6.18.4-1-amd64".
func Release() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return "unknown" // it only fails for a bad pointer (uname(2))
	}
	return unix.ByteSliceToString(name.Release[:])
}

// Drivers returns the drivers of the devices and of all devices below them: the parents of VLANs
// and the like, the ports of bonds and bridges. The result is sorted. Devices that are gone, or
// that have no driver, are left out.
func (h *Handle) Drivers(devices []string) ([]string, error) {
	links, err := h.nl.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	seen := map[int]bool{}
	var drivers []string
	for more := true; more; {
		more = false
		for _, l := range links {
			a := l.Attrs()
			below := slices.ContainsFunc(links, func(upper netlink.Link) bool {
				u := upper.Attrs()
				return seen[u.Index] && (a.MasterIndex == u.Index || u.NetNsID < 0 && u.ParentIndex == a.Index)
			})
			if seen[a.Index] || !below && !slices.Contains(devices, a.Name) {
				continue
			}
			seen[a.Index], more = true, true
			driver, err := driver(a.Name)
			if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENODEV) {
				return nil, err
			}
			if driver != "" {
				drivers = append(drivers, driver)
			}
		}
	}
	slices.Sort(drivers)
	return slices.Compact(drivers), nil
}

func driver(link string) (string, error) {
	info := unix.EthtoolDrvinfo{Cmd: unix.ETHTOOL_GDRVINFO}
	err := ethtool(link, unsafe.Pointer(&info))
	return unix.ByteSliceToString(info.Driver[:]), err
}

// ethtoolValue is struct ethtool_value.
type ethtoolValue struct{ cmd, data uint32 }

// ethtool runs one request in the namespace of the calling thread.
func ethtool(link string, value unsafe.Pointer) error {
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
		data unsafe.Pointer
		_    [16]byte
	}{data: value}
	copy(request.name[:], link)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return fmt.Errorf("ethtool %s: %w", link, errno)
	}
	return nil
}
