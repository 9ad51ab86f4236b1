package agent

import (
	"net/http"
	"net/http/pprof"
)

// debugEndpoints are Go's profiles of this process, for who looks for a fault of
// the agent itself.
func (a *Agent) debugEndpoints() []endpoint {
	return []endpoint{
		{"GET /debug/pprof/", a.profiles},
	}
}

// profiles answers only while the configuration has enable_debug: profiles cost
// processor time and show the process's memory.
func (a *Agent) profiles(w http.ResponseWriter, r *http.Request) {
	if !a.current().EnableDebug {
		a.refuse(w, http.StatusNotFound, "profiles are not served: enable_debug is false in this agent's configuration")
		return
	}
	restore := a.patient(w) // a profile takes its ?seconds=, and pprof sets a limit by them
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
