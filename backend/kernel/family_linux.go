package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// HasFamily reports whether the kernel has a generic netlink family, such as "wireguard". The kernel loads a module that
// has it.
func HasFamily(name string) (bool, error) {
	_, err := netlink.GenlFamilyGet(name)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for netlink family %s: %w", name, err)
	}
	return true, nil
}
