package agent

import (
	"errors"
	"net/http"
	"time"

	"github.com/lenonet/leno/agent/probe"
	"github.com/lenonet/leno/api"
)

func (a *Agent) probeEndpoints() []endpoint {
	return []endpoint{
		{"POST /v1/network/{network}/probe", a.probing(a.wrap(a.postProbe))},
	}
}

// probing gives a request the time that a probe may take, which is longer than
// that of others. Where the connection has no deadlines it needs none.
func (a *Agent) probing(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		until := time.Now().Add(probe.Longest + a.limits.requestTime)
		connection := http.NewResponseController(w)
		if err := errors.Join(connection.SetReadDeadline(until), connection.SetWriteDeadline(until)); err != nil {
			a.log.Debug("a probe may be cut short", "error", err)
		}
		next(w, r)
	}
}

// postProbe sends packets to the peers of a network and tells what came back.
func (a *Agent) postProbe(r *http.Request) (reply, error) {
	var request api.ProbeRequest
	if err := readBody(r, &request); err != nil {
		return reply{}, err
	}
	n, err := a.definition(r)
	if err != nil {
		return reply{}, err
	}
	run, err := a.joined(n.Name)
	if err != nil {
		return reply{}, err
	}
	out, err := a.probePeers(r.Context(), run, request)
	if err != nil {
		return reply{}, err
	}
	return reply{body: out}, nil
}
