package agent

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/lenonet/leno/agent/config"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
	"github.com/lenonet/leno/registry/memory"
)

// judged passes requests on to next, and checks requests and answers against the document.
type judged struct {
	t      *testing.T
	router routers.Router
	next   http.Handler

	mu   sync.Mutex
	seen map[string]bool // answers such as "GET /v1/networks 200"
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
	r.Header.Del("Accept-Encoding") // compressed answers could not be checked
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

// TestOpenAPIAnswers makes every described request to a running agent, and some requests that each endpoint refuses.
func TestOpenAPIAnswers(t *testing.T) {
	simulated(t, func(t *testing.T) {
		doc := agenttest.OpenAPI(t)
		store := memory.New()
		a, b := newHost(t, store, "a"), newHost(t, store, "b").start()
		a.refresh = func() (c config.Config, err error) { return a.config, nil }
		a.start()
		a.applies(a.subnet().String() + " <- b@" + b.subnet().String())
		a.ready()

		doc.Servers = nil // the document names the default address
		router, err := gorillamux.NewRouter(doc)
		if err != nil {
			t.Fatal(err)
		}
		handler, err := a.agent.http.Handler()
		must(t, err)
		j := &judged{t: t, router: router, next: handler, seen: map[string]bool{}}
		ask := func(method, path, body string) {
			r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+path, strings.NewReader(body))
			if body != "" {
				r.Header.Set("Content-Type", "application/json")
			}
			j.ServeHTTP(httptest.NewRecorder(), r)
		}
		m := `{"pools":[{"prefix":"10.7.0.0/22"}],"backend":{"type":"recorder"}}`
		// A network without hosts, whose switch does not end.
		must(t, store.Client().PutNetwork(t.Context(), registry.Network{Name: "s", Plan: agenttest.Plan(t, "10.8.0.0/16")}.WithCarriage(
			agenttest.Carriage(t, "recorder", `{"switch":{"to":{"type":"other"}}}`))))
		own, free := registry.SubnetKey(a.subnet()), registry.SubnetKey(free(a, b))
		for _, request := range []string{
			"GET /healthz", "GET /readyz", "GET /healthz?network=n", "GET /healthz?network=none", "GET /healthz?format=text", "GET /healthz?format=xml", "GET /readyz?format=xml", "GET /readyz?network=n&network=none", "GET /v1/agent/self", "GET /v1/agent/config", "PUT /v1/agent/reload", "PUT /v1/agent/reload?force=perhaps", "GET /v1/openapi.yaml",
			"GET /v1/agent/events", "GET /v1/agent/events?network=n",
			"GET /v1/agent/monitor?log_level=loud", "GET /v1/agent/metrics", "GET /v1/agent/metrics?format=prometheus", "GET /v1/agent/metrics?format=xml",
			"PUT /v1/agent/doctor", "PUT /v1/agent/doctor?network=n&passive=true", "PUT /v1/agent/doctor?passive=perhaps", "PUT /v1/agent/doctor?network=none",
			`POST /v1/agent/trace {"source":"` + a.subnet().Addr().String() + `","destination":"` + b.subnet().Addr().String() + `"}`, "POST /v1/agent/trace {}",
			`POST /v1/agent/trace {"source":"198.51.100.1","destination":"198.51.100.2"}`,
			"GET /v1/networks", "GET /v1/network/n", "GET /v1/network/none",
			"PUT /v1/network/m " + m, "PUT /v1/network/m " + m,
			"PUT /v1/network/m " + strings.Replace(m, "{", `{"encryption":"","local":{"mtu":1450},`, 1), "PUT /v1/network/x {}",
			"POST /v1/network/m/plan " + m, "POST /v1/network/m/plan {}",
			"GET /v1/network/n/switch", "GET /v1/network/none/switch", `PUT /v1/network/n/switch {"action":"rotate-keys"}`, `PUT /v1/network/none/switch {"action":"stop"}`,
			`PUT /v1/network/s/switch {"action":"stop"}`, `PUT /v1/network/s/switch {"action":"turn"}`,
			"GET /v1/network/n/leases", "GET /v1/network/n/leases?memory=true", "GET /v1/network/none/leases",
			"GET /v1/network/n/lease/" + own, "GET /v1/network/n/lease/" + free, "GET /v1/network/n/lease/10.5.0.0-99",
			"PUT /v1/network/n/reservation/" + free + ` {"node":"z"}`, "PUT /v1/network/n/reservation/" + free + ` {"node":"y"}`,
			"PUT /v1/network/n/reservation/" + free + ` {"host":"z"}`, "PUT /v1/network/none/reservation/" + free + ` {"node":"z"}`,
			"GET /v1/network/n/reservations", "GET /v1/network/none/reservations",
			"DELETE /v1/network/n/reservation/" + free, "DELETE /v1/network/n/reservation/" + free,
			"GET /v1/network/n/peers", "GET /v1/network/n/peers?history=true", "GET /v1/network/n/peers?history=perhaps", "GET /v1/network/none/peers", "GET /v1/network/n/hosts", "GET /v1/network/none/hosts",
			"POST /v1/network/n/probe {}", `POST /v1/network/n/probe {"count":1000}`, `POST /v1/network/n/probe {"peers":["z"]}`,
			"DELETE /v1/network/n", "DELETE /v1/network/m", "DELETE /v1/network/m",
			"DELETE /v1/network/n/lease/" + registry.SubnetKey(b.subnet()), "DELETE /v1/network/n/lease/10.5.0.0-24", "DELETE /v1/network/n/lease/x-1",
			"PUT /v1/network/n/renew", "PUT /v1/network/none/renew",
			"PUT /v1/network/n/release", "PUT /v1/network/n/release", "PUT /v1/network/none/release",
		} {
			part := strings.SplitN(request, " ", 3)
			ask(part[0], part[1], strings.Join(part[2:], ""))
		}
		// A store such as Kubernetes cannot do all of it.
		for request, call := range map[string]string{
			"PUT /v1/network/y " + strings.Replace(m, "10.7", "10.9", 1): "PutNetwork",
			`PUT /v1/network/s/switch {"action":"reverse"}`:              "PutNetwork",
			"DELETE /v1/network/n?force=true":                            "DeleteNetwork",
			"DELETE /v1/network/n/lease/" + free:                         "Revoke",
			"PUT /v1/network/n/reservation/" + free + ` {"node":"z"}`:    "AddReservation",
			"DELETE /v1/network/n/reservation/" + free:                   "RemoveReservation",
		} {
			a.registry.SetOne(call, registry.ErrNotSupported)
			part := strings.SplitN(request, " ", 3)
			ask(part[0], part[1], strings.Join(part[2:], ""))
			a.registry.SetOne(call, nil)
		}
		for path, item := range doc.Paths.Map() {
			for method, operation := range item.Operations() {
				for status := range operation.Responses.Map() {
					answer := fmt.Sprintf("%s %s %s", method, path, status)
					if status != "default" && !j.seen[answer] && !otherwise[answer] && !strings.HasSuffix(answer, " 403") {
						t.Errorf("%s was not seen", answer)
					}
				}
			}
		}
	})
}

// otherwise lists the answers that other tests cover: those of an agent that is not healthy, and those given while the
// store is away. Answers with status 403 are left out, since the memory registry gives every token all rights.
var otherwise = map[string]bool{
	"GET /healthz 429": true, "GET /healthz 503": true, "GET /readyz 503": true,
	"PUT /v1/network/{network}/renew 409": true, "PUT /v1/network/{network}/renew 503": true,
	"PUT /v1/agent/reload 409": true, "GET /v1/agent/monitor 200": true, "GET /v1/agent/monitor 429": true, "GET /v1/networks 503": true, "GET /v1/agent/metrics 415": true,
	"GET /v1/network/{network}/lease/{subnet} 409": true,
	"PUT /v1/agent/doctor 409":                     true, "POST /v1/agent/trace 409": true,
	"POST /v1/network/{network}/probe 409": true, "POST /v1/network/{network}/probe 501": true,
}
