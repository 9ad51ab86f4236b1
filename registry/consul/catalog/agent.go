// Package catalog is about the Consul agent that gets a client's requests: its node, and the services registered with
// it.
package catalog

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/registry/conns"
	"github.com/lenonet/leno/registry/consul/transport"
)

// Agent is the Consul agent. It is safe for concurrent use.
type Agent struct {
	client *transport.Client
	logger hclog.Logger
	tokens *sync.Map
}

// New returns the agent that gets the requests of a client. tokens are the tokens under which this process has
// registered services, by service ID. All clients of one process have them in common.
func New(client *transport.Client, logger hclog.Logger, tokens *sync.Map) Agent {
	return Agent{client, logger, tokens}
}

// Self is what an agent says of itself.
type Self struct{ NodeName, Datacenter string }

// Self returns what the agent says of itself.
func (a Agent) Self(ctx context.Context) (Self, error) {
	opts, cancel := a.client.Query(ctx, transport.Read{})
	defer cancel()
	var self struct{ Config Self }
	_, err := a.client.API.Raw().Query("/v1/agent/self", &self, opts)
	return self.Config, transport.Classify(err)
}

// NodeName returns the name of the Consul agent's node when that agent is on this host, that is, behind a unix socket,
// a loopback address, or an address of one of this host's interfaces.
func (a Agent) NodeName(ctx context.Context) (string, error) {
	local, err := a.isOnThisHost(ctx)
	if err != nil || !local {
		return "", err
	}
	self, err := a.Self(ctx)
	if err != nil {
		return "", fmt.Errorf("consul node name: %w", err)
	}
	return self.NodeName, nil
}

func (a Agent) isOnThisHost(ctx context.Context) (bool, error) {
	host := a.client.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if host == "" {
		return true, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return false, fmt.Errorf("consul address %s: %w", host, transport.Classify(err))
	}
	own, err := conns.HostAddrs()
	return slices.ContainsFunc(addrs, func(addr netip.Addr) bool { return isLocal(addr, own) }), err
}

func isLocal(addr netip.Addr, own []netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	// Dialling the unspecified address reaches this host.
	return addr.IsLoopback() || addr.IsUnspecified() || slices.Contains(own, addr)
}
