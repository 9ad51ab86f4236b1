package lab

import (
	"context"
	"fmt"
	"strings"
)

// Wipe takes from the host what a boot takes: all that the kernel has of leno,
// also in the firewall and of sysctls. The agent must have ended; files stay, so
// those in a /run of the caller's are the caller's to remove.
func (h *Host) Wipe(ctx context.Context) error {
	links, err := h.Exec(ctx, "ip", "-o", "link", "show")
	if err != nil {
		return err
	}
	commands := []string{
		"ip route flush proto 108", "ip -6 route flush proto 108", "ip neigh flush all", "ip -6 neigh flush all",
		"nft flush ruleset", "iptables -P FORWARD DROP", "ip6tables -P FORWARD DROP",
		// IPv6 forwarding is for an operator to switch on, at a boot too.
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
