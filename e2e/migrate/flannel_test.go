package migrate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/lenonet/leno/e2e/lab"
)

// flannel is what flannel leaves in the kernel of a host, whether it is running or not: its device
// and, for every other host, a route, a neighbour and a forwarding entry. The tests that use it do not
// run flannel, TestFlanneld does.
type flannel struct {
	subnet netip.Prefix // of the host
	mac    string
}

// theirs returns flannel's state on the n-th host.
func theirs(n int) flannel {
	return flannel{subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(52 + 7*n), 0}), 24), mac: fmt.Sprintf("c6:d2:32:6f:8f:%02x", 0x44+n)}
}

// layFlannel sets up flannel's vxlan on all hosts, with a container on each.
func layFlannel(ctx context.Context, hosts []*lab.Host) (containers []*lab.Container, err error) {
	for i, h := range hosts {
		own := theirs(i)
		lines := []string{
			fmt.Sprintf("ip link add flannel.1 type vxlan id 1 dev eth0 local %s dstport 8472 nolearning", h.Addrs[0]),
			fmt.Sprintf("ip link set flannel.1 address %s mtu 1450 up", own.mac),
			fmt.Sprintf("ip address add %s/32 dev flannel.1", own.subnet.Addr()),
			"sysctl -qw net.ipv4.ip_forward=1",
		}
		for j, other := range hosts {
			if peer := theirs(j); j != i {
				lines = append(lines,
					fmt.Sprintf("ip neighbour replace %s lladdr %s dev flannel.1 nud permanent", peer.subnet.Addr(), peer.mac),
					fmt.Sprintf("bridge fdb append %s dev flannel.1 dst %s", peer.mac, other.Addrs[0]),
					fmt.Sprintf("ip route add %s via %s dev flannel.1 onlink", peer.subnet, peer.subnet.Addr()))
			}
		}
		if _, err := h.Exec(ctx, "sh", "-euc", strings.Join(lines, "\n")); err != nil {
			return nil, err
		}
		// The lab's containers read variables with leno's names. This file is not the one that
		// leno's agent reads.
		env := fmt.Sprintf("LENO_SUBNET=%s/24\nLENO_MTU=1450\n", own.subnet.Addr().Next())
		if err := os.WriteFile(h.SubnetFile("flannel"), []byte(env), 0o644); err != nil {
			return nil, err
		}
		c, err := h.AddContainer(ctx, "flannel")
		if err != nil {
			return nil, err
		}
		containers = append(containers, c)
	}
	return containers, nil
}

// routesTo returns the devices over which a host has routes to the other hosts' subnets, the
// preferred one first: "flannel.1", "leno-default flannel.1".
func routesTo(ctx context.Context, h *lab.Host, peer flannel) (string, error) {
	family := "-4"
	if peer.subnet.Addr().Is6() {
		family = "-6"
	}
	out, err := h.Exec(ctx, "ip", family, "route", "show", "exact", peer.subnet.String())
	var devices []string
	for line := range strings.Lines(out) {
		_, rest, _ := strings.Cut(line, " dev ")
		device, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		devices = append(devices, device)
	}
	return strings.Join(devices, " "), err
}

// waitRoutes blocks until the host's routes to the others are the wanted ones.
func waitRoutes(ctx context.Context, hosts []*lab.Host, from int, to []int, want string) error {
	return lab.WaitFor(ctx, fmt.Sprintf("%s to route over %s", hosts[from].Name, want), func(ctx context.Context) error {
		var errs []error
		for _, j := range to {
			got, err := routesTo(ctx, hosts[from], theirs(j))
			if err == nil && got != want {
				err = fmt.Errorf("to %s over %q", hosts[j].Name, got)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}
