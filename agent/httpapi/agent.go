package httpapi

import (
	"cmp"
	"errors"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/health"
	"github.com/lenonet/leno/agent/logging"
	"github.com/lenonet/leno/agent/query"
	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// agentHandlers handle requests about the agent itself.
type agentHandlers struct {
	directory
	responder
	logs        *logging.Log
	health      *health.Board
	telemetry   *telemetry.Telemetry
	requestTime time.Duration
}

func (h agentHandlers) reload(r *http.Request) (out api.Reloaded, err error) {
	force, err := flag(r, "force")
	if err != nil {
		return out, err
	}
	if out, err = h.agent.Refresh(r.Context(), force); err != nil {
		return out, api.Errorf(http.StatusConflict, "%v", err)
	}
	return out, nil
}

// diagnose examines this host. It changes nothing, and may send packets.
func (h agentHandlers) diagnose(r *http.Request) (out api.Diagnosis, err error) {
	passive, err := flag(r, "passive")
	if err != nil {
		return out, err
	}
	o := api.DoctorOptions{Network: r.URL.Query().Get("network"), Passive: passive}
	if known := h.agent.Self().Networks; o.Network != "" && !slices.Contains(known, o.Network) {
		return out, api.Errorf(http.StatusNotFound, "this host takes no part in network %q: its networks: %s", o.Network,
			cmp.Or(strings.Join(known, ", "), "none"))
	}
	return h.agent.Diagnose(r.Context(), o)
}

// trace follows packets through this host. It changes nothing, and sends a few packets.
func (h agentHandlers) trace(r *http.Request) (out api.Trace, err error) {
	var request api.TraceRequest
	if err := readBody(r, &request); err != nil {
		return out, err
	}
	return h.agent.Trace(r.Context(), request)
}

// queryEvents returns the events since the index of a reader, or all that are kept.
func (h agentHandlers) queryEvents(r *http.Request) (query.Query, error) {
	network := r.URL.Query().Get("network")
	if list, _, _ := h.agent.Events(0, network); network != "" && len(list) == 0 {
		// The network may have been left, or may come. An unknown name is a mistake.
		if _, err := h.find(network); errors.Is(err, registry.ErrNetworkNotFound) {
			return query.Query{}, err
		}
	}
	return query.Query{
		Name: strings.TrimSpace("events " + network),
		Since: func(index uint64) query.Content {
			events, last, _ := h.agent.Events(index, network)
			return query.Content{Body: api.EventList{Events: events}, Index: last}
		},
		Read: func() (query.Content, error) {
			_, last, _ := h.agent.Events(0, network)
			return query.Content{Index: last}, nil
		},
		Changes: func() []<-chan struct{} {
			_, _, changed := h.agent.Events(0, network)
			return []<-chan struct{}{changed}
		},
	}, nil
}

// sendOpenAPI sends the description of the API. Its media type is from RFC 9512.
func (h agentHandlers) sendOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	if _, err := w.Write([]byte(api.OpenAPI)); err != nil {
		h.log.Debug("http response was cut off", "error", err)
	}
}

// sendProfile sends one of Go's profiles of this process while the configuration has enable_debug: profiles cost
// processor time and show the process's memory.
func (h agentHandlers) sendProfile(w http.ResponseWriter, r *http.Request) {
	if !h.agent.Config().EnableDebug {
		h.refuse(w, http.StatusNotFound, "profiles are not served: enable_debug is false in this agent's configuration")
		return
	}
	restore := suspendDeadline(w, h.requestTime) // a profile takes its ?seconds=, and pprof sets a limit by them
	defer restore()
	switch r.URL.Path {
	case "/debug/pprof/cmdline":
		pprof.Cmdline(w, r)
	case "/debug/pprof/profile":
		pprof.Profile(w, r)
	case "/debug/pprof/symbol":
		pprof.Symbol(w, r)
	case "/debug/pprof/trace":
		pprof.Trace(w, r)
	default:
		pprof.Index(w, r)
	}
}
