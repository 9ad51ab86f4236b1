package agent

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
)

func (a *Agent) healthEndpoints() []endpoint {
	return []endpoint{
		{"GET /healthz", a.healthz},
		{"GET /readyz", a.readyz},
	}
}

// healthz answers with the status that Consul's and Nomad's checks know as passing,
// warning and critical.
func (a *Agent) healthz(w http.ResponseWriter, r *http.Request) {
	a.tellHealth(w, r, func(h api.Health) int {
		return map[string]int{
			api.Passing: http.StatusOK, api.Warning: http.StatusTooManyRequests, api.Critical: http.StatusServiceUnavailable,
		}[h.Status]
	})
}

func (a *Agent) readyz(w http.ResponseWriter, r *http.Request) {
	a.tellHealth(w, r, func(h api.Health) int {
		if !h.Ready {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	})
}

// tellHealth answers with the whole of health, or with the networks that the
// request names and what concerns all of them.
func (a *Agent) tellHealth(w http.ResponseWriter, r *http.Request, status func(api.Health) int) {
	report, _ := a.env.health.Report()
	if names, asked := r.URL.Query()["network"]; asked {
		var err error
		if report, err = of(report, names); err != nil {
			a.write(w, http.StatusNotFound, &api.Error{Code: http.StatusNotFound, Message: err.Error()})
			return
		}
	}
	a.write(w, status(report), report)
}

// of is a report about some networks alone.
func of(h api.Health, names []string) (api.Health, error) {
	known := []string{}
	for _, n := range h.Networks {
		known = append(known, n.Network)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return h, fmt.Errorf("this host takes no part in network %.80q; it does in: %s", name, cmp.Or(strings.Join(known, ", "), "none"))
		}
	}
	h.Networks = slices.DeleteFunc(h.Networks, func(n api.NetworkHealth) bool { return !slices.Contains(names, n.Network) })
	return health.Summarize(h), nil
}
