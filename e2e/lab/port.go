package lab

import (
	"context"
	"fmt"
	"net/netip"
)

// A Port is a place for a virtual machine on the switch: a tap device in the switch's namespace,
// for a program that Switch.Start starts. Packets can be captured there.
type Port struct {
	Device   string         // name of the tap device
	MTU      int            // bytes
	Prefixes []netip.Prefix // the machine's addresses, IPv4 then IPv6: those of the next free host
	Gateways []netip.Addr   // the switch, which is the default router
}

// maxDevice is the longest name of a network device.
const maxDevice = 15

// AddPort adds a port with the given name to the switch.
func (l *Lab) AddPort(ctx context.Context, name string) (*Port, error) {
	if len(l.Hosts)+l.ports >= maxHosts {
		return nil, fmt.Errorf("port %s: a lab has at most %d hosts and machines", name, maxHosts)
	}
	port, err := l.AddCard(ctx, name)
	if err != nil {
		return nil, err
	}
	for i, addr := range hostAddrs(len(l.Hosts) + l.ports) {
		port.Prefixes = append(port.Prefixes, netip.PrefixFrom(addr, underlays[i].prefix.Bits()))
		port.Gateways = append(port.Gateways, underlays[i].gateway.Addr())
	}
	l.ports++
	l.step("%s: a port, %s and %s", name, port.Prefixes[0], port.Prefixes[1])
	return port, nil
}

// AddCard adds a port for an additional network card of a machine, without addresses.
func (l *Lab) AddCard(ctx context.Context, name string) (*Port, error) {
	if len(name) > maxDevice {
		return nil, fmt.Errorf("port %q: a name has at most %d characters", name, maxDevice)
	}
	err := l.Switch.ip(ctx,
		fmt.Sprintf("tuntap add dev %s mode tap", name),
		fmt.Sprintf("link set %s mtu %d master br0 up", name, l.opts.MTU))
	if err != nil {
		return nil, err
	}
	return &Port{Device: name, MTU: l.opts.MTU}, nil
}
