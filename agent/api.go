package agent

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/lenonet/leno/agent/advice"
	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/agent/httpapi"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// newServer returns the server of the agent's API.
func (a *Agent) newServer() (*httpapi.Server, error) {
	return httpapi.New(httpapi.Options{
		Agent:      apiAgent{a},
		Socket:     a.settings.get().HTTP.Socket,
		Logs:       a.o.Logs,
		Registry:   a.env.Store.Registry,
		Store:      a.env.Store.Kind,
		Backends:   a.env.Datapaths.Backends,
		Health:     a.env.Reports.Health,
		Telemetry:  a.env.Reports.Telemetry,
		NewLoop:    a.env.Store.Outage.NewLoop,
		Named:      a.env.Identity.Settled(),
		LookupName: a.o.LookupName,
	})
}

// listen opens the listener of the API. If another agent of this host has the address, the error names its process.
func (a *Agent) listen(ctx context.Context, c config.HTTP) (net.Listener, error) {
	var l net.Listener
	err := a.identity.others.await(ctx, "http.address", func() (err error) {
		l, err = a.http.Listen(c.Address)
		return err
	})
	if errors.Is(err, unix.EADDRINUSE) {
		unlock, locked := a.identity.lockHost()
		if locked != nil {
			return nil, fmt.Errorf("%w: %w", err, locked)
		}
		err = errors.Join(err, unlock())
	}
	if todo := advice.To(advice.Listener, err); err != nil && todo != "" {
		err = fmt.Errorf("%w; %s", err, todo)
	}
	return l, err
}

// apiAgent implements httpapi.Agent.
type apiAgent struct{ agent *Agent }

var _ httpapi.Agent = apiAgent{}

func (v apiAgent) Self() api.Self                   { return v.agent.self() }
func (v apiAgent) Config() config.Config            { return v.agent.settings.get() }
func (v apiAgent) Configuration() api.Configuration { return v.agent.configuration() }

func (v apiAgent) Refresh(ctx context.Context, force bool) (api.Reloaded, error) {
	return v.agent.reloader.Refresh(ctx, force)
}

func (v apiAgent) Diagnose(ctx context.Context, o api.DoctorOptions) (api.Diagnosis, error) {
	return v.agent.diagnostics.examine(ctx, o)
}

func (v apiAgent) Trace(ctx context.Context, r api.TraceRequest) (api.Trace, error) {
	return v.agent.diagnostics.trace(ctx, r)
}

func (v apiAgent) Events(after uint64, network string) ([]api.Event, uint64, <-chan struct{}) {
	return v.agent.env.Reports.Events.After(after, network)
}

func (v apiAgent) Networks() (httpapi.Networks, <-chan struct{}) {
	known, read, changed := v.agent.env.Store.Networks.Get()
	return httpapi.Networks{NetworkSet: known.Set, Index: known.Index, Read: read}, changed
}

func (v apiAgent) Network(name string) (httpapi.Network, bool) {
	run, ok := v.agent.networks.get(name)
	if !ok {
		return nil, false
	}
	return apiNetwork{run, v.agent}, true
}

func (v apiAgent) Joined() <-chan struct{} {
	_, _, changed := v.agent.networks.changed.Get()
	return changed
}

func (v apiAgent) StatusChanged() <-chan struct{} {
	_, _, changed := v.agent.env.Reports.Changed.Get()
	return changed
}

func (v apiAgent) LeasesElsewhere(ctx context.Context, n registry.Network, after uint64) (
	registry.LeaseSet, uint64, error) {
	return v.agent.elsewhere.leases(ctx, n, after)
}

func (v apiAgent) InvalidateLeases(network string) { v.agent.invalidateLeases(network) }

func (v apiAgent) WatchReservations(ctx context.Context, n registry.Network, after uint64) (
	registry.ReservationSet, uint64, error) {
	return v.agent.watchReservations(ctx, n, after)
}

// apiNetwork implements httpapi.Network for one network on this host.
type apiNetwork struct {
	*network.Runner
	agent *Agent
}

var _ httpapi.Network = apiNetwork{}

func (n apiNetwork) Status() httpapi.Status {
	s := n.Runner.Status()
	return httpapi.Status{
		Definition:   s.Definition,
		Defined:      s.Defined,
		Local:        s.Local,
		Lease:        s.Lease.Lease,
		Reservations: s.Reservations,
	}
}

func (n apiNetwork) Resumed() (httpapi.Resumed, bool) {
	before, ok := n.Runner.Resumed()
	return httpapi.Resumed{Definition: before.Network, Leases: before.Leases, Lease: before.Own}, ok
}

func (n apiNetwork) RefreshLeases(ctx context.Context, definition registry.Network) {
	n.Runner.Leases().Refresh(ctx, definition)
}

func (n apiNetwork) Leases(watched bool) (registry.LeaseSet, error) {
	return n.Runner.Leases().Leases(watched)
}
func (n apiNetwork) LeasesChanged() []<-chan struct{} { return n.Runner.Leases().Changed() }

func (n apiNetwork) Peers(withHistory bool) api.PeerList {
	return n.agent.diagnostics.peers(n.Runner, withHistory)
}
func (n apiNetwork) Hosts() ([]api.Host, error) { return n.agent.diagnostics.hosts(n.Runner) }

func (n apiNetwork) Probe(ctx context.Context, r api.ProbeRequest) (api.Probe, error) {
	return n.agent.diagnostics.probePeers(ctx, n.Runner, r)
}

// invalidateLeases makes the next reader of a network's leases see a change that was made through this agent.
func (a *Agent) invalidateLeases(network string) {
	if run, ok := a.networks.get(network); ok {
		run.Leases().Invalidate()
		return
	}
	a.elsewhere.of(network).Invalidate()
}
