package httpapi

import (
	"net/http"

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

// sendHealth sends the whole report, or the part about the networks that the request names and about the agent. Text is
// for the output of a health check.
func (h agentHandlers) sendHealth(status func(api.Health) int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		report, _ := h.health.Report()
		if names, selected := r.URL.Query()["network"]; selected {
			var err error
			if report, err = health.Select(report, names); err != nil {
				h.refuse(w, http.StatusNotFound, "%v", err)
				return
			}
		}
		switch format := r.URL.Query().Get("format"); format {
		case "", "json":
			h.write(w, status(report), report)
		case "text":
			h.sendAs(w, "text/plain; charset=utf-8", status(report), []byte(health.Describe(report)+"\n"))
		default:
			h.refuse(w, http.StatusBadRequest, `parameter format: %q is neither "json" nor "text"`, quoteText(format))
		}
	}
}
