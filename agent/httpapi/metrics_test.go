package httpapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
)

// measured returns a host that serves one gauge, and metrics in the Prometheus format unless retention is 0.
func measured(t *testing.T, retention time.Duration) *host {
	t.Helper()
	h := newHost(t, nil)
	h.options.Telemetry = telemetry.New(telemetry.Config{Retention: retention}, h.options.Logs.Logger(), func(to *telemetry.Reading) {
		to.Flag(telemetry.LeaseHeld, true, "n")
	})
	return h.serve("unix://" + filepath.Join(t.TempDir(), "leno.sock"))
}

// TestMetricsFormats covers the format that each client gets, and the reason given to a client that gets none.
func TestMetricsFormats(t *testing.T) {
	a, off := measured(t, time.Minute), measured(t, 0)
	for _, tt := range []struct {
		name, query, accept string
		host                *host
		status              int
		says                string
	}{
		{"JSON", "", "*/*", a, 200, `{"timestamp":"`},
		{"JSON by name", "?format=json", "text/plain;version=0.0.4", a, 200, `{"timestamp":"`},
		{"a browser", "", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", a, 200, `{"timestamp":"`},
		{"plain text", "", "text/plain", a, 200, `{"timestamp":"`},
		{"Prometheus by name", "?format=prometheus", "", a, 200, "# HELP leno_lease_held "},
		{"Prometheus 2", "", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", a, 200, "# HELP leno_lease_held "},
		{"Prometheus 1", "", "text/plain;version=0.0.4;q=1,*/*;q=0.1", a, 200, "# HELP leno_lease_held "},
		{"unknown", "?format=xml", "", a, 400, `parameter format: \"xml\"`},
		{"turned off", "?format=prometheus", "", off, 415, `telemetry.prometheus_retention is \"0s\"`},
		{"turned off, by header", "", "text/plain;version=0.0.4", off, 415, "turned off"},
		{"turned off, JSON", "", "", off, 200, `{"timestamp":"`},
	} {
		r, w := httptest.NewRequest("GET", "/v1/agent/metrics"+tt.query, nil), httptest.NewRecorder()
		r.Header.Set("Accept", tt.accept)
		tt.host.server.routes().ServeHTTP(w, r)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.says) {
			t.Errorf("%s: %d: %.300s", tt.name, w.Code, w.Body)
		}
	}
	out, err := a.client.Metrics(t.Context())
	if err != nil || !slices.ContainsFunc(out.Gauges, func(g api.MetricValue) bool { return g.Name == "leno_lease_held" && g.Value == 1 }) {
		t.Errorf("%+v, %v", out, err)
	}
	if text, err := a.client.PrometheusMetrics(t.Context()); err != nil || !strings.HasPrefix(string(text), "# HELP") {
		t.Errorf("%.80s, %v", text, err)
	}
	_, err = off.client.PrometheusMetrics(t.Context())
	agenttest.WantCode(t, "turned off", err, http.StatusUnsupportedMediaType)
}

// TestMetricsOfRequests: a request that waits for a change is counted as waiting, and its waiting is not timed.
// Requests for unknown paths have no series of their own.
func TestMetricsOfRequests(t *testing.T) {
	h := measured(t, time.Minute)
	counted := func(waiting, answered, timed int) {
		t.Helper()
		const route = `route="GET /v1/network/{network}/reservations"} `
		lines := []string{
			fmt.Sprintf("leno_api_requests_total{code=\"200\",%s%d\n", route, answered),
			fmt.Sprintf("leno_api_duration_seconds_count{%s%d\n", route, timed),
		}
		agenttest.Eventually(t, func() error { // an answer is counted when its client has it already
			text, err := h.client.PrometheusMetrics(t.Context())
			if err != nil || h.server.Waiting() != waiting || slices.ContainsFunc(lines, func(line string) bool { return !strings.Contains(string(text), line) }) {
				return fmt.Errorf("%d wait, want %d; want %q, %w in\n%s", h.server.Waiting(), waiting, lines, err, text)
			}
			return nil
		})
	}
	list, err := h.client.Reservations(t.Context(), "n")
	must(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := h.client.Reservations(t.Context(), "n", api.Read{Index: list.Index, Wait: time.Minute})
		done <- err
	}()
	h.readers(1)
	counted(1, 1, 1)
	must(t, h.client.AddReservation(t.Context(), "n", api.Reservation{Subnet: h.n.Status().Definition.Plan.Subnets(3)[0], Node: "z"}, false))
	must(t, <-done)
	counted(0, 2, 1)
	h.request("GET", "/v1/"+strings.Repeat("x", 100), "")
	if text, err := h.client.PrometheusMetrics(t.Context()); err != nil || strings.Contains(string(text), "xxx") {
		t.Errorf("%s, %v", text, err)
	}
}
