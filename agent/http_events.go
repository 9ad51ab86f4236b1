package agent

import (
	"net/http"

	"github.com/lenonet/leno/api"
)

func (a *Agent) eventEndpoints() []endpoint {
	return []endpoint{
		{"GET /v1/agent/events", a.wrap(a.getEvents)},
	}
}

// getEvents is what happened lately.
func (a *Agent) getEvents(r *http.Request) (reply, error) {
	out, last, _ := a.env.events.after(0, r.URL.Query().Get("network"))
	return reply{api.EventList{Events: out}, last}, nil
}
