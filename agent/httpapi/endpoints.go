package httpapi

import (
	"net/http"
	"path"

	"github.com/lenonet/leno/api"
)

// newEndpoints returns all endpoints.
func (s *Server) newEndpoints() []endpoint {
	d := directory{agent: s.o.Agent, store: s.o.Registry, kind: s.o.Store}
	requestTime := s.o.Limits.RequestTime
	networks := networkHandlers{d, s.o.Backends}
	leases := leaseHandlers{d}
	reservations := reservationHandlers{d}
	peers := peerHandlers{d, s.respond, requestTime, s.o.Health}
	agent := agentHandlers{d, s.respond, s.o.Logs, s.o.Health, s.o.Telemetry, requestTime}
	reads := blockingReads{s.respond, s.cache, requestTime}
	p, store := s.respond, newStoreLimit(s.o.Limits)
	return []endpoint{
		{"GET /healthz", agent.sendHealth(healthStatus)},
		{"GET /readyz", agent.sendHealth(readyStatus)},
		{"GET /v1/agent/self", handle(p, func(*http.Request) (api.Self, error) { return s.o.Agent.Self(), nil })},
		{"GET /v1/agent/config", handle(p, func(*http.Request) (api.Configuration, error) {
			return s.o.Agent.Configuration(), nil
		})},
		{"PUT /v1/agent/reload", handle(p, agent.reload)},
		{"PUT /v1/agent/doctor", handle(p, agent.diagnose)},
		{"POST /v1/agent/trace", handle(p, agent.trace)},
		{"GET /v1/agent/events", reads.handle(agent.queryEvents)},
		{"GET /v1/agent/metrics", agent.sendMetrics},
		{"GET /v1/agent/monitor", agent.monitor},
		{"GET /v1/networks", reads.handle(networks.queryAll)},
		{"GET /v1/network/{network}", reads.handle(networks.queryOne)},
		{"PUT /v1/network/{network}", handleStored(p, store, networks.put)},
		{"DELETE /v1/network/{network}", handleDone(p, store, networks.delete)},
		{"POST /v1/network/{network}/plan", handleStored(p, store, networks.plan)},
		{"GET /v1/network/{network}/switch", handle(p, networks.getSwitch)},
		{"PUT /v1/network/{network}/switch", handleStored(p, store, networks.changeSwitch)},
		{"GET /v1/network/{network}/leases", reads.handle(leases.query)},
		{"GET /v1/network/{network}/lease/{subnet}", handle(p, leases.get)},
		{"DELETE /v1/network/{network}/lease/{subnet}", handleDone(p, store, leases.revoke)},
		{"PUT /v1/network/{network}/release", handleDone(p, store, leases.release)},
		{"PUT /v1/network/{network}/renew", handleStored(p, store, leases.renew)},
		{"GET /v1/network/{network}/reservations", reads.handle(store.limit(reservations.query))},
		{"PUT /v1/network/{network}/reservation/{subnet}", handleStored(p, store, reservations.put)},
		{"DELETE /v1/network/{network}/reservation/{subnet}", handleDone(p, store, reservations.delete)},
		{"GET /v1/network/{network}/peers", reads.handle(peers.query)},
		{"GET /v1/network/{network}/hosts", reads.handle(peers.queryHosts)},
		{"POST /v1/network/{network}/probe", peers.withProbeTime(handle(p, peers.probe))},
		{"GET /v1/openapi.yaml", agent.sendOpenAPI},
		{"GET /debug/pprof/", agent.sendProfile},
	}
}

// Patterns returns the endpoints, such as "GET /v1/networks".
func (s *Server) Patterns() (out []string) {
	for _, e := range s.endpoints {
		out = append(out, e.pattern)
	}
	return out
}

// routes returns the handler of all endpoints and pages.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for _, e := range s.endpoints {
		mux.HandleFunc(e.pattern, s.withMetrics(e))
	}
	s.page.addPages(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isClean(r.URL.EscapedPath()) {
			s.refuseEndpoint(w, r)
			return
		}
		if handler, pattern := mux.Handler(r); pattern == "" {
			s.refuseUnknown(w, r, handler)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// isClean reports whether the mux takes a path as it is. It redirects others, such as "/v1//networks", to another one.
func isClean(name string) bool {
	clean := path.Clean(name)
	return name == clean || clean != "/" && name == clean+"/"
}
