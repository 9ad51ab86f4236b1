package agent

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/lenonet/leno/agent/examine"
	"github.com/lenonet/leno/api"
)

// examine diagnoses this host, unless another examination is running.
func (a *Agent) examine(ctx context.Context, o api.DoctorOptions) (api.Diagnosis, error) {
	if since, ok := a.exams.start(); !ok {
		return api.Diagnosis{}, &api.Error{Code: http.StatusConflict, Message: fmt.Sprintf(
			"an examination is running since %s: try again when it is done", time.Since(since).Round(time.Second))}
	}
	defer a.exams.end()
	ctx, cancel := context.WithTimeout(ctx, examine.Timeout)
	defer cancel()
	return a.diagnose(ctx, o), nil
}

// diagnose examines this host and the networks in which it takes part.
func (a *Agent) diagnose(ctx context.Context, o api.DoctorOptions) api.Diagnosis {
	self := a.self()
	report, _ := a.env.Reports.Health.Report()
	h := examine.Host{Node: self.NodeName, Config: a.current(), Health: report}
	for _, name := range self.Networks {
		if run, ok := a.runner(name); ok {
			h.Networks = append(h.Networks, a.examined(run))
		}
	}
	return a.examiner().Examine(ctx, h, o)
}

func (a *Agent) examiner() *examine.Examiner {
	return &examine.Examiner{
		Registry:         a.env.Store.Registry,
		RegistryName:     a.o.RegistryName,
		Backends:         a.env.Datapaths.Backends,
		EnsureForwarding: a.env.Datapaths.EnsureForwarding,
		ReadRules:        a.o.InTheWay,
		Datagrams:        a.o.Datagrams,
	}
}

// examined returns what the runner knows about its network now.
func (a *Agent) examined(run *running) examine.Network {
	s := run.Status()
	n := examine.Network{
		Local:      run.Local(),
		Definition: s.Definition,
		Shown:      s.Local,
		TTL:        run.Config().Lease.TTL,
		Probe: func(ctx context.Context, peers []api.Peer, r api.ProbeRequest) (api.Probe, error) {
			return a.probe(ctx, run, peers, r)
		},
	}
	if lease, held := run.Lease(); held {
		n.Held, n.Lease = &lease, lease
	}
	if before, carried := run.Resumed(); carried {
		n.Definition, n.Lease = before.Network, before.Own
	}
	if n.Definition.Backend.Type != "" {
		n.Peers = run.PeerList().Peers
	}
	return n
}
