package switchover

import (
	"context"
	"net"
	"net/netip"

	"github.com/lenonet/leno/backend/kernel"
)

// routesOver returns the destinations of leno's routes into a device, nil if they cannot be read.
func routesOver(ctx context.Context, link string) map[netip.Prefix]bool {
	device, err := net.InterfaceByName(link)
	if err != nil {
		return nil
	}
	handle, err := kernel.Open()
	if err != nil {
		return nil
	}
	defer handle.Close()
	routes, err := handle.Routes(kernel.Owner{Links: []int{device.Index}}).List(ctx)
	if err != nil {
		return nil
	}
	out := make(map[netip.Prefix]bool, len(routes))
	for key := range routes {
		out[key.Dst] = true
	}
	return out
}
