package packettrace

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/lenonet/leno/agent/trace"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/backend/kernel"
)

// isPrivileged reports whether this process is root's and in the network namespace of the agent. An agent under systemd
// has neither the right to look into containers nor that to send packets from them.
func (t *tracer) isPrivileged(ctx context.Context, c *api.Client) bool {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil || os.Geteuid() != 0 {
		return false
	}
	self, err := c.Self(ctx)
	return err == nil && self.NetworkNamespace == own
}

// traceInProcess follows packets through this host with what the agent knows of its networks.
func traceInProcess(ctx context.Context, c *api.Client, r api.TraceRequest) (api.Trace, error) {
	self, err := c.Self(ctx)
	if err != nil {
		return api.Trace{}, err
	}
	list, err := c.Networks(ctx)
	if err != nil {
		return api.Trace{}, err
	}
	settings := map[string]string{}
	if conf, err := c.Configuration(ctx); err == nil { // without it, advice is less precise
		for _, s := range conf.Settings {
			settings[s.Name] = s.Value
		}
	}
	h := trace.Host{Node: self.NodeName}
	for _, n := range list.Networks {
		if n.Local == nil {
			continue
		}
		peers, err := c.Peers(ctx, n.Name)
		if err != nil {
			return api.Trace{}, err
		}
		traced := newTracedNetwork(n, peers.Peers)
		traced.Forward = settings["network."+n.Name+".forward"] == "true"
		traced.IPMasq = settings["network."+n.Name+".ip_masq"] == "true"
		if traced.Carries() {
			traced.Probe = func(ctx context.Context, node string) (api.Probe, error) {
				return c.ProbePeers(ctx, n.Name, api.ProbeRequest{Peers: []string{node}})
			}
		}
		h.Networks = append(h.Networks, traced)
	}
	return trace.Run(ctx, h, r)
}

// newTracedNetwork returns what a trace needs to know of a network.
func newTracedNetwork(n api.Network, peers []api.Peer) trace.Network {
	objects := []json.RawMessage{n.Backend}
	if n.SwitchTo != nil {
		objects = append(objects, n.SwitchTo)
	}
	out := trace.Network{
		Name:    n.Name,
		Backend: n.Local.Backend,
		Local:   *n.Local,
		Links:   kernel.Arrivals(n.Name, n.Local.Underlay.Interface, objects...),
		Peers:   peers,
	}
	for _, p := range n.Pools {
		out.Pools = append(out.Pools, p.Prefix)
	}
	for _, object := range objects {
		var o struct {
			Type       string `json:"type"`
			Port       int    `json:"port"`
			ListenPort int    `json:"listen_port"`
		}
		if json.Unmarshal(object, &o) == nil && o.Type == out.Backend {
			out.Port = max(o.Port, o.ListenPort)
		}
	}
	return out
}

// ownOverlayAddress returns an address of this host in one of its subnets, of the family of a; zero if it has none.
func ownOverlayAddress(subnets []netip.Prefix, a netip.Addr) netip.Addr {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}
	}
	for _, found := range all {
		p, err := netip.ParsePrefix(found.String())
		if err != nil || p.Addr().Is4() != a.Is4() {
			continue
		}
		if slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(p.Addr()) }) && p.Addr() != a {
			return p.Addr()
		}
	}
	return netip.Addr{}
}
