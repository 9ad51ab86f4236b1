package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Statistics holds what a device has counted since it was created.
type Statistics struct {
	RxPackets, RxBytes, TxPackets, TxBytes uint64
	Drops                                  map[string]uint64 // keyed by the names in LinkDrops
}

// LinkDrops returns the reasons under which a device counts packets that it did not pass on. They
// are the kernel's names, which do not say why. rx counts packets that arrived through the device.
func LinkDrops() []string { return []string{"rx_dropped", "rx_errors", "tx_dropped", "tx_errors"} }

// LinkStatistics returns the counters of a device of the given kind. If there is no such device,
// all are 0. The socket is opened in the calling thread's namespace.
func LinkStatistics(name, kind string) (Statistics, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return Statistics{}, fmt.Errorf("statistics of link %s: %w", name, err)
	}
	defer handle.Close()
	link, err := handle.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) || err == nil && (link.Type() != kind ||
		link.Attrs().Statistics == nil) {
		return Statistics{}, nil
	}
	if err != nil {
		return Statistics{}, fmt.Errorf("statistics of link %s: %w", name, err)
	}
	s := link.Attrs().Statistics
	return Statistics{RxPackets: s.RxPackets, RxBytes: s.RxBytes, TxPackets: s.TxPackets, TxBytes: s.TxBytes,
		Drops: map[string]uint64{"rx_dropped": s.RxDropped, "rx_errors": s.RxErrors, "tx_dropped": s.TxDropped,
			"tx_errors": s.TxErrors}}, nil
}
