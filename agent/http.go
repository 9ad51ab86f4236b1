package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
)

// reply is what a handler answers: a body and the index of what it shows, 0
// for none.
type reply struct {
	body  any
	index uint64
	quiet any    // body without what moves no index, nil for all of it
	data  []byte // body as it travels, nil when it is not encoded yet

	packed func() []byte // data with gzip, made once for all who are answered it; nil when it goes to one alone
}

// endpoint is one thing the API answers.
type endpoint struct {
	pattern string // "GET /v1/networks", as http.ServeMux takes it
	handler http.HandlerFunc
}

// endpoints are all there are; each subject has its own in the file of its
// handlers.
func (a *Agent) endpoints() []endpoint {
	return slices.Concat(
		a.healthEndpoints(),
		a.agentEndpoints(),
		a.monitorEndpoints(),
		a.networkEndpoints(),
		a.leaseEndpoints(),
		a.reservationEndpoints(),
		a.peerEndpoints(),
		a.probeEndpoints(),
		a.doctorEndpoints(),
		a.openAPIEndpoints(),
		a.eventEndpoints(),
		a.metricsEndpoints(),
		a.debugEndpoints(),
	)
}

func (a *Agent) agentEndpoints() []endpoint {
	return []endpoint{
		{"GET /v1/agent/self", a.wrap(func(*http.Request) (reply, error) { return reply{body: a.self()}, nil })},
		{"GET /v1/agent/config", a.wrap(func(*http.Request) (reply, error) { return reply{body: a.configuration()}, nil })},
		{"PUT /v1/agent/reload", a.wrap(a.reloadRequest)},
	}
}

// routes answers every request.
func (a *Agent) routes() http.Handler {
	mux := http.NewServeMux()
	for _, e := range a.endpoints() {
		mux.HandleFunc(e.pattern, a.measured(e))
	}
	a.pageRoutes(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if handler, pattern := mux.Handler(r); pattern == "" {
			a.unknown(w, r, handler)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// wrap does what all endpoints share: JSON, status, index.
func (a *Agent) wrap(handler func(*http.Request) (reply, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out, err := handler(r)
		status := http.StatusOK
		if err != nil {
			status = statusOf(err)
			out = reply{body: &api.Error{Code: status, Message: err.Error()}}
		}
		if out.index > 0 {
			w.Header().Set("X-Leno-Index", strconv.FormatUint(out.index, 10))
		}
		if out.data != nil {
			a.sendShared(w, r, out)
		} else {
			a.write(w, status, out.body)
		}
	}
}

func (a *Agent) write(w http.ResponseWriter, status int, body any) {
	data, err := encoded(body)
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"code":500,"error":"the answer cannot be encoded"}`+"\n")
		a.log.Error("http answer cannot be encoded", "error", err)
	}
	a.send(w, status, data)
}

func (a *Agent) send(w http.ResponseWriter, status int, data []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(data); err != nil {
		a.log.Debug("http answer was cut off", "error", err)
	}
}

// statusOf is the HTTP status for an error of the registry or a handler.
func statusOf(err error) int {
	var explicit *api.Error
	if errors.As(err, &explicit) {
		return explicit.Code
	}
	for _, row := range []struct {
		err    error
		status int
	}{
		{registry.ErrNetworkNotFound, http.StatusNotFound},
		{registry.ErrLeaseNotFound, http.StatusNotFound},
		{registry.ErrLeaseRevoked, http.StatusNotFound},
		{registry.ErrReservationNotFound, http.StatusNotFound},
		{registry.ErrDenied, http.StatusForbidden},
		{registry.ErrInvalid, http.StatusBadRequest},
		{registry.ErrNetworkExists, http.StatusConflict},
		{registry.ErrConflict, http.StatusConflict},
		{registry.ErrReserved, http.StatusConflict},
		{registry.ErrHeld, http.StatusConflict},
		{registry.ErrNetworkFull, http.StatusConflict},
		{registry.ErrUncertain, http.StatusServiceUnavailable},
		{registry.ErrUnavailable, http.StatusServiceUnavailable},
		{errElsewhere, http.StatusServiceUnavailable},
		{context.DeadlineExceeded, http.StatusServiceUnavailable},
		{context.Canceled, http.StatusServiceUnavailable}, // the client went, or does not send any more
	} {
		if errors.Is(err, row.err) {
			return row.status
		}
	}
	return http.StatusInternalServerError
}

func badRequest(format string, args ...any) error {
	return &api.Error{Code: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

// caller is the store under the caller's own token: the agent's is never lent.
func (a *Agent) caller(r *http.Request) registry.Registry { return a.env.registry.As(tokenOf(r)) }

// tokenOf is the caller's token, which may stand in either header, as in requests
// to Consul.
func tokenOf(r *http.Request) string {
	if token := r.Header.Get("X-Consul-Token"); token != "" {
		return token
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// definition finds the network a request names: as this agent runs it, else as
// last read from the store.
func (a *Agent) definition(r *http.Request) (registry.Network, error) {
	return a.definitionOf(r.PathValue("network"))
}

func (a *Agent) definitionOf(name string) (registry.Network, error) {
	if run, ok := a.runner(name); ok {
		if v := run.shown(); v.defined {
			return v.definition, nil
		}
	}
	known, read, _ := a.env.networks.Get()
	if !read {
		return registry.Network{}, fmt.Errorf("network %q: %w: the networks have not been read yet", name, registry.ErrUnavailable)
	}
	if n, ok := known.set.Find(name); ok {
		return n, nil
	}
	if reason, bad := known.set.Unusable(name); bad {
		return registry.Network{}, unusable(name, reason)
	}
	if d, deleted := known.set.Deletion(name); deleted {
		return registry.Network{}, fmt.Errorf("network %q: %w; `leno network apply` defines it again", name, &registry.DeletedError{Deletion: d})
	}
	var names []string
	for _, n := range known.set.Networks {
		names = append(names, n.Name)
	}
	list := "no network is known"
	if len(names) > 0 {
		list = "known are " + strings.Join(names, ", ")
	}
	return registry.Network{}, fmt.Errorf("network %q: %w: %s", name, registry.ErrNetworkNotFound, list)
}

// unusable is the answer about a network whose record cannot be read.
func unusable(name string, reason any) error {
	return &api.Error{Code: http.StatusConflict, Message: fmt.Sprintf("network %q: its record in the store cannot be used: %v; "+
		"write a good one with `consul kv put`, or delete it with `leno network delete -force`", name, reason)}
}

// flag reads a parameter that is true or false.
func flag(r *http.Request, name string) (bool, error) {
	switch text := r.URL.Query().Get(name); text {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, badRequest("parameter %s: %q is neither true nor false", name, registry.Shorten(text, maxQuoted))
	}
}

// subnetOf returns the subnet in the request's path: "10.5.34.0-24" as in keys. IPv6
// may have its colons, "fd00:5:0:22::-64".
func subnetOf(r *http.Request) (netip.Prefix, error) {
	p, err := registry.ParseSubnetKey(strings.ReplaceAll(r.PathValue("subnet"), ":", "."))
	if err != nil {
		return p, badRequest("parameter subnet: %v", err)
	}
	return p, nil
}

// readBody reads a request's JSON.
func readBody(r *http.Request, v any) error {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil {
		if errors.Is(err, io.EOF) {
			return badRequest("request body: it is empty, want a JSON object")
		}
		return unreadBody(err)
	}
	switch _, err := decoder.Token(); {
	case err == nil:
		return badRequest("request body: something follows the JSON object")
	case !errors.Is(err, io.EOF):
		return unreadBody(err)
	}
	return nil
}

func (a *Agent) reloadRequest(r *http.Request) (reply, error) {
	force, err := flag(r, "force")
	if err != nil {
		return reply{}, err
	}
	out, err := a.Refresh(r.Context(), force)
	if err != nil {
		return reply{}, &api.Error{Code: http.StatusConflict, Message: err.Error()}
	}
	return reply{body: out}, nil
}
