package probe

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// look asks the kernel for the addresses of this host. What else a plan may want
// to know is asked for when it does.
func look(h Host) (surroundings, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return surroundings{}, fmt.Errorf("list addresses: %w", err)
	}
	s := surroundings{local: map[netip.Addr]bool{}, device: device, strict: strict}
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			s.local[addr.Unmap()] = true
		}
	}
	if link, err := netlink.LinkByName(h.Link); err == nil {
		s.link = link.Attrs().Index
	}
	return s, nil
}

// device is surroundings'.
func device(to netip.Addr) (index int, neighbour bool) {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 {
		return 0, false
	}
	return routes[0].LinkIndex, routes[0].Gw == nil
}

// strict is surroundings': the higher of the value for all devices and the
// device's own counts (ip-sysctl.rst).
func strict(device string) bool {
	highest := 0
	for _, name := range []string{"all", device} {
		text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/rp_filter")
		if n, bad := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && bad == nil {
			highest = max(highest, n)
		}
	}
	return highest == 1
}
