package consul

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/lenonet/leno/registry/conns"
)

// consulAgent is the Consul agent to which the client sends its requests. It has a node's name, and services that are
// registered with it.
type consulAgent struct {
	kv     *kv
	conn   connection
	host   string    // as in connection
	tokens *sync.Map // by service ID: the token under which this process registered it last
}

// NodeName implements registry.NodeNamer. It returns the name of the Consul agent's node when that agent is on this
// host, that is, behind a unix socket, a loopback address, or an address of one of this host's interfaces.
func (a consulAgent) NodeName(ctx context.Context) (string, error) {
	local, err := a.onThisHost(ctx)
	if err != nil || !local {
		return "", err
	}
	name, err := a.nodeName(ctx)
	if err != nil {
		return "", fmt.Errorf("consul node name: %w", err)
	}
	return name, nil
}

// nodeName returns the name of the agent's node, on whichever host that is.
func (a consulAgent) nodeName(ctx context.Context) (string, error) {
	opts, cancel := a.kv.query(ctx, read{})
	defer cancel()
	var self map[string]map[string]any
	if _, err := a.kv.api.Raw().Query("/v1/agent/self", &self, opts); err != nil {
		return "", classify(err)
	}
	name, _ := self["Config"]["NodeName"].(string)
	return name, nil
}

// attempts is how many new connections are tried to find the Consul agent that has a service. Behind a balancer, each of
// them may lead to another Consul agent.
const attempts = 5

// onNewConnection calls f with an agent that makes its requests one after another over one connection of their own, so
// that they reach the same Consul agent.
func (a consulAgent) onNewConnection(f func(consulAgent) error) error {
	conn := a.conn
	conn.base = conn.base.Clone()
	conn.base.MaxConnsPerHost = 1
	defer conn.base.CloseIdleConnections()
	client, err := conn.client()
	if err != nil {
		return err
	}
	kv := *a.kv
	kv.api = client
	a.kv, a.conn = &kv, conn
	return f(a)
}

func (a consulAgent) onThisHost(ctx context.Context) (bool, error) {
	host := a.host
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
	own, err := conns.HostAddrs()
	if err != nil {
		return false, err
	}
	for _, addr := range addrs {
		if isLocal(addr, own) {
			return true, nil
		}
	}
	return false, nil
}

func isLocal(addr netip.Addr, own []netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	// Dialling the unspecified address reaches this host.
	return addr.IsLoopback() || addr.IsUnspecified() || slices.Contains(own, addr)
}
