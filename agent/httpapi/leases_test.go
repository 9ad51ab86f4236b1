package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lenonet/leno/api"
	"github.com/lenonet/leno/internal/testkit/agenttest"
	"github.com/lenonet/leno/registry"
)

// TestAnswerFromMemory: a request for the leases or the hosts reads the leases again, unless it asks for what is in memory.
func TestAnswerFromMemory(t *testing.T) {
	h := newHost(t, nil)
	h.n.hosts = []api.Host{{Subnets: h.n.status.Lease.Subnets}}
	handler := h.prepare().routes()
	for _, tt := range []struct {
		query string
		reads int32
	}{{"leases?memory=true", 0}, {"leases", 1}, {"hosts?memory=true", 0}, {"hosts", 1}} {
		before := h.n.refreshes.Load()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/v1/network/n/"+tt.query, nil))
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "10.5.1.0/24") {
			t.Errorf("%q: %d %s", tt.query, w.Code, w.Body)
		}
		if reads := h.n.refreshes.Load() - before; reads != tt.reads {
			t.Errorf("%q: the leases were read %d times, want %d", tt.query, reads, tt.reads)
		}
	}
}

// TestRenew: a renewal that a network refuses, or that fails, is answered with its reason.
func TestRenew(t *testing.T) {
	h := onSocket(t)
	r, err := h.client.RenewLease(t.Context(), "n")
	if err != nil || r.Subnet != h.n.Status().Lease.Subnet() {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = h.client.RenewLease(t.Context(), "m")
	agenttest.WantCode(t, "an unknown network", err, http.StatusNotFound, "n")
	for code, refusal := range map[int]error{
		http.StatusServiceUnavailable: registry.ErrUnavailable,
		http.StatusConflict:           &api.Error{Code: http.StatusConflict, Message: "this host holds no lease"},
	} {
		h.n.set(func() { h.n.refusal = refusal })
		_, err = h.client.RenewLease(t.Context(), "n")
		agenttest.WantCode(t, "refused", err, code, refusal.Error())
	}
}
