package httpapi

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestProfiles: profiles are served while the configuration says so, also beyond the time of other requests.
func TestProfiles(t *testing.T) {
	h := serving(t, func(l *Limits) { l.RequestTime = 500 * time.Millisecond })
	enable := func(debug bool) {
		h.agent.mu.Lock()
		defer h.agent.mu.Unlock()
		h.agent.config.EnableDebug = debug
	}
	enable(true)
	for _, path := range []string{"heap?debug=1", "goroutine?debug=1", "cmdline", "trace?seconds=1", ""} {
		r, body := h.answers("GET /debug/pprof/" + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		if r.StatusCode != http.StatusOK || body == "" {
			t.Errorf("%s: %d %.200s", path, r.StatusCode, body)
		}
	}
	enable(false)
	if r, body := h.answers("GET /debug/pprof/heap HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); r.StatusCode != 404 || !strings.Contains(body, "enable_debug") {
		t.Errorf("after it was turned off: %d %s", r.StatusCode, body)
	}
}
