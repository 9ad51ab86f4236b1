package agent

import (
	"context"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// watchNetworks keeps the set of all networks up to date. It keeps the previous set after an uncertain answer.
func (a *Agent) watchNetworks(ctx context.Context) error {
	check := health.StoreCheck(a.env.Store.Kind)
	backoff := a.env.Store.Outage.NewLoop()
	_, _, loss := a.env.Store.SetBack.Get()
	var index uint64
	for {
		set, next, err := a.nextNetworks(ctx, index, &loss)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			reason := registry.Reason(err)
			if a.env.Reports.Health.Set("", check, api.Warning, a.o.RegistryName+": "+reason) {
				a.log.Warn("registry cannot be read, packets keep flowing", "registry", a.o.RegistryName, "error", reason)
			}
			index = 0 // the first read after an outage must not wait for a change
			if err := backoff.Wait(ctx, err, nil); err != nil {
				return err
			}
			continue
		}
		index = next
		if a.env.Reports.Health.Set("", check, api.Passing, answers(a.o.RegistryName)) {
			a.log.Info("registry answers", "registry", a.o.RegistryName)
		}
		a.env.Store.Networks.Set(network.Networks{Set: set, Index: next})
		a.records.Set("network list", set.Bad)
	}
}

// nextNetworks returns the networks when they differ from those at index, or at once when loss is closed because the
// store has lost records. Consul itself does not wake a reader if the index of the keys below a prefix goes back, which
// happens when a tree around the prefix is deleted and keys below the prefix had been deleted before.
func (a *Agent) nextNetworks(ctx context.Context, index uint64, loss *<-chan struct{}) (
	registry.NetworkSet, uint64, error) {
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	go func(lost <-chan struct{}) {
		select {
		case <-lost:
			cancel()
		case <-watch.Done():
		}
	}(*loss)
	set, next, err := a.env.Store.Registry.WatchNetworks(watch, index)
	if err == nil || watch.Err() == nil || ctx.Err() != nil {
		return set, next, err
	}
	_, _, *loss = a.env.Store.SetBack.Get()
	return a.env.Store.Registry.WatchNetworks(ctx, 0)
}

// watchReservations returns the reservations of a network as soon as the store has another index than after. If this
// host takes part in the network, it also reports the records that cannot be used.
func (a *Agent) watchReservations(ctx context.Context, n registry.Network, after uint64) (
	registry.ReservationSet, uint64, error) {
	set, index, err := a.env.Store.Registry.WatchReservations(ctx, n, after)
	if run, ok := a.networks.get(n.Name); ok && err == nil {
		run.Leases().ReportReservations(set.Bad)
	}
	return set, index, err
}
