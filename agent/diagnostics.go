package agent

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/lenonet/leno/agent/doctor"
	"github.com/lenonet/leno/agent/examine"
	"github.com/lenonet/leno/agent/fleet"
	"github.com/lenonet/leno/agent/members"
	"github.com/lenonet/leno/agent/network"
	"github.com/lenonet/leno/agent/paths"
	"github.com/lenonet/leno/agent/probe"
	"github.com/lenonet/leno/agent/trace"
	"github.com/lenonet/leno/api"
)

// diagnostics examines this host and its peers on request, and tests the paths to the peers all the time.
type diagnostics struct {
	options  Options
	env      *network.Deps
	settings *settings
	networks *networks
	exams    exclusive // examinations of this host, whose subject is ""
	traces   exclusive // through this host, whose subject is ""
	probes   exclusive // by network
	paths    *paths.Monitor
	members  *members.Watcher
}

func newDiagnostics(log hclog.Logger, o Options, env *network.Deps, s *settings, ns *networks) *diagnostics {
	d := &diagnostics{options: o, env: env, settings: s, networks: ns}
	d.members = members.New(o.Registry.Abilities().Members, env.Reports.Changed)
	d.paths = paths.New(paths.Options{
		Log:       log.Named("paths"),
		Telemetry: env.Reports.Telemetry,
		Networks: func() (out []paths.Network) {
			for _, run := range ns.all() {
				list := func() []api.Peer { return d.peers(run, false).Peers }
				out = append(out, paths.Network{Name: run.Local().Name, Node: env.Identity.Get().Node, Host: run.Probed,
					Peers: list})
			}
			return out
		},
		Probe:    o.Probe,
		Listen:   o.Listen,
		Health:   env.Reports.Health,
		Events:   env.Reports.Events,
		Changed:  env.Reports.Changed,
		Interval: func() time.Duration { return s.get().ProbeInterval },
		Summary:  d.summary,
		LosesDatagrams: func(ctx context.Context, own netip.Addr, to netip.Prefix) bool {
			return o.Datagrams(ctx, own, to) == doctor.No
		},
	})
	return d
}

// summary returns what this host says of itself in a network, without what it knows of the paths.
func (d *diagnostics) summary(name string) api.HostSummary {
	report, _ := d.env.Reports.Health.Report()
	var local api.Local
	if run, ok := d.networks.get(name); ok {
		local = run.Status().Local
	}
	return fleet.Summarize(d.options.Version, local, report, name, time.Now())
}

// examine diagnoses this host, unless another examination is running.
func (d *diagnostics) examine(ctx context.Context, o api.DoctorOptions) (api.Diagnosis, error) {
	end, err := d.exams.start("", "an examination")
	if err != nil {
		return api.Diagnosis{}, err
	}
	defer end()
	ctx, cancel := context.WithTimeout(ctx, examine.Timeout)
	defer cancel()
	return d.diagnose(ctx, o), nil
}

// trace follows packets between two addresses, unless another trace is running.
func (d *diagnostics) trace(ctx context.Context, r api.TraceRequest) (api.Trace, error) {
	end, err := d.traces.start("", "a trace")
	if err != nil {
		return api.Trace{}, err
	}
	defer end()
	ctx, cancel := context.WithTimeout(ctx, examine.Timeout)
	defer cancel()
	h := trace.Host{Node: d.env.Identity.Get().Node}
	for _, name := range d.networks.names() {
		if run, ok := d.networks.get(name); ok && run.Status().Defined {
			n := d.examined(run)
			n.Peers = d.peers(run, false).Peers
			h.Networks = append(h.Networks, n.Traced(d.env.Datapaths.Backends, func(ctx context.Context,
				node string) (api.Probe, error) {
				return d.probePeers(ctx, run, api.ProbeRequest{Peers: []string{node}})
			}))
		}
	}
	return d.options.Trace(ctx, h, r)
}

// diagnose examines this host and the networks in which it takes part.
func (d *diagnostics) diagnose(ctx context.Context, o api.DoctorOptions) api.Diagnosis {
	report, _ := d.env.Reports.Health.Report()
	h := examine.Host{Node: d.env.Identity.Get().Node, Config: d.settings.get(), Health: report}
	for _, name := range d.networks.names() {
		if run, ok := d.networks.get(name); ok {
			h.Networks = append(h.Networks, d.examined(run))
		}
	}
	return d.examiner().Examine(ctx, h, o)
}

func (d *diagnostics) examiner() *examine.Examiner {
	return &examine.Examiner{
		Registry:         d.env.Store.Registry,
		RegistryName:     d.options.RegistryName,
		Backends:         d.env.Datapaths.Backends,
		EnsureForwarding: d.env.Datapaths.EnsureForwarding,
		ReadRules:        d.options.InTheWay,
		Datagrams:        d.options.Datagrams,
	}
}

// examined returns what the runner knows about its network now.
func (d *diagnostics) examined(run *network.Runner) examine.Network {
	s := run.Status()
	n := examine.Network{
		Local:      run.Local(),
		Definition: s.Definition,
		Shown:      s.Local,
		TTL:        run.Config().Lease.TTL,
		Probe: func(ctx context.Context, peers []api.Peer, r api.ProbeRequest) (api.Probe, error) {
			return d.probe(ctx, run, peers, r)
		},
	}
	if lease, held := run.Lease(); held {
		n.Held, n.Lease = &lease, lease
	}
	if before, carried := run.Resumed(); carried {
		n.Definition, n.Lease = before.Network, before.Own
	}
	if n.Definition.Backend.Type != "" {
		n.Peers = d.peers(run, false).Peers
	}
	return n
}

// probePeers sends packets to peers of a network and returns their answers, with the doctor's findings about them.
func (d *diagnostics) probePeers(ctx context.Context, run *network.Runner,
	request api.ProbeRequest) (api.Probe, error) {
	peers := run.Peers().Peers
	out, err := d.probe(ctx, run, peers, request)
	if err != nil {
		return out, err
	}
	asked, err := probe.SelectPeers(peers, request.Peers)
	out.Findings = d.judgePaths(ctx, run, asked, out.Peers)
	return out, err
}

// judgePaths returns the doctor's findings about the answers of the probed peers.
func (d *diagnostics) judgePaths(
	ctx context.Context, run *network.Runner, asked []api.Peer, answers []api.PeerProbe,
) []api.Finding {
	return d.examiner().JudgePaths(ctx, d.examined(run), asked, answers)
}

// probe sends packets to the peers of a network, or to those that the request names. Only one probe of a network runs
// at a time. The answers are in the order of the peers.
func (d *diagnostics) probe(
	ctx context.Context, run *network.Runner, peers []api.Peer, request api.ProbeRequest,
) (api.Probe, error) {
	name := run.Local().Name
	host, err := run.Probed()
	if err != nil {
		return api.Probe{}, err
	}
	end, err := d.probes.start(name, "a probe of network "+name)
	if err != nil {
		return api.Probe{}, err
	}
	defer end()
	out, err := d.options.Probe(ctx, host, peers, request)
	var field *probe.FieldError
	var unknown *probe.UnknownPeerError
	switch {
	case errors.As(err, &field):
		return out, api.Errorf(http.StatusBadRequest, "%v", err)
	case errors.As(err, &unknown):
		return out, api.Errorf(http.StatusNotFound, "network %s: %v", name, err)
	case errors.Is(err, probe.ErrNoCapability):
		return out, api.Errorf(http.StatusNotImplemented, "%v", err)
	}
	return out, err
}
