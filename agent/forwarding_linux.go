package agent

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lenonet/leno/backend/kernel"
)

// ensureForwarding looks at the kernel's switches for the family of a, for
// packets that come in by those of the devices that exist, and switches on what is
// off where set asks, unless it costs the host routes.
func ensureForwarding(a netip.Addr, links []string, set bool) (f Forwarding, err error) {
	links = slices.DeleteFunc(slices.Clone(links), func(link string) bool {
		_, err := kernel.Sysctl("ipv4", "conf", link, "forwarding")
		return err != nil
	})
	for _, parts := range forwardingSwitches(a, links) {
		value, err := kernel.Sysctl(parts...)
		if err != nil {
			return f, err
		}
		name := "net." + strings.Join(parts, ".")
		switch {
		case value != "0":
			continue
		case set && a.Is6():
			if f.Advertised, err = kernel.Advertised(); err != nil {
				return f, err
			}
		}
		if !set || len(f.Advertised) > 0 {
			f.Off = append(f.Off, name)
			continue
		}
		if _, err := kernel.SetSysctl("1", parts...); err != nil {
			return f, err
		}
		f.Set = append(f.Set, name)
	}
	return f, nil
}
