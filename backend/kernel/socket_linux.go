package kernel

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// SocketDevices returns the ifindexes that UDP sockets on a port of all addresses are bound to, such
// as those of VXLAN devices; 0 for a socket that is not bound to a device. It returns the sockets of
// the family of a, in the calling thread's namespace.
func SocketDevices(port int, a netip.Addr) ([]int, error) {
	family := uint8(unix.AF_INET6)
	if a.Is4() {
		family = unix.AF_INET
	}
	sockets, err := netlink.SocketDiagUDP(family)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list udp sockets: %w", err)
	}
	var out []int
	for _, s := range sockets {
		if source, ok := netip.AddrFromSlice(s.ID.Source); ok && source.Unmap().IsUnspecified() &&
			int(s.ID.SourcePort) == port {
			out = append(out, int(s.ID.Interface))
		}
	}
	return out, nil
}
