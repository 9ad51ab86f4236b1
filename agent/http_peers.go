package agent

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/lenonet/leno/api"
)

func (a *Agent) peerEndpoints() []endpoint {
	return []endpoint{
		{"GET /v1/network/{network}/peers", a.block(a.getPeers)},
	}
}

// getPeers are the other hosts as the datapath has them.
func (a *Agent) getPeers(r *http.Request) (shown, error) {
	n, err := a.definition(r)
	if err != nil {
		return shown{}, err
	}
	find := func() (*runner, error) { return a.joined(n.Name) }
	_, err = find()
	return shown{name: "peers of " + n.Name,
		memory: func() (reply, error) {
			run, err := find()
			if err != nil {
				return reply{}, err
			}
			list := run.peers()
			return reply{body: list, quiet: uncounted(list)}, nil
		},
		changes: func() []<-chan struct{} {
			_, _, part := a.env.shown.Get()
			out := []<-chan struct{}{part}
			if run, err := find(); err == nil {
				out = append(out, run.leasesChanged()...)
			}
			return out
		}}, err
}

// joined finds a network this agent takes part in; the error says that it does not.
func (a *Agent) joined(network string) (*runner, error) {
	run, ok := a.runner(network)
	if !ok {
		return nil, &api.Error{Code: http.StatusNotFound, Message: fmt.Sprintf("this host takes no part in network %s", network)}
	}
	return run, nil
}

// uncounted returns the list without what is counted.
func uncounted(list api.PeerList) api.PeerList {
	list.Totals, list.Drops = nil, nil
	list.Peers = slices.Clone(list.Peers)
	for i := range list.Peers {
		list.Peers[i].Counters = nil
	}
	return list
}
