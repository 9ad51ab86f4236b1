package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/google/go-cmp/cmp"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// document is the API's description, which is a valid one.
func document(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData([]byte(api.OpenAPI))
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return doc
}

// undescribed are answers for people and profilers, not for programs.
var undescribed = regexp.MustCompile(`^\w+ (/ui|/debug/|/\{\$\})`)

// TestOpenAPIEndpoints: what the document describes is what the agent answers.
func TestOpenAPIEndpoints(t *testing.T) {
	var described, served []string
	for path, item := range document(t).Paths.Map() {
		for method := range item.Operations() {
			described = append(described, method+" "+path)
		}
	}
	for _, e := range newHost(t, memory.New(), "a").build().endpoints() {
		if !undescribed.MatchString(e.pattern) {
			served = append(served, e.pattern)
		}
	}
	slices.Sort(described)
	slices.Sort(served)
	if diff := cmp.Diff(served, described); diff != "" {
		t.Errorf("-served +described:\n%s", diff)
	}
}

// TestOpenAPITypes: the schemas have the fields of the client's types, under the
// same names, of the same kinds, and required where they always stand.
func TestOpenAPITypes(t *testing.T) {
	schemas := document(t).Components.Schemas
	types := map[string]reflect.Type{}
	for _, v := range []any{
		api.Error{}, api.Health{}, api.Self{}, api.Network{}, api.NetworkList{}, api.Lease{}, api.LeaseList{},
		api.Reservation{}, api.ReservationList{}, api.PeerList{}, api.NetworkPlan{}, api.EventList{}, api.Reloaded{},
		api.ProbeRequest{}, api.Probe{}, api.Metrics{}, api.Renewal{}, api.Configuration{}, api.Diagnosis{},
	} {
		gather(types, reflect.TypeOf(v))
	}
	for name, of := range types {
		schema, ok := schemas[name]
		if !ok {
			t.Errorf("no schema %s", name)
			continue
		}
		if diff := cmp.Diff(fieldsOf(of), propertiesOf(schema.Value)); diff != "" {
			t.Errorf("%s (-type +schema):\n%s", name, diff)
		}
	}
	// What is sent has a shape of its own, and simple values have a name.
	known := []string{"Prefix", "Address", "Status", "Time", "BackendObject", "NetworkRequest", "ReservationRequest"}
	for name := range schemas {
		if _, ok := types[name]; !ok && !slices.Contains(known, name) {
			t.Errorf("schema %s is no type's", name)
		}
	}
}

// gather adds a struct of package api, and those in its fields.
func gather(types map[string]reflect.Type, of reflect.Type) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		gather(types, of.Elem())
	case reflect.Struct:
		if _, known := types[of.Name()]; known || of.PkgPath() != reflect.TypeFor[api.Error]().PkgPath() {
			return
		}
		types[of.Name()] = of
		for i := range of.NumField() {
			if of.Field(i).Tag.Get("json") != "-" {
				gather(types, of.Field(i).Type)
			}
		}
	}
}

// fieldsOf are a type's fields as they travel: kind, and ? when they may be
// absent.
func fieldsOf(of reflect.Type) map[string]string {
	out := map[string]string{}
	for i := range of.NumField() {
		name, options, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		kind := kindOf(of.Field(i).Type)
		if options != "" {
			kind += "?"
		}
		out[name] = kind
	}
	return out
}

func kindOf(of reflect.Type) string {
	switch of {
	case reflect.TypeFor[time.Time](), reflect.TypeFor[netip.Prefix](), reflect.TypeFor[netip.Addr]():
		return "string"
	case reflect.TypeFor[json.RawMessage]():
		return "object"
	}
	switch of.Kind() {
	case reflect.Pointer:
		return kindOf(of.Elem())
	case reflect.Slice:
		return "array of " + kindOf(of.Elem())
	case reflect.Struct, reflect.Map:
		return "object"
	case reflect.Bool:
		return "boolean"
	case reflect.String:
		return "string"
	case reflect.Float64:
		return "number"
	}
	return "integer"
}

func propertiesOf(s *openapi3.Schema) map[string]string {
	out := map[string]string{}
	for name, p := range s.Properties {
		out[name] = typeOf(p.Value)
		if !slices.Contains(s.Required, name) {
			out[name] += "?"
		}
	}
	return out
}

func typeOf(s *openapi3.Schema) string {
	if s.Type.Is("array") {
		return "array of " + typeOf(s.Items.Value)
	}
	return strings.Join(s.Type.Slice(), "|")
}

// judged passes requests on and holds them and the answers against the document.
type judged struct {
	t      *testing.T
	router routers.Router
	next   http.Handler

	mu   sync.Mutex
	seen map[string]bool // "GET /v1/networks 200"
}

func (j *judged) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	route, params, err := j.router.FindRoute(r)
	if err != nil {
		j.t.Errorf("%s %s: %v", r.Method, r.URL, err)
		http.NotFound(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		j.t.Error(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	input := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}}
	asked := openapi3filter.ValidateRequest(r.Context(), input)
	r.Body = io.NopCloser(bytes.NewReader(body))
	answer := httptest.NewRecorder()
	j.next.ServeHTTP(answer, r)
	operation := fmt.Sprintf("%s %s", r.Method, route.Path)
	if asked != nil && answer.Code/100 == 2 {
		j.t.Errorf("%s %s was done against the document: %v", r.Method, r.URL, asked)
	}
	if asked == nil && answer.Code == http.StatusBadRequest {
		j.t.Logf("%s is refused though the document allows it: %s", operation, answer.Body)
	}
	if err := openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{RequestValidationInput: input,
		Status: answer.Code, Header: answer.Header(), Body: io.NopCloser(bytes.NewReader(answer.Body.Bytes())),
		Options: &openapi3filter.Options{IncludeResponseStatus: true}}); err != nil {
		j.t.Errorf("%s: the answer is not as described: %v\n%s", operation, err, answer.Body)
	}
	j.mu.Lock()
	j.seen[fmt.Sprintf("%s %d", operation, answer.Code)] = true
	j.mu.Unlock()
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	if _, err := w.Write(answer.Body.Bytes()); err != nil {
		j.t.Error(err)
	}
}

// TestOpenAPIAnswers asks a running agent for everything that is described, and
// for what each endpoint refuses.
func TestOpenAPIAnswers(t *testing.T) {
	doc := document(t)
	store := memory.New()
	a, b := newHost(t, store, "a"), newHost(t, store, "b").start()
	a.refresh = func() (c config.Config, err error) { return a.config, nil }
	a.start()
	a.applies(a.subnet().String() + " <- b@" + b.subnet().String())
	a.ready()

	doc.Servers = nil // the document names the ordinary address
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	j := &judged{t: t, router: router, next: a.agent.routes(), seen: map[string]bool{}}
	server := httptest.NewServer(j)
	defer server.Close()
	ask := func(method, path, body string) {
		r, err := http.NewRequest(method, server.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
	}
	m := `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"type":"recorder"}}`
	own, free := registry.SubnetKey(a.subnet()), registry.SubnetKey(free(a, b))
	for _, request := range []string{
		"GET /healthz", "GET /readyz", "GET /healthz?network=n", "GET /healthz?network=none", "GET /readyz?network=n&network=none", "GET /v1/agent/self", "GET /v1/agent/config", "PUT /v1/agent/reload", "PUT /v1/agent/reload?force=perhaps", "GET /v1/openapi.yaml",
		"GET /v1/agent/events", "GET /v1/agent/events?network=n",
		"GET /v1/agent/monitor?log_level=loud", "GET /v1/agent/metrics", "GET /v1/agent/metrics?format=prometheus", "GET /v1/agent/metrics?format=xml",
		"PUT /v1/agent/doctor", "PUT /v1/agent/doctor?network=n&passive=true", "PUT /v1/agent/doctor?passive=perhaps", "PUT /v1/agent/doctor?network=none",
		"GET /v1/networks", "GET /v1/network/n", "GET /v1/network/none",
		"PUT /v1/network/m " + m, "PUT /v1/network/m " + m, "PUT /v1/network/x {}",
		"POST /v1/network/m/plan " + m, "POST /v1/network/m/plan {}",
		"GET /v1/network/n/leases", "GET /v1/network/n/leases?memory=true", "GET /v1/network/none/leases",
		"GET /v1/network/n/lease/" + own, "GET /v1/network/n/lease/" + free, "GET /v1/network/n/lease/10.5.0.0-99",
		"PUT /v1/network/n/reservation/" + free + ` {"node":"z"}`, "PUT /v1/network/n/reservation/" + free + ` {"node":"y"}`,
		"PUT /v1/network/n/reservation/" + free + ` {"host":"z"}`, "PUT /v1/network/none/reservation/" + free + ` {"node":"z"}`,
		"GET /v1/network/n/reservations", "GET /v1/network/none/reservations",
		"DELETE /v1/network/n/reservation/" + free, "DELETE /v1/network/n/reservation/" + free,
		"GET /v1/network/n/peers", "GET /v1/network/none/peers",
		"POST /v1/network/n/probe {}", `POST /v1/network/n/probe {"count":1000}`, `POST /v1/network/n/probe {"peers":["z"]}`,
		"DELETE /v1/network/n", "DELETE /v1/network/m", "DELETE /v1/network/m",
		"DELETE /v1/network/n/lease/" + registry.SubnetKey(b.subnet()), "DELETE /v1/network/n/lease/10.5.0.0-24", "DELETE /v1/network/n/lease/x-1",
		"PUT /v1/network/n/renew", "PUT /v1/network/none/renew",
		"PUT /v1/network/n/release", "PUT /v1/network/n/release", "PUT /v1/network/none/release",
	} {
		part := strings.SplitN(request, " ", 3)
		ask(part[0], part[1], strings.Join(part[2:], ""))
	}
	for path, item := range doc.Paths.Map() {
		for method, operation := range item.Operations() {
			for status := range operation.Responses.Map() {
				answer := fmt.Sprintf("%s %s %s", method, path, status)
				if status != "default" && !j.seen[answer] && !elsewhere[answer] && !strings.HasSuffix(answer, " 403") {
					t.Errorf("%s was not seen", answer)
				}
			}
		}
	}
}

// elsewhere are answers that other tests see: an agent that is not well, or a
// store that is away. The memory registry gives every token all rights.
var elsewhere = map[string]bool{
	"GET /healthz 429": true, "GET /healthz 503": true, "GET /readyz 503": true,
	"PUT /v1/network/{network}/renew 409": true, "PUT /v1/network/{network}/renew 503": true,
	"PUT /v1/agent/reload 409": true, "GET /v1/agent/monitor 200": true, "GET /v1/agent/monitor 429": true, "GET /v1/networks 503": true, "GET /v1/agent/metrics 415": true,
	"GET /v1/network/{network}/lease/{subnet} 409": true,
	"PUT /v1/agent/doctor 409":                     true,
	"POST /v1/network/{network}/probe 409":         true, "POST /v1/network/{network}/probe 501": true,
}
