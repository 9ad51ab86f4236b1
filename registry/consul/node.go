package consul

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// NodeName implements registry.NodeNamer. It returns the name of the Consul agent's node when that agent is on this
// host, that is, behind a unix socket, a loopback address, or an address of one of this host's interfaces.
func (c *Client) NodeName(ctx context.Context) (string, error) {
	local, err := c.onThisHost(ctx)
	if err != nil || !local {
		return "", err
	}
	name, err := c.agentNode(ctx)
	if err != nil {
		return "", fmt.Errorf("consul node name: %w", err)
	}
	return name, nil
}

// agentNode returns the name of the Consul agent's node, wherever that agent runs.
func (c *Client) agentNode(ctx context.Context) (string, error) {
	opts, cancel := c.kv.query(ctx, read{})
	defer cancel()
	var self map[string]map[string]any
	if _, err := c.api.Raw().Query("/v1/agent/self", &self, opts); err != nil {
		return "", classify(err)
	}
	name, _ := self["Config"]["NodeName"].(string)
	return name, nil
}

func (c *Client) onThisHost(ctx context.Context) (bool, error) {
	host := c.conn.host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if host == "" {
		return true, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return false, fmt.Errorf("consul address %s: %w", host, classify(err))
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false, fmt.Errorf("addresses of this host: %w", err)
	}
	for _, addr := range addrs {
		if isLocal(addr, own) {
			return true, nil
		}
	}
	return false, nil
}

func isLocal(addr netip.Addr, own []net.Addr) bool {
	addr = addr.Unmap().WithZone("")
	// Dialling the unspecified address reaches this host.
	if addr.IsLoopback() || addr.IsUnspecified() {
		return true
	}
	for _, o := range own {
		if p, err := netip.ParsePrefix(o.String()); err == nil && p.Addr().Unmap().WithZone("") == addr {
			return true
		}
	}
	return false
}
