package agent

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/telemetry"
	"github.com/lenonet/leno/api"
)

func (a *Agent) metricsEndpoints() []endpoint {
	return []endpoint{
		{"GET /v1/agent/metrics", a.getMetrics},
	}
}

// getMetrics answers in the Prometheus format to who asks for it, by the parameter
// or as Prometheus does, else as JSON.
func (a *Agent) getMetrics(w http.ResponseWriter, r *http.Request) {
	exposed := func(*http.Request) (reply, error) { return reply{body: a.env.telemetry.Recent()}, nil }
	switch format := r.URL.Query().Get("format"); {
	case format == "prometheus" || format == "" && scrapes(r.Header.Get("Accept")):
		err := a.env.telemetry.Expose(w, r)
		if err == nil {
			return
		}
		exposed = func(*http.Request) (reply, error) {
			return reply{}, &api.Error{Code: http.StatusUnsupportedMediaType, Message: err.Error()}
		}
	case format != "" && format != "json":
		exposed = func(*http.Request) (reply, error) {
			return reply{}, badRequest(`parameter format: %q is neither "json" nor "prometheus"`, format)
		}
	}
	a.wrap(exposed)(w, r)
}

// scrapes says whether the header is that of something that reads the Prometheus
// format: its text has a version, and what came after it has a name.
func scrapes(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err == nil && (kind == "application/openmetrics-text" || kind == "text/plain" && params["version"] != "") {
			return true
		}
	}
	return false
}

// measured counts an endpoint's answers.
func (a *Agent) measured(e endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		started, answer := time.Now(), &answered{ResponseWriter: w, code: http.StatusOK}
		waits := r.URL.Query().Has("index")
		if waits {
			a.waiting.Add(1)
			defer a.waiting.Add(-1)
		}
		e.handler(answer, r)
		a.env.telemetry.Count(telemetry.APIRequests, 1, e.pattern, strconv.Itoa(answer.code))
		if !waits && !answer.streamed {
			a.env.telemetry.Time(telemetry.APIDuration, time.Since(started), e.pattern)
		}
	}
}

// answered remembers what a request was answered with.
type answered struct {
	http.ResponseWriter
	code     int
	begun    bool
	streamed bool
}

func (a *answered) WriteHeader(code int) {
	a.code, a.begun = code, true
	a.ResponseWriter.WriteHeader(code)
}

func (a *answered) Write(data []byte) (int, error) {
	a.begun = true
	return a.ResponseWriter.Write(data)
}

// Flush is what makes an answer a stream.
func (a *answered) Flush() {
	a.streamed = true
	_ = http.NewResponseController(a.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }
