package agent

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestProfiles are served while the configuration says so, also past the time
// other requests have.
func TestProfiles(t *testing.T) {
	h := serving(t, func(l *limits) { l.requestTime = 500 * time.Millisecond })
	c := h.config
	c.EnableDebug = true
	if err := h.agent.Reload(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"heap?debug=1", "goroutine?debug=1", "cmdline", "trace?seconds=1", ""} {
		r, body := h.answers("GET /debug/pprof/" + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		if r.StatusCode != http.StatusOK || body == "" {
			t.Errorf("%s: %d %.200s", path, r.StatusCode, body)
		}
	}
	if err := h.agent.Reload(t.Context(), h.config); err != nil {
		t.Fatal(err)
	}
	if r, body := h.answers("GET /debug/pprof/heap HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); r.StatusCode != 404 || !strings.Contains(body, "enable_debug") {
		t.Errorf("after it was turned off: %d %s", r.StatusCode, body)
	}
}
