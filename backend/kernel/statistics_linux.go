package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/backend"
)

// LinkDrops returns the reasons under which a device counts packets that it did not pass on. They
// are the kernel's names, which do not say why. rx counts packets that arrived through the device.
func LinkDrops() []string { return []string{"rx_dropped", "rx_errors", "tx_dropped", "tx_errors"} }

// LinkStatistics returns what a device of the given kind has counted since it was created, the drops by the names in
// LinkDrops. If there is no such device, all counters are 0. The socket is opened in the calling thread's namespace.
func LinkStatistics(name, kind string) (backend.Counters, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return backend.Counters{}, fmt.Errorf("statistics of link %s: %w", name, err)
	}
	defer handle.Close()
	link, err := handle.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) || err == nil && (link.Type() != kind ||
		link.Attrs().Statistics == nil) {
		return backend.Counters{}, nil
	}
	if err != nil {
		return backend.Counters{}, fmt.Errorf("statistics of link %s: %w", name, err)
	}
	s := link.Attrs().Statistics
	return backend.Counters{RxPackets: s.RxPackets, RxBytes: s.RxBytes, TxPackets: s.TxPackets, TxBytes: s.TxBytes,
		Drops: map[string]uint64{"rx_dropped": s.RxDropped, "rx_errors": s.RxErrors, "tx_dropped": s.TxDropped,
			"tx_errors": s.TxErrors}}, nil
}
