package agent

import (
	"net/netip"
	"strings"

	"github.com/lenonet/leno/backend/kernel"
)

// ensureForwarding looks at the kernel's switches for the family of a, for
// packets that come in by the first of the devices that exists, and switches on
// what is off where set asks, unless it costs the host routes.
func ensureForwarding(a netip.Addr, links []string, set bool) (f Forwarding, err error) {
	link := ""
	for _, l := range links {
		if _, err := kernel.Sysctl("ipv4", "conf", l, "forwarding"); err == nil {
			link = l
			break
		}
	}
	for _, parts := range forwardingSwitches(a, link) {
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
