package lab

import (
	"context"
	"fmt"
	"net/netip"
)

// A Wire is a cable between two hosts: a veth pair with one end in each host, next to the switch.
// Without a bridge on the way it is the shortest possible underlay.
type Wire struct {
	Device string          // name of both ends, "wire0" for a host's first
	MTU    int             // bytes
	Addrs  [2][]netip.Addr // addresses of the first and the second host's end, IPv4 then IPv6
}

// maxWires is how many wires the address range allows: 198.18.0.0/15, reserved for benchmarks (RFC
// 2544).
const maxWires = 255

// Wire connects two hosts by a cable with the lab's MTU. The N-th wire, counted from 1, has the
// addresses 198.18.N.1/24 and 198.18.N.2/24, fd00:c6:12:N::1/64 and ::2/64. Default routes stay on
// the switch.
func (l *Lab) Wire(ctx context.Context, a, b *Host) (*Wire, error) {
	if l.wires == maxWires || a == b {
		return nil, fmt.Errorf("no cable between %s and %s: %d are there, %d is the most", a.Name, b.Name, l.wires, maxWires)
	}
	l.wires++
	n, number := byte(l.wires), max(a.wires, b.wires)
	a.wires, b.wires = number+1, number+1
	w := &Wire{Device: fmt.Sprintf("wire%d", number), MTU: l.opts.MTU}
	err := a.ip(ctx, fmt.Sprintf("link add %s mtu %d type veth peer name %s mtu %d netns %s",
		w.Device, l.opts.MTU, w.Device, l.opts.MTU, b.Namespace.Name))
	if err != nil {
		return nil, err
	}
	for i, h := range []*Host{a, b} {
		lines := []string{fmt.Sprintf("link set %s up", w.Device)}
		for _, p := range []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, n, byte(i + 1)}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0, 0, 0xc6, 0, 0x12, 7: n, 15: byte(i + 1)}), 64),
		} {
			w.Addrs[i] = append(w.Addrs[i], p.Addr())
			lines = append(lines, addressLine(p, w.Device))
		}
		if err := h.ip(ctx, lines...); err != nil {
			return nil, err
		}
	}
	l.step("%s and %s: a cable, %s %s and %s, MTU %d", a.Name, b.Name, w.Device, w.Addrs[0][0], w.Addrs[1][0], l.opts.MTU)
	return w, nil
}
