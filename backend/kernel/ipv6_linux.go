package kernel

import (
	"maps"
	"net/netip"

	"github.com/lenonet/leno/backend"
)

// IPv6 is what a device can have of IPv6. The kernel refuses addresses, neighbours and routes of a family that is
// switched off on their device, and a route that refuses packets only if it has no IPv6 at all.
type IPv6 struct {
	missing string // why the device has none; "" if it has
	kernel  bool   // the kernel has IPv6
}

// FindIPv6 returns what a device can have of IPv6 in the network namespace of the calling thread. A device that is not
// there, because another program has just renamed or deleted it, is no reason to remove what it can have.
func FindIPv6(link string) IPv6 {
	value, err := Sysctl("ipv6", "conf", link, "disable_ipv6")
	switch {
	case err == nil && value != "0":
		return IPv6{"IPv6 is disabled: sysctl net.ipv6.conf." + link + ".disable_ipv6 is " + value, true}
	case err == nil:
		return IPv6{kernel: true}
	case !kernelHasIPv6():
		return IPv6{"the kernel has no IPv6", false}
	case isConfigured("ipv4", link):
		return IPv6{"device " + link + " has no IPv6", true}
	}
	return IPv6{kernel: true}
}

// kernelHasIPv6 reports whether the kernel has IPv6.
func kernelHasIPv6() bool { return isConfigured("ipv6", "all") }

// isConfigured reports whether the kernel has settings of a family for a device.
func isConfigured(family, device string) bool {
	_, err := Sysctl(family, "conf", device, "forwarding")
	return err == nil
}

// OnDevice reports whether the device can have IPv6.
func (v IPv6) OnDevice() bool { return v.missing == "" }

// Uncarried returns the pools whose packets the device does not carry.
func (v IPv6) Uncarried(pools []netip.Prefix) (out []backend.Uncarried) {
	for _, pool := range pools {
		if pool.Addr().Is6() && !v.OnDevice() {
			out = append(out, backend.Uncarried{Pool: pool, Reason: v.missing})
		}
	}
	return out
}

// Addresses returns the wanted addresses that the device can have.
func (v IPv6) Addresses(want map[netip.Prefix]Address) map[netip.Prefix]Address {
	return filter(v, want, func(k netip.Prefix, _ Address) bool { return k.Addr().Is4() })
}

// Neighbours returns the wanted neighbours that the device can have.
func (v IPv6) Neighbours(want map[NeighbourKey]MAC) map[NeighbourKey]MAC {
	return filter(v, want, func(k NeighbourKey, _ MAC) bool { return k.Addr.Is4() })
}

// Routes returns the wanted routes that the kernel accepts: the routes that refuse packets also without IPv6 on the
// device.
func (v IPv6) Routes(want map[RouteKey]Route) map[RouteKey]Route {
	return filter(v, want, func(k RouteKey, r Route) bool { return k.Dst.Addr().Is4() || r.Unreachable && v.kernel })
}

// filter returns want itself if the device has IPv6, and otherwise a copy with the accepted entries.
func filter[K comparable, E any](v IPv6, want map[K]E, accepts func(K, E) bool) map[K]E {
	if v.OnDevice() {
		return want
	}
	out := maps.Clone(want)
	maps.DeleteFunc(out, func(k K, e E) bool { return !accepts(k, e) })
	return out
}
