package firewall

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A portFilter matches the connections with which the ports of tunnels are taken: the host masquerades them for a
// container. What peers send to the host's tunnel from such a port goes to the container.
type portFilter struct {
	ports map[uint16]bool
	peers map[netip.AddrPort]bool
}

var _ netlink.CustomConntrackFilter = portFilter{}

func (t portFilter) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	masqueraded := !f.Reverse.DstIP.Equal(f.Forward.SrcIP)
	to, _ := netip.AddrFromSlice(f.Forward.DstIP)
	return masqueraded && f.Forward.Protocol == unix.IPPROTO_UDP &&
		(t.ports[f.Forward.DstPort] || t.peers[netip.AddrPortFrom(to.Unmap(), f.Forward.DstPort)])
}

// releasePorts makes the kernel forget connections to the ports of tunnels that began before the guard was there. The
// rules keep away new ones only.
func (g guard) releasePorts() error {
	if len(g.ports)+len(g.peers) == 0 {
		return nil
	}
	filter := portFilter{map[uint16]bool{}, map[netip.AddrPort]bool{}}
	for _, port := range g.ports {
		filter.ports[port.value] = true
	}
	for _, peer := range g.peers {
		filter.peers[peer.value] = true
	}
	var errs []error
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			errs = append(errs, fmt.Errorf("forget connections to the ports of tunnels: %w", err))
		}
	}
	return errors.Join(errs...)
}
