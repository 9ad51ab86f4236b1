package firewall

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A portFilter matches the connections with which the ports of tunnels are taken: the host masquerades them for a
// container. What peers send to the host's tunnel from such a port goes to the container.
type portFilter struct{ ports []networkValue[uint16] }

var _ netlink.CustomConntrackFilter = portFilter{}

func (t portFilter) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	masqueraded := !f.Reverse.DstIP.Equal(f.Forward.SrcIP)
	return masqueraded && f.Forward.Protocol == unix.IPPROTO_UDP &&
		slices.ContainsFunc(t.ports, func(p networkValue[uint16]) bool { return p.value == f.Forward.DstPort })
}

// releasePorts makes the kernel forget connections to the ports of tunnels that began before the guard was there. The
// rules keep away new ones only.
func (g guard) releasePorts() error {
	if len(g.ports) == 0 {
		return nil
	}
	var errs []error
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, portFilter{g.ports})
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			errs = append(errs, fmt.Errorf("forget connections to the ports of tunnels: %w", err))
		}
	}
	return errors.Join(errs...)
}
