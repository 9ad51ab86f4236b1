package agent

import (
	"context"
	"net"

	"github.com/lenonet/leno/agent/catalog"
	"github.com/lenonet/leno/agent/telemetry"
)

// keepRegistered keeps the agent in the store's catalogue until ctx ends, if the store has a catalogue. After ctx has
// ended, it removes the entry if isIntended reports that the agent stops on purpose, or if the agent gives up its
// leases when it stops. After a fault the entry stays, and its check fails.
func (a *Agent) keepRegistered(ctx context.Context, listener net.Addr, isIntended func() bool) {
	can := a.env.Store.Registry.Abilities()
	if can.Catalog == nil {
		return
	}
	r := catalog.Registration{
		Log:       a.log,
		Catalog:   can.Catalog,
		LocalNode: can.NodeName,
		Listener:  listener,
		Describe:  a.describe,
		Health:    a.env.Reports.Health.Report,
		Outage:    a.env.Store.Outage,
		SetBack:   a.env.Store.SetBack,
		Count: func(err error) {
			a.env.Reports.Telemetry.Count(telemetry.ServiceRegistrations, 1, telemetry.Result(err))
		},
	}
	r.Run(ctx)
	if isIntended() || a.settings.get().Lease.ReleaseOnStop {
		r.Withdraw(ctx)
	}
}

// describe returns what the catalogue shows of this agent.
func (a *Agent) describe() catalog.Description {
	c, self := a.settings.get(), a.self()
	d := catalog.Description{
		Service: c.Consul.Service,
		Node:    self.NodeName,
		NodeID:  self.NodeID,
		Version: self.Version,
		TLS:     c.HTTP.TLS.CertFile != "",
	}
	for _, name := range self.Networks {
		run, ok := a.networks.get(name)
		if !ok {
			continue
		}
		if lease, has := run.Carries(); has {
			d.Memberships = append(d.Memberships, catalog.Membership{
				Network: name,
				Backend: lease.Backend.Type,
				Subnets: lease.Subnets,
			})
		}
		if addrs := run.Status().Local.Underlay.Addresses; len(addrs) > 0 && !d.Address.IsValid() {
			d.Address = addrs[0]
		}
	}
	return d
}
