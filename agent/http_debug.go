package agent

import (
	"net/http"
	"net/http/pprof"
)

// debugEndpoints are Go's profiles of this process, for who looks for a fault of
// the agent itself.
func (a *Agent) debugEndpoints() []endpoint {
	return []endpoint{
		{"GET /debug/pprof/", a.debugging(pprof.Index)},
		{"GET /debug/pprof/cmdline", a.debugging(pprof.Cmdline)},
		{"GET /debug/pprof/profile", a.debugging(pprof.Profile)},
		{"GET /debug/pprof/symbol", a.debugging(pprof.Symbol)},
		{"POST /debug/pprof/symbol", a.debugging(pprof.Symbol)},
		{"GET /debug/pprof/trace", a.debugging(pprof.Trace)},
	}
}

// debugging answers only while the configuration has enable_debug: profiles cost
// processor time and show the process's memory.
func (a *Agent) debugging(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !a.current().EnableDebug {
			a.refuse(w, http.StatusNotFound, "profiles are not served: enable_debug is false in this agent's configuration")
			return
		}
		restore := a.patient(w) // a profile takes its ?seconds=, and pprof sets a limit by them
		defer restore()
		next(w, r)
	}
}
