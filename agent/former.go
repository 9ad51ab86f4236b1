package agent

import (
	"net/netip"

	"github.com/lenonet/leno/agent/state"
)

// keepFormer stores the subnet that this host has in a network that its configuration no longer wants. If the network
// comes back, the host asks for the same subnet.
func (a *Agent) keepFormer(network string) {
	subnet := netip.Prefix{}
	if run, ok := a.runner(network); ok {
		if lease, held := run.Lease(); held {
			subnet = lease.Subnet()
		}
	}
	if before, err := state.Load(a.current().DataDir, network); err == nil && !subnet.IsValid() && len(before.Subnets) > 0 && before.Subnets[0] != before.Revoked {
		subnet = before.Subnets[0]
	}
	if !subnet.IsValid() {
		return
	}
	if err := a.env.Former.Put(network, subnet); err != nil {
		a.log.Warn("subnet of a network that is left cannot be written down", "network", network, "subnet", subnet, "error", err)
	}
}
