package httpapi

import (
	"fmt"
	"net/http"
	"time"

	"github.com/lenonet/leno/agent/fleet"
	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/probe"
	"github.com/lenonet/leno/agent/query"
	"github.com/lenonet/leno/api"
)

// peerHandlers handle requests about peers.
type peerHandlers struct {
	directory
	respond     responder
	requestTime time.Duration
	health      *health.Board
}

// query returns the other hosts as the datapath has them.
func (h peerHandlers) query(r *http.Request) (query.Query, error) {
	network := r.PathValue("network")
	withHistory, err := flag(r, "history")
	if err != nil {
		return query.Query{}, err
	}
	return h.queryPart(network, fmt.Sprintf("peers of %s, history %t", network, withHistory),
		func(part Network) (query.Content, error) {
			list := part.Peers(withHistory)
			return query.Content{Body: list, Basis: fleet.WithoutCounters(list)}, nil
		})
}

// queryPart returns a query of this host's part in a network.
func (h peerHandlers) queryPart(
	network, name string, read func(part Network) (query.Content, error),
) (query.Query, error) {
	_, err := h.joinedNetwork(network)
	return query.Query{
		Name: name,
		Read: func() (query.Content, error) {
			part, err := h.joinedNetwork(network)
			if err != nil {
				return query.Content{}, err
			}
			return read(part)
		},
		Changes: func() []<-chan struct{} { return h.changes(network) },
	}, err
}

// queryHosts returns all hosts of a network. Their leases are read again, unless the request says memory=true.
func (h peerHandlers) queryHosts(r *http.Request) (query.Query, error) {
	network := r.PathValue("network")
	memory, err := flag(r, "memory")
	if err != nil {
		return query.Query{}, err
	}
	q, err := h.queryPart(network, fmt.Sprintf("hosts of %s, memory %t", network, memory),
		func(part Network) (query.Content, error) {
			hosts, err := part.Hosts()
			return query.Content{Body: api.HostList{Hosts: hosts}, Basis: fleet.WithoutTimes(hosts)}, err
		})
	q.Changes = func() []<-chan struct{} {
		_, changed := h.health.Report()
		return append(h.changes(network), changed)
	}
	if !memory {
		h.readAgain(&q, network)
	}
	return q, err
}

// changes returns channels of which one is closed when the peers of a network, or what is known of them, may have
// changed.
func (h peerHandlers) changes(network string) []<-chan struct{} {
	out := h.directory.changes()
	if part, err := h.joinedNetwork(network); err == nil {
		out = append(out, part.LeasesChanged()...)
	}
	return out
}

// withProbeTime gives a request the time that a probe may take, which is longer than that of others, once its body is
// there.
func (h peerHandlers) withProbeTime(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := receiveBody(r); err != nil {
			h.respond.fail(w, err)
			return
		}
		until := time.Now().Add(probe.MaxDuration + h.requestTime)
		if err := http.NewResponseController(w).SetWriteDeadline(until); err != nil {
			h.respond.log.Debug("a probe may be cut short", "error", err) // unless the connection has no deadlines
		}
		next(w, r)
	}
}

// probe sends packets to the peers of a network and returns what came back.
func (h peerHandlers) probe(r *http.Request) (out api.Probe, err error) {
	var request api.ProbeRequest
	if err := readBody(r, &request); err != nil {
		return out, err
	}
	part, err := h.joinedNetwork(r.PathValue("network"))
	if err != nil {
		return out, err
	}
	return part.Probe(r.Context(), request)
}
