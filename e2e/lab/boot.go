package lab

import (
	"context"
	"fmt"
	"strings"
)

// Wipe removes from the host what a boot removes: everything leno has in the kernel, including its
// firewall rules and sysctls. The agent must have ended. Files stay; a caller that keeps files in a
// /run of its own removes them itself.
func (h *Host) Wipe(ctx context.Context) error {
	links, err := h.Exec(ctx, "ip", "-o", "link", "show")
	if err != nil {
		return err
	}
	commands := []string{
		"ip route flush proto 108", "ip -6 route flush proto 108", "ip neigh flush all", "ip -6 neigh flush all",
		"nft flush ruleset", "iptables -P FORWARD DROP", "ip6tables -P FORWARD DROP",
		// IPv6 forwarding is the operator's to switch on, also after a boot.
		"sysctl -q -w net.ipv4.ip_forward=0",
	}
	for line := range strings.Lines(links) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], "leno-") {
			commands = append(commands, "ip link del "+strings.TrimSuffix(fields[1], ":"))
		}
	}
	for _, command := range commands {
		if _, err := h.Exec(ctx, strings.Fields(command)...); err != nil {
			return fmt.Errorf("play a boot: %w", err)
		}
	}
	return nil
}
