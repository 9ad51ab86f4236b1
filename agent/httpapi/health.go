package httpapi

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/api"
)

// healthStatus returns the status that health checks of Consul and Nomad take for passing, warning and critical.
func healthStatus(h api.Health) int {
	return map[string]int{
		api.Passing: http.StatusOK, api.Warning: http.StatusTooManyRequests, api.Critical: http.StatusServiceUnavailable,
	}[h.Status]
}

func readyStatus(h api.Health) int {
	if !h.Ready {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}

// sendHealth sends the whole report, or the part about the networks that the request names and about the agent.
func (h agentHandlers) sendHealth(status func(api.Health) int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		report, _ := h.health.Report()
		if names, selected := r.URL.Query()["network"]; selected {
			var err error
			if report, err = selectNetworks(report, names); err != nil {
				h.refuse(w, http.StatusNotFound, "%v", err)
				return
			}
		}
		h.write(w, status(report), report)
	}
}

// selectNetworks returns a report about some networks alone.
func selectNetworks(h api.Health, names []string) (api.Health, error) {
	known := []string{}
	for _, n := range h.Networks {
		known = append(known, n.Network)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return h, fmt.Errorf("this host takes no part in network %.80q; it does in: %s",
				name, cmp.Or(strings.Join(known, ", "), "none"))
		}
	}
	h.Networks = slices.DeleteFunc(h.Networks, func(n api.NetworkHealth) bool {
		return !slices.Contains(names, n.Network)
	})
	return health.Summarize(h), nil
}
