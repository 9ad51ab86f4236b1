package agent

import (
	"errors"
	"net/http"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

func (a *Agent) eventEndpoints() []endpoint {
	return []endpoint{
		{"GET /v1/agent/events", a.block(a.getEvents)},
	}
}

// getEvents is what happened lately, or since the index of a reader.
func (a *Agent) getEvents(r *http.Request) (shown, error) {
	network := r.URL.Query().Get("network")
	if list, _, _ := a.env.events.After(0, network); network != "" && len(list) == 0 {
		// It may have been left, or be about to come; a name that nobody knows is a mistake.
		if _, err := a.definitionOf(network); errors.Is(err, registry.ErrNetworkNotFound) {
			return shown{}, err
		}
	}
	since := func(index uint64) (reply, error) {
		out, last, _ := a.env.events.After(index, network)
		return reply{body: api.EventList{Events: out}, index: last}, nil
	}
	return shown{name: "events", since: since,
		memory: func() (reply, error) {
			_, last, _ := a.env.events.After(0, network)
			return reply{index: last}, nil
		},
		changes: func() []<-chan struct{} {
			_, _, changed := a.env.events.After(0, network)
			return []<-chan struct{}{changed}
		}}, nil
}
