package httpapi

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lenonet/leno/agent/telemetry"
)

// sendMetrics answers in the Prometheus format if the parameter or the header, as Prometheus sends it, asks for it, and
// otherwise in JSON.
func (h agentHandlers) sendMetrics(w http.ResponseWriter, r *http.Request) {
	switch format := r.URL.Query().Get("format"); {
	case format == "prometheus" || format == "" && acceptsPrometheus(r.Header.Get("Accept")):
		if err := h.telemetry.Expose(w, r); err != nil {
			h.refuse(w, http.StatusUnsupportedMediaType, "%v", err)
		}
	case format != "" && format != "json":
		h.refuse(w, http.StatusBadRequest, `parameter format: %q is neither "json" nor "prometheus"`, format)
	default:
		all, err := h.telemetry.Now()
		if err != nil {
			h.fail(w, err)
			return
		}
		h.write(w, http.StatusOK, all)
	}
}

// acceptsPrometheus reports whether an Accept header names a Prometheus format: its text has a version, and its
// successor has a media type of its own.
func acceptsPrometheus(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err == nil && (kind == "application/openmetrics-text" || kind == "text/plain" && params["version"] != "") {
			return true
		}
	}
	return false
}

// withMetrics counts an endpoint's answers.
func (s *Server) withMetrics(e endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		started, answer := time.Now(), &statusRecorder{ResponseWriter: w, code: http.StatusOK}
		waits := r.URL.Query().Has("index")
		if waits {
			s.waiting.Add(1)
			defer s.waiting.Add(-1)
		}
		e.handler(answer, r)
		s.o.Telemetry.Count(telemetry.APIRequests, 1, e.pattern, strconv.Itoa(answer.code))
		if !waits && !answer.streamed {
			s.o.Telemetry.Time(telemetry.APIDuration, time.Since(started), e.pattern)
		}
	}
}

// A statusRecorder remembers the status of an answer.
type statusRecorder struct {
	http.ResponseWriter
	code     int
	begun    bool
	streamed bool
}

func (r *statusRecorder) WriteHeader(code int) {
	r.code, r.begun = code, true
	r.ResponseWriter.WriteHeader(code)
}

func (r *statusRecorder) Write(data []byte) (int, error) {
	r.begun = true
	return r.ResponseWriter.Write(data)
}

// Flush makes the answer a stream.
func (r *statusRecorder) Flush() {
	r.streamed = true
	_ = http.NewResponseController(r.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (r *statusRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
