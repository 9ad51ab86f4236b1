package switchover

import "github.com/lenonet/leno/backend"

// Links returns the names of the devices of a network's backends: that of the current one and, during a switch, that of
// the next one. A backend need not have created its device, and host-gw never does.
func (c Definition) Links(network string) []string {
	current, _ := c.Current.Link(network)
	if c.Next == nil {
		return []string{current}
	}
	next, _ := c.Next.Link(network)
	return []string{current, next}
}

// Ports returns the UDP ports of all backends of a definition with effective options.
func (c Definition) Ports(types map[string]backend.Type) []backend.Port {
	out := []backend.Port{c.Current.Port(types)}
	if c.Next != nil {
		out = append(out, c.Next.Port(types))
	}
	return out
}

// Tunnels reports whether packets of other hosts arrive by the network's devices only, with all backends of a definition.
func (c Definition) Tunnels(types map[string]backend.Type) bool {
	return types[c.Current.Type].Tunnels && (c.Next == nil || types[c.Next.Type].Tunnels)
}

// CanSwitch reports whether networks can be switched from and to a backend. This is not possible with a backend that
// only leases subnets, because other programs carry its packets.
func CanSwitch(kind string) bool { return kind != "alloc" }
