package agent

import (
	"github.com/lenonet/leno/agent/network/datapath"
	"github.com/lenonet/leno/registry"
)

// makeClaim returns this host's claim, which is complete from the first write.
func (r *runner) makeClaim(n registry.Network, p datapath.Place) registry.Claim {
	c := registry.Claim{
		Node: r.env.id.Node, NodeID: r.env.id.NodeID, PublicIPs: p.Choice.Addrs, MTU: p.MTU, Backend: p.Attributes,
		TTL: r.config.Lease.TTL, Hold: r.config.Lease.Hold,
	}
	if lease, held, _ := r.lease.Get(); held {
		c.Session, c.Prefer, c.Since = lease.Session, lease.Subnet(), lease.ModifyIndex
		c.Lately = r.lately(r.shown().local.Renewed)
	} else {
		r.previous(n, &c)
	}
	return c
}

// moveClaim makes the lease follow a host whose underlay has changed.
func (r *runner) moveClaim(n registry.Network, p datapath.Place, readdressed bool) {
	if idle, ok := r.env.registry.(interface{ Close() error }); ok && readdressed {
		// The claim could not be sent over connections from an address that is gone.
		if err := idle.Close(); err != nil {
			r.log.Debug("idle connections stay", "error", err)
		}
	}
	r.claim.Set(r.makeClaim(n, p))
}
