package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// A Container is a network namespace behind a bridge of a host, with addresses from the host's
// subnet, as a container runtime would create it from the subnet file.
type Container struct {
	*Namespace
	Host    *Host
	Network string
	Addrs   []netip.Addr // one per address family of the network, IPv4 first
	MTU     int          // bytes

	port string // the host's end of its veth
}

// An attachment is a host's bridge for one network.
type attachment struct {
	bridge string
	subnet SubnetFile
	used   []netip.Addr
	count  int // containers attached so far, including removed ones
}

// AddContainer reads the network's subnet file on the host and attaches a new container to the
// host's bridge, which it creates for the first container. The container gets the next free address
// after the gateway's.
func (h *Host) AddContainer(ctx context.Context, network string) (*Container, error) {
	a, err := h.attach(ctx, network)
	if err != nil {
		return nil, err
	}
	a.count++
	role := h.Name + "-" + network
	if a.count > 1 {
		role += fmt.Sprintf("-%d", a.count)
	}
	ns, err := h.lab.namespace(ctx, role)
	if err != nil {
		return nil, err
	}
	c := &Container{
		Namespace: ns, Host: h, Network: network, MTU: a.subnet.MTU,
		port: fmt.Sprintf("%s-%d", a.bridge, a.count),
	}
	err = h.ip(ctx,
		fmt.Sprintf("link add %s mtu %d type veth peer name eth0 mtu %d netns %s", c.port, c.MTU, c.MTU, ns.Name),
		fmt.Sprintf("link set %s master %s up", c.port, a.bridge))
	if err != nil {
		return nil, err
	}
	lines := []string{"link set lo up", "link set eth0 up"}
	var routes []string
	for _, gateway := range a.subnet.Subnets() {
		addr := gateway.Addr().Next()
		for slices.Contains(a.used, addr) {
			addr = addr.Next()
		}
		if !gateway.Contains(addr) {
			return nil, fmt.Errorf("no address is left in %s", gateway.Masked())
		}
		a.used = append(a.used, addr)
		c.Addrs = append(c.Addrs, addr)
		lines = append(lines, addressLine(netip.PrefixFrom(addr, gateway.Bits()), "eth0"))
		routes = append(routes, fmt.Sprintf("route add default via %s dev eth0", gateway.Addr()))
	}
	if err := ns.ip(ctx, append(lines, routes...)...); err != nil {
		return nil, err
	}
	h.lab.step("%s: container %s, %v, MTU %d", h.Name, ns.Name, c.Addrs, c.MTU)
	return c, nil
}

// attach creates the host's bridge for the network with the gateway's addresses, or updates it to
// match a changed subnet file.
func (h *Host) attach(ctx context.Context, network string) (*attachment, error) {
	subnet, err := ReadSubnetFile(h.SubnetFile(network))
	if err != nil {
		return nil, err
	}
	a := h.networks[network]
	if a != nil && a.subnet == subnet {
		return a, nil
	}
	if a != nil {
		return a, a.grow(ctx, h, subnet)
	}
	a = &attachment{bridge: fmt.Sprintf("br%d", len(h.networks)), subnet: subnet}
	lines := []string{
		fmt.Sprintf("link add %s mtu %d type bridge mcast_snooping 0", a.bridge, subnet.MTU),
		fmt.Sprintf("link set %s up", a.bridge),
	}
	for _, gateway := range subnet.Subnets() {
		lines = append(lines, addressLine(gateway, a.bridge))
	}
	if err := h.ip(ctx, lines...); err != nil {
		return nil, err
	}
	h.networks[network] = a
	return a, nil
}

// grow adds the addresses of a family that the network gained to the bridge. Its containers keep
// running, so nothing they use may be removed.
func (a *attachment) grow(ctx context.Context, h *Host, subnet SubnetFile) error {
	had, has := a.subnet.Subnets(), subnet.Subnets()
	if a.subnet.MTU != subnet.MTU || slices.ContainsFunc(had, func(p netip.Prefix) bool { return !slices.Contains(has, p) }) {
		return fmt.Errorf("the subnet of a network on %s has changed: remove its containers first", h.Name)
	}
	var lines []string
	for _, gateway := range has {
		if !slices.Contains(had, gateway) {
			lines = append(lines, addressLine(gateway, a.bridge))
		}
	}
	a.subnet = subnet
	return h.ip(ctx, lines...)
}

// Remove ends the processes in the container and removes it. The bridge is removed with the last
// container.
func (c *Container) Remove(ctx context.Context) error {
	a := c.Host.networks[c.Network]
	a.used = slices.DeleteFunc(a.used, func(u netip.Addr) bool { return slices.Contains(c.Addrs, u) })
	lines := []string{"link del " + c.port}
	if len(a.used) == 0 {
		lines = append(lines, "link del "+a.bridge)
		delete(c.Host.networks, c.Network)
	}
	return errors.Join(c.Host.ip(ctx, lines...), c.Host.lab.RemoveNamespace(ctx, c.Namespace))
}

// RemoveNamespace ends the processes in a namespace and removes it.
func (l *Lab) RemoveNamespace(ctx context.Context, n *Namespace) error {
	l.mu.Lock()
	l.namespaces = slices.DeleteFunc(l.namespaces, func(other *Namespace) bool { return other == n })
	l.mu.Unlock()
	err := endProcesses(ctx, n.Name)
	n.close()
	_, deleted := run(ctx, "", "ip", "netns", "del", n.Name)
	l.step("namespace %s removed", n.Name)
	return errors.Join(err, deleted)
}
