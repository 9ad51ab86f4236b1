package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/lenonet/leno/agent/probe"
	"github.com/lenonet/leno/api"
)

// probePeers sends packets to peers of a network and returns their answers, with the doctor's findings about them.
func (a *Agent) probePeers(ctx context.Context, run *running, request api.ProbeRequest) (api.Probe, error) {
	peers := run.PeerList().Peers
	out, err := a.probe(ctx, run, peers, request)
	if err != nil {
		return out, err
	}
	asked, err := probe.Asked(peers, request.Peers)
	out.Findings = a.judgePaths(ctx, run, asked, out.Peers)
	return out, err
}

// judgePaths returns the doctor's findings about the answers of the probed peers.
func (a *Agent) judgePaths(ctx context.Context, run *running, asked []api.Peer, answers []api.PeerProbe) []api.Finding {
	return a.examiner().JudgePaths(ctx, a.examined(run), asked, answers)
}

// probe sends packets to the peers of a network, or to those that the request names. Only one probe of a network runs
// at a time. The answers are in the order of the peers.
func (a *Agent) probe(ctx context.Context, run *running, peers []api.Peer, request api.ProbeRequest) (api.Probe, error) {
	network := run.Local().Name
	host, err := run.Probed()
	if err != nil {
		return api.Probe{}, err
	}
	if since, ok := run.probes.start(); !ok {
		return api.Probe{}, &api.Error{Code: http.StatusConflict, Message: fmt.Sprintf(
			"a probe of network %s is running since %s: try again when it is done",
			network, time.Since(since).Round(time.Second))}
	}
	defer run.probes.end()
	out, err := a.o.Probe(ctx, host, peers, request)
	var field *probe.FieldError
	var unknown *probe.UnknownPeerError
	switch {
	case errors.As(err, &field):
		return out, &api.Error{Code: http.StatusBadRequest, Message: err.Error()}
	case errors.As(err, &unknown):
		return out, &api.Error{Code: http.StatusNotFound, Message: fmt.Sprintf("network %s: %v", network, err)}
	case errors.Is(err, probe.ErrNoRight):
		return out, &api.Error{Code: http.StatusNotImplemented, Message: err.Error()}
	}
	return out, err
}
