package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestAnswerFromMemory: a request for the leases reads them again, unless it asks for what is in memory.
func TestAnswerFromMemory(t *testing.T) {
	h := newHost(t, nil)
	handler := h.prepare().routes()
	for _, tt := range []struct {
		query string
		reads int32
	}{{"?memory=true", 0}, {"", 1}} {
		before := h.n.refreshes.Load()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/v1/network/n/leases"+tt.query, nil))
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "10.5.1.0/24") {
			t.Errorf("%q: %d %s", tt.query, w.Code, w.Body)
		}
		if reads := h.n.refreshes.Load() - before; reads != tt.reads {
			t.Errorf("%q: the leases were read %d times, want %d", tt.query, reads, tt.reads)
		}
	}
}
